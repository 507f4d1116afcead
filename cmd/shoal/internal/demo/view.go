package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What shoal demo shows while a job trains. What is not a method of demoView keeps nothing, and
// writes nothing.

// How often the state is shown: on a terminal a line that rewrites itself, elsewhere a line or an
// object now and then.
const (
	demoRewrite = 100 * time.Millisecond
	demoLines   = time.Second
)

// demoState is how a demo is doing, and with --json a line of the output. Numbers that are not
// known yet, or not finite, are left out.
type demoState struct {
	Final      bool     `json:"final,omitempty"` // whether it is the last object
	Worker     string   `json:"worker"`          // go, numpy or torch
	Step       int      `json:"step"`            // number of the newest reported step
	Steps      int      `json:"steps"`           // that it will take, or at last has taken
	Workers    int      `json:"workers"`         // number of members
	Seconds    float64  `json:"seconds"`         // since the workers were started
	Loss       *float64 `json:"loss,omitempty"`
	Accuracy   *float64 `json:"accuracy,omitempty"` // on the test images, from 0 to 1
	SamplesPer *float64 `json:"samples_per_s,omitempty"`
	RunDir     string   `json:"run_dir"`

	// In the last object: the workers count what has become of their steps and samples.
	StepsLost       *int `json:"steps_lost,omitempty"`
	SamplesLost     *int `json:"samples_lost,omitempty"`
	SamplesRepeated *int `json:"samples_repeated,omitempty"`
	// from the kill of a worker to the next step without it, beyond a normal step
	RecoverMS []float64 `json:"recover_ms,omitzero"`
	// from the order of a worker to its first step
	JoinMS []float64 `json:"join_ms,omitzero"`
	// on all workers, at every step and at the end
	ParametersEqual *bool `json:"parameters_equal,omitempty"`
	// that policies have made of how the job trains, in order
	Changes []demoChange `json:"changes,omitzero"`
}

// demoView shows one run of the demo. Writing to it puts a text above the line that rewrites
// itself. Several goroutines may use it at once; the methods print with mu held, and so
// may wait for the terminal.
type demoView struct {
	out      io.Writer // written to with mu held only
	json     bool      // whether to print JSON objects
	terminal bool      // whether a line rewrites itself

	mu    sync.Mutex // guards what follows
	state demoState
	start time.Time // when the workers were started
	// since is when samples/s begins to count: at the first report, and until then when the last
	// worker had joined.
	since   time.Time
	before  float64 // number of samples until since
	dirty   bool    // the state has changed since it was shown
	showing bool    // a line stands on the terminal
}

// newDemoView returns the view of a run with one kind of worker. It prints nothing yet.
func newDemoView(out io.Writer, f *demoFlags, worker string) *demoView {
	return &demoView{out: out, json: f.json, terminal: !f.json &&
		cli.WantsColor(out), start: time.Now(),
		state: demoState{Worker: worker, Steps: f.steps, Workers: f.workers}}
}

// setStarted records when the workers were started and where the files of the run are, and prints a
// title.
func (v *demoView) setStarted(dir string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state.RunDir, v.start = dir, now
	if !v.json {
		names := map[string]string{"go": "Go", "numpy": "NumPy", "torch": "PyTorch"}
		fmt.Fprintf(v.out, "Handwritten digits, %s in %s\n", plural.Of(v.state.Workers, "worker"),
			names[v.state.Worker])
	}
}

// setJoined records when one of the first workers has joined.
func (v *demoView) setJoined(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.since = now
}

// setProgress records a worker's report of its progress, for show to print.
func (v *demoView) setProgress(metrics map[string]float64, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state.Step = int(metrics["step"])
	v.state.Loss, v.state.Accuracy = finiteMetric(metrics, "loss"),
		finiteMetric(metrics, "accuracy")
	if trained := now.Sub(v.since).Seconds(); trained > 0 {
		rate := math.Round((metrics["samples"] - v.before) / trained)
		v.state.SamplesPer = &rate
	}
	if v.before == 0 { // what a framework sets up at its first step is not the pace of training
		v.since, v.before = now, metrics["samples"]
	}
	v.dirty = true
}

// setSize records how many workers the job has now, if the metrics say that.
func (v *demoView) setSize(metrics map[string]float64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := int(metrics["workers"]); n > 0 {
		v.state.Workers = n
	}
}

