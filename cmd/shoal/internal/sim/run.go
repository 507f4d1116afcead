package sim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/recorded"
)

// shoal sim --run, on the goroutine of the command. The functions read files and write to out, and
// wait for nothing else.

// maxRunFile is how many bytes of a file of a run are read: four times what shoal writes at most.
const maxRunFile = 64 << 20

// playRun plays the run in o.dir, and prints what came. It fails where nothing can be said, after
// it has printed what is known.
func (o *options) playRun(out io.Writer) error {
	if info, err := os.Stat(o.dir); err != nil || !info.IsDir() {
		why := ""
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			why = fmt.Sprintf(" (%v)", err)
		}
		return fmt.Errorf("--run takes the directory of a run, and %s is none%s: shoal run prints "+
			"it, and shoal ps", o.dir, why)
	}
	var f recorded.Files
	for name, text := range map[string]*[]byte{"job.json": &f.Job, "sense.jsonl": &f.Sense,
		"events.jsonl": &f.Events} {
		var err error
		if *text, err = readRunFile(filepath.Join(o.dir, name)); err != nil {
			return err
		}
	}
	seed := uint64(1)
	if o.reseed {
		seed = o.seed
	}
	report, err := recorded.Play(recorded.Read(f, version.Version), o.what, seed)
	nothing := errors.Is(err, recorded.ErrNothing)
	if err != nil && !nothing {
		return cli.Usagef("--what: %v", err)
	}
	if wrote := o.printReport(out, report); wrote != nil {
		return wrote
	}
	if nothing {
		return fmt.Errorf("%s: %w", o.dir, err)
	}
	return nil
}

// readRunFile returns the first maxRunFile bytes of a file; nil = it is not there.
func readRunFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRunFile))
	if err != nil {
		return nil, err
	}
	return append([]byte{}, text...), nil // an empty file is there
}

// printReport prints what is known of a run.
func (o *options) printReport(out io.Writer, r *recorded.Report) error {
	if o.json {
		text := json.NewEncoder(out)
		text.SetEscapeHTML(false)
		return text.Encode(r)
	}
	var facts []string
	if r.Workers > 0 {
		facts = append(facts, plural.Of(r.Workers, "worker"))
	}
	if r.Generations > 0 {
		facts = append(facts, plural.Of(r.Generations, "membership"),
			plural.Of(r.Changes, "change"))
	}
	head := fmt.Sprintf("%s: %s", cmp.Or(r.Job, "a job"), strings.Join(append(facts,
		cmp.Or(strings.Join(r.Command, " "), "what was run is not known")), ", "))
	fmt.Fprintln(out, cli.Visible(head, false))
	for _, m := range r.Missing {
		fmt.Fprintf(out, "missing: %s\n", cli.Visible(m, false))
	}
	if len(r.Periods) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nwhat its steps took, and what they take as they are played, in seconds:")
	rows := [][]string{{"WORKERS", "BATCH", "STEPS", "P10", "MEDIAN", "P90", "PLAYED", "FACTOR"}}
	for _, p := range r.Periods {
		batch := "-"
		if p.Batch > 0 {
			batch = strconv.FormatUint(p.Batch, 10)
		}
		if p.Round > 1 {
			batch += fmt.Sprintf(" in rounds of %d", p.Round)
		}
		rows = append(rows, []string{strconv.Itoa(p.Size), batch, digits(p.Steps), digits(p.P10),
			digits(p.Median), digits(p.P90), digits(p.Played), digits(p.Played / p.Median)})
	}
	if err := cli.Table(out, rows); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintf(out, "note: %s\n", cli.Visible(n, false))
	}
	fmt.Fprintf(out, "\nas a scenario, where %s:\n",
		cli.Visible(strings.Join(firstHosts(r.Hosts), ", "), false))
	for line := range strings.Lines(r.Scenario) {
		fmt.Fprint(out, "  "+line)
	}
	if r.WhatIf != nil {
		return printWhatIfOf(out, r.WhatIf)
	}
	return nil
}

// firstHosts returns the first eight of some hosts, and that there are more.
func firstHosts(all []string) []string {
	const most = 8
	if len(all) <= most {
		return all
	}
	return append(append([]string{}, all[:most]...), "and so on")
}

// printWhatIfOf prints what is predicted for a run with something else from its last step on.
func printWhatIfOf(out io.Writer, w *recorded.WhatIf) error {
	fmt.Fprintf(out, "\nwhat if %s, after the last step:\n", w.What)
	rows := [][]string{{"", "WHAT IF", "80 OF 100 CASES"}}
	// row adds a row about a band; where it is zero, no row.
	row := func(name, unit string, b setting.Band) {
		if b.IsKnown() {
			rows = append(rows, []string{name, digits(b.Mid) + unit,
				digits(b.Low) + unit + " to " + digits(b.High) + unit})
		}
	}
	row("seconds of a step", "", w.StepSeconds)
	row("seconds of a step", "x", w.Step)
	row("samples/s", "x", w.Throughput)
	row("goodput", "x", w.Goodput)
	return cli.Table(out, rows)
}
