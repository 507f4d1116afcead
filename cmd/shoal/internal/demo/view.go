package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// How often the state is shown: on a terminal a line that rewrites itself, elsewhere a line or an
// object now and then.
const (
	demoRewrite = 100 * time.Millisecond
	demoLines   = time.Second
)

// demoState is how a demo is doing, and with --json a line of the output. Numbers that are not
// known yet, or not finite, are left out.
type demoState struct {
	Final      bool     `json:"final,omitempty"`
	Worker     string   `json:"worker"` // go, numpy or torch
	Step       int      `json:"step"`
	Steps      int      `json:"steps"` // that it will take, or in the last object has taken
	Workers    int      `json:"workers"`
	Seconds    float64  `json:"seconds"` // since the workers were started
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
}

// demoView shows one run of the demo. Writing to it puts a text above the line that rewrites
// itself.
type demoView struct {
	out      io.Writer
	json     bool
	terminal bool

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

func newDemoView(out io.Writer, f *demoFlags, worker string) *demoView {
	return &demoView{out: out, json: f.json, terminal: !f.json &&
		cli.Colorful(out), start: time.Now(),
		state: demoState{Worker: worker, Steps: f.steps, Workers: f.workers}}
}

// started notes that the workers were started.
func (v *demoView) started(dir string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state.RunDir, v.start = dir, now
	if !v.json {
		names := map[string]string{"go": "Go", "numpy": "NumPy", "torch": "PyTorch"}
		fmt.Fprintf(v.out, "Handwritten digits, %s in %s\n", plural.Of(v.state.Workers, "worker"),
			names[v.state.Worker])
	}
}

// joined notes that one of the first workers has joined.
func (v *demoView) joined(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.since = now
}

// reported notes a worker's report of its progress.
func (v *demoView) reported(metrics map[string]float64, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state.Step = int(metrics["step"])
	v.state.Loss, v.state.Accuracy = finite(metrics, "loss"), finite(metrics, "accuracy")
	if trained := now.Sub(v.since).Seconds(); trained > 0 {
		rate := math.Round((metrics["samples"] - v.before) / trained)
		v.state.SamplesPer = &rate
	}
	if v.before == 0 { // what a framework sets up at its first step is not the pace of training
		v.since, v.before = now, metrics["samples"]
	}
	v.dirty = true
}

// sized notes how many workers the job has now.
func (v *demoView) sized(metrics map[string]float64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := int(metrics["workers"]); n > 0 {
		v.state.Workers = n
	}
}

// say puts a line above the state.
func (v *demoView) say(line string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.clear(); !v.json {
		fmt.Fprintln(v.out, line)
	}
}

// finite returns a metric; nil = it is not there, or not finite.
func finite(metrics map[string]float64, name string) *float64 {
	if x, known := metrics[name]; known && !math.IsNaN(x) && !math.IsInf(x, 0) {
		return &x
	}
	return nil
}

// run shows the state until ctx ends.
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
		return v.encode()
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

// encode prints the state as a JSON object; v.mu is held.
func (v *demoView) encode() error {
	s := v.state
	s.Seconds = math.Round(1000*s.Seconds) / 1000
	return json.NewEncoder(v.out).Encode(s)
}

// String is the state in less than 80 characters.
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

// finish shows how it ended, and what came of the workers that were lost and gained.
func (v *demoView) finish(seconds float64, o outcome) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := &v.state
	if s.Step != s.Steps || s.Accuracy == nil {
		v.clear()
		return fmt.Errorf("the workers ended well, but their last report is of step %d of %d; "+
			"their output is in %s", s.Step, s.Steps, s.RunDir)
	}
	s.Final, s.Seconds = true, seconds
	s.Workers, s.StepsLost, s.SamplesLost, s.SamplesRepeated = o.members, &o.stepsLost,
		&o.samplesLost, &o.samplesRepeated
	s.RecoverMS, s.JoinMS, s.ParametersEqual = o.recoverMS, o.joinMS, &o.equal
	if v.json {
		return v.encode()
	}
	if v.clear(); v.dirty {
		fmt.Fprintln(v.out, s)
	}
	fmt.Fprintf(v.out, "test accuracy %.1f %% after %d steps by %s in %.1f s\n", 100**s.Accuracy,
		s.Steps, plural.Of(s.Workers, "worker"), s.Seconds)
	fmt.Fprint(v.out, &o)
	_, err := fmt.Fprintf(v.out, "the run's files are in %s\n", s.RunDir)
	return err
}

// abandon leaves the last state on the screen, above whatever comes next.
func (v *demoView) abandon() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.showing {
		fmt.Fprintln(v.out)
	}
	v.showing = false
}

// Write passes on what the workers and the agent say on their error streams.
func (v *demoView) Write(text []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clear()
	return os.Stderr.Write(text)
}

// clear takes the line that rewrites itself off the terminal, and has it shown again later; v.mu is
// held.
func (v *demoView) clear() {
	if v.showing {
		fmt.Fprint(v.out, "\r\x1b[K")
		v.showing, v.dirty = false, true
	}
}