// printAbove prints a line above the state; nothing with --json.
func (v *demoView) printAbove(line string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.clearLine(); !v.json {
		fmt.Fprintln(v.out, line)
	}
}

// finiteMetric returns a metric; nil if it is missing or not finite. It is a copy.
func finiteMetric(metrics map[string]float64, name string) *float64 {
	if x, known := metrics[name]; known && !math.IsNaN(x) && !math.IsInf(x, 0) {
		return &x
	}
	return nil
}

// run prints the state at regular intervals until ctx ends. train starts it on a goroutine of its
// own.
func (v *demoView) run(ctx context.Context) error {
	every := demoLines
	if v.terminal {
		every = demoRewrite
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			if err := v.show(now); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// show prints the state if it has changed, or with JSON always.
func (v *demoView) show(now time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.json {
		v.state.Seconds = now.Sub(v.start).Seconds()
		return v.printJSON()
	}
	if !v.dirty {
		return nil
	}
	v.dirty = false
	line, end := v.state.String(), "\n"
	if v.terminal {
		line, end, v.showing = "\r\x1b[K"+line, "", true
	}
	_, err := io.WriteString(v.out, line+end)
	return err
}

// printJSON prints the state as a JSON object; v.mu is held.
func (v *demoView) printJSON() error {
	s := v.state
	s.Seconds = math.Round(1000*s.Seconds) / 1000
	return json.NewEncoder(v.out).Encode(s)
}

// String returns the state in less than 80 characters.
func (s demoState) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "step %d/%d", s.Step, s.Steps)
	if s.Loss != nil {
		fmt.Fprintf(&b, "  loss %.4f", *s.Loss)
	}
	if s.Accuracy != nil {
		fmt.Fprintf(&b, "  accuracy %.1f %%", 100**s.Accuracy)
	}
	if s.SamplesPer != nil {
		fmt.Fprintf(&b, "  %.0f samples/s", *s.SamplesPer)
	}
	fmt.Fprintf(&b, "  %s", plural.Of(s.Workers, "worker"))
	return b.String()
}

// printOutcome prints the result of a run that took so many seconds, and what came of the workers
// that were lost and gained. It fails when the workers did not report their last step.
func (v *demoView) printOutcome(seconds float64, o outcome) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := &v.state
	if s.Step != s.Steps || s.Accuracy == nil {
		v.clearLine()
		return fmt.Errorf("the workers ended well, but their last report is of step %d of %d; "+
			"their output is in %s", s.Step, s.Steps, s.RunDir)
	}
	s.Final, s.Seconds = true, seconds
	s.Workers, s.StepsLost, s.SamplesLost, s.SamplesRepeated = o.members, &o.stepsLost,
		&o.samplesLost, &o.samplesRepeated
	s.RecoverMS, s.JoinMS, s.ParametersEqual = o.recoverMS, o.joinMS, &o.equal
	s.Changes = o.changes
	if v.json {
		return v.printJSON()
	}
	if v.clearLine(); v.dirty {
		fmt.Fprintln(v.out, s)
	}
	fmt.Fprintf(v.out, "test accuracy %.1f %% after %d steps by %s in %.1f s\n", 100**s.Accuracy,
		s.Steps, plural.Of(s.Workers, "worker"), s.Seconds)
	fmt.Fprint(v.out, &o)
	if o.slowed && len(o.changes) == 0 {
		fmt.Fprintf(v.out, "no policy moved work: shoal explain %s says why\n",
			filepath.Base(s.RunDir))
	}
	_, err := fmt.Fprintf(v.out, "the run's files are in %s\n", s.RunDir)
	return err
}

// endLine leaves the last state on the terminal and goes to the next line, for what else is
// printed.
func (v *demoView) endLine() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.showing {
		fmt.Fprintln(v.out)
	}
	v.showing = false
}

// Write passes what the workers and the agent write to their error streams on to that of this
// process.
func (v *demoView) Write(text []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clearLine()
	return os.Stderr.Write(text)
}

// clearLine erases the line that rewrites itself, and has show print it again; v.mu is held.
func (v *demoView) clearLine() {
	if v.showing {
		fmt.Fprint(v.out, "\r\x1b[K")
		v.showing, v.dirty = false, true
	}
}
