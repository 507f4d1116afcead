// Package experiment plays the questions of published schedulers again on public traces. An
// experiment is a file with a variable of type Experiment, which stands in the list below. It gets
// files as a file system and chance as a seed, so it comes to the same table each time.
package experiment

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/sim/trace"
)

// Experiment is a question of a paper.
type Experiment struct {
	Name      string // what people call it by, such as "elastic"
	Paper     string // authors, title, place and section
	Question  string // what the paper asks, in a sentence
	Published string // its figure, as far as that is confirmed; "" = none is
	// Run returns what comes of it. It fails where a file is missing or is none.
	Run func(in *Input) (*Table, error)
}

// Input is what an experiment gets. Its methods block on Data, and belong to the goroutine of Run.
type Input struct {
	Data fs.FS // the folder with public data
	Seed uint64
	// Progress is told how much of all is done of what the experiment does now; nil = nobody is.
	Progress func(what string, done, all int)
}

// Table is what comes of an experiment.
type Table struct {
	Heads []string
	Rows  [][]string // as long as Heads each
	// Difference says in a sentence how what came differs from what was published, and why.
	Difference string
}

// all are the experiments, in the order of the help.
var all = []Experiment{orders, elastic, deadline, asrpt, graph, works, prices, chain, siren, market}

// Names returns the names of all experiments.
func Names() (names []string) {
	for _, e := range all {
		names = append(names, e.Name)
	}
	return names
}

// Named returns the experiment of a name, or an error with the names that there are.
func Named(name string) (Experiment, error) {
	for _, e := range all {
		if e.Name == name {
			return e, nil
		}
	}
	return Experiment{}, fmt.Errorf("unknown experiment %q%s: choose one of %s", name,
		spelling.Meant(name, Names()), strings.Join(Names(), ", "))
}

// Jobs returns the jobs of a trace that a cluster of some GPUs can run; 0 = all.
func (in *Input) Jobs(name string, gpus int) ([]trace.Job, error) {
	f, err := in.Data.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := trace.Read(f, trace.Options{GPUs: gpus})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t.Jobs, nil
}

// Curves returns the curves of a folder with a file for each model.
func (in *Input) Curves(folder string) ([]trace.Curve, error) {
	curves, _, err := ReadCurves(in.Data, folder, false)
	if err != nil {
		return nil, fmt.Errorf("the speeds in %s: %w", folder, err)
	}
	return curves, nil
}

// ReadCurves returns the curves of the files in a folder that end with .csv, and what was found in
// each, by its name. A strict reader refuses defects. It reads files.
func ReadCurves(data fs.FS, folder string, strict bool) (curves []trace.Curve,
	found map[string][]trace.Finding, err error) {
	list, err := fs.ReadDir(data, folder)
	if err != nil {
		return nil, nil, err
	}
	found = map[string][]trace.Finding{}
	for _, entry := range list {
		model, is := strings.CutSuffix(entry.Name(), ".csv")
		if !is || entry.IsDir() {
			continue
		}
		name := path.Join(folder, entry.Name())
		f, err := data.Open(name)
		if err != nil {
			return nil, nil, err
		}
		more, findings, err := trace.ReadCurves(model, f, strict)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		curves = append(curves, more...)
		if len(findings) > 0 {
			found[entry.Name()] = findings
		}
	}
	if len(curves) == 0 {
		return nil, nil, errors.New("there is no file that ends with .csv")
	}
	return curves, found, nil
}

// reportProgress tells in.Progress, if that is set, how much is done of what the experiment does
// now.
func (in *Input) reportProgress(what string, done, all int) {
	if in.Progress != nil {
		in.Progress(what, done, all)
	}
}

// hoursText writes a number of hours.
func hoursText(x float64) string { return fmt.Sprintf("%.2f", x) }
