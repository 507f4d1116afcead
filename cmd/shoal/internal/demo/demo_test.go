package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/setting"
)

// TestMain makes the test a program shoal that has the command demo only.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"shoal": func() {
		root := &cobra.Command{Use: "shoal"}
		root.AddCommand(NewCommand())
		os.Exit(cli.Main(root))
	}})
}

// testView returns a view of a 4-worker run of 100 steps that began at second 0 and whose workers
// had all joined at second 1. It prints to out as the flags say.
func testView(out io.Writer, f demoFlags) *demoView {
	f.workers, f.steps = 4, 100
	v := newDemoView(out, &f, "go")
	v.setStarted("/runs/demo-go", time.Unix(0, 0))
	v.setJoined(time.Unix(1, 0))
	return v
}

// report returns the metrics that a worker reports; accuracy is from 0 to 1.
func report(step, samples, loss, accuracy float64) map[string]float64 {
	return map[string]float64{"step": step, "samples": samples, "loss": loss, "accuracy": accuracy}
}

// TestDemoViewOfLines shows a run where the output is no terminal: line by line.
func TestDemoViewOfLines(t *testing.T) {
	var out bytes.Buffer
	v := testView(&out, demoFlags{})
	for second := range 4 {
		if second == 2 {
			v.setProgress(report(50, 6400, 0.5, 0.75), time.Unix(3, 0))
		}
		if err := v.show(time.Unix(int64(second), 0)); err != nil {
			t.Fatal(err)
		}
	}
	v.setProgress(report(100, 12800, 0.25, 0.984), time.Unix(4, 0))
	if err := v.printOutcome(5.04, outcome{members: 4, equal: true}); err != nil {
		t.Fatal(err)
	}
	want := `Handwritten digits, 4 workers in Go
step 50/100  loss 0.5000  accuracy 75.0 %  3200 samples/s  4 workers
step 100/100  loss 0.2500  accuracy 98.4 %  6400 samples/s  4 workers
test accuracy 98.4 % after 100 steps by 4 workers in 5.0 s
steps lost 0, samples lost 0, samples repeated 0; parameters the same on all workers
the run's files are in /runs/demo-go
`
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
}

// TestDemoViewOnATerminal shows a run on a terminal: on a line that rewrites itself.
func TestDemoViewOnATerminal(t *testing.T) {
	var out bytes.Buffer
	v := testView(&out, demoFlags{})
	v.terminal = true
	v.setProgress(report(50, 6400, 0.5, 0.75), time.Unix(3, 0))
	if err := v.show(time.Unix(3, 0)); err != nil {
		t.Fatal(err)
	}
	v.setProgress(report(100, 12800, 0.25, 0.984), time.Unix(5, 0))
	if err := v.printOutcome(5, outcome{members: 4}); err != nil {
		t.Fatal(err)
	}
	// The half-way line must be wiped away, not followed by a new line.
	if got := out.String(); !strings.Contains(got, "4 workers\r\x1b[Kstep 100/100") ||
		strings.Count(got, "\n") != 5 {
		t.Errorf("printed %q", got)
	}
}

// TestDemoViewLeavesOutWhatIsNotANumber has a worker report a loss that JSON cannot hold.
func TestDemoViewLeavesOutWhatIsNotANumber(t *testing.T) {
	var out bytes.Buffer
	v := testView(&out, demoFlags{json: true})
	v.setProgress(report(50, 6400, math.NaN(), 0.1), time.Unix(3, 0))
	if err := v.show(time.Unix(3, 500e6)); err != nil {
		t.Fatal(err)
	}
	want := `{"worker":"go","step":50,"steps":100,"workers":4,"seconds":3.5,"accuracy":0.1,"samples_per_s":3200,"run_dir":"/runs/demo-go"}` + "\n"
	if out.String() != want {
		t.Errorf("printed %swant %s", out.String(), want)
	}
}

// TestDemoThatStopsReporting ends a run whose last step nobody has reported: that is an error.
func TestDemoThatStopsReporting(t *testing.T) {
	v := testView(io.Discard, demoFlags{})
	v.setProgress(report(50, 6400, 0.5, 0.75), time.Unix(3, 0))
	if err := v.printOutcome(5, outcome{members: 4}); err == nil ||
		!strings.Contains(err.Error(), "step 50 of 100") {
		t.Errorf("finish = %v, want an error about step 50 of 100", err)
	}
}

// TestDemoWithoutAPythonThatServes checks what is said of an interpreter that lacks something.
func TestDemoWithoutAPythonThatServes(t *testing.T) {
	dir := t.TempDir()
	fake := filepath.Join(dir, "python")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho $ANSWER\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for answer, want := range map[string]string{
		"": "",
		"numpy torch": "has no numpy and no torch: install it with `" + fake +
			" -m pip install numpy torch`",
		"torch":       "has no torch: install",
		"shoal torch": "does not find the package shoal",
	} {
		err := cli.CheckPython(context.Background(), fake, map[string]string{"ANSWER": answer})
		if want == "" && err != nil || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a Python that misses %q: %v, want %q", answer, err, want)
		}
	}
	if err := cli.CheckPython(context.Background(), filepath.Join(dir, "none"), nil); err == nil ||
		!strings.Contains(err.Error(), "--python=PATH") {
		t.Errorf("no Python: %v", err)
	}
}

// TestDemoStory puts together reports that tell of a loss, of two new workers, and of what has gone
// wrong.
func TestDemoStory(t *testing.T) {
	start := time.Unix(100, 0)
	// change returns a report of a change of the members, ms after start, with a pace in µs.
	change := func(generation float64, ms int, pace float64) map[string]float64 {
		at := start.Add(time.Duration(ms) * time.Millisecond)
		return map[string]float64{"generation": generation, "at_us": float64(at.UnixMicro()),
			"pace_us": pace}
	}
	// end returns the last report of a worker.
	end := func(step, lost, digest float64) map[string]float64 {
		return map[string]float64{"step": step, "samples_lost": lost, "samples_handed_on": 32,
			"digest": digest}
	}
	s := demoStory{workers: 3, steps: 100, after: 1, killed: start,
		ordered: start.Add(time.Second), joins: map[int]time.Duration{}}
	s.addReport(0, change(1, -500, 0))
	s.addReport(0, change(2, 7, 2000))
	s.addReport(2, change(2, 6, 2000))
	s.addReport(0, change(3, 1100, 2000))
	s.addReport(4, change(3, 1200, 0))
	s.addReport(3, change(3, 1100, 0))
	s.addReport(3, change(4, 1300, 0))
	s.addReport(4, end(70, 0, 5)) // released before the end
	for worker := range 3 {
		s.addReport(worker, end(100, 0, 7))
	}
	want := outcome{handedOn: 32, recoverMS: []float64{5}, joinMS: []float64{100, 200}, equal: true,
		changes: []demoChange{},
		members: 3}
	if d := cmp.Diff(want, s.outcome(), cmp.AllowUnexported(outcome{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	s.addReport(3, end(100, 2, 8))
	if o := s.outcome(); o.equal || o.samplesLost != 2 ||
		!strings.Contains(o.String(),
			"samples lost 2, samples repeated 0; parameters not the same") {
		t.Errorf("with a worker that has other parameters: %s", o.String())
	}
}

// TestDemoStream runs the real thing and reads what it prints, as a dashboard would.
func TestDemoStream(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("jobs run on Linux")
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	steps, accuracy := 2000, 0.96
	if testing.Short() {
		steps, accuracy = 300, 0.9
	}
	// shoal: see TestMain
	cmd := exec.CommandContext(t.Context(), "shoal", "demo", "-n", "3", "--steps",
		strconv.Itoa(steps), "--json")
	cmd.Stderr = os.Stderr
	stream, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var last demoState
	lines := strings.SplitAfter(strings.TrimSuffix(string(stream), "\n"), "\n")
	for i, line := range lines {
		step := last.Step
		last = demoState{}
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&last); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if last.Final != (i == len(lines)-1) || last.Step < step || last.Workers < 2 ||
			last.Steps != steps || last.Seconds <= 0 {
			t.Errorf("line %d after step %d: %s", i, step, line)
		}
	}
	if last.Step != steps || last.Loss == nil || last.Accuracy == nil || last.SamplesPer == nil {
		t.Fatalf("the last line lacks something: %s", lines[len(lines)-1])
	}
	if *last.Accuracy < accuracy {
		t.Errorf("accuracy %v after %d steps, want %v", *last.Accuracy, steps, accuracy)
	}
	if last.StepsLost == nil || *last.StepsLost+*last.SamplesLost+*last.SamplesRepeated != 0 ||
		!*last.ParametersEqual || len(last.RecoverMS) > 1 || len(last.JoinMS) > 2 {
		t.Errorf("not all is well: %s", lines[len(lines)-1])
	}
	if !testing.Short() &&
		(len(last.RecoverMS) != 1 || len(last.JoinMS) != 2 || last.Workers != 4) {
		t.Errorf("of 3 workers one is lost and two are gained, but it says %s", lines[len(lines)-1])
	}
	if _, err := os.Stat(filepath.Join(last.RunDir, "result.json")); err != nil {
		t.Error(err)
	}
}

// The outcome tells what was predicted of changes and what was measured.
func TestDemoChanges(t *testing.T) {
	s := demoStory{workers: 2, steps: 100}
	c := setting.Change{Number: 1, Phase: setting.Entered, Policy: "shares", Step: 50,
		To: "shares=133:67", Because: "rank 1 is slow",
		Predicted: setting.Band{Low: 1.1, Mid: 1.5, High: 2}}
	s.addChange(c)
	c.Phase, c.Measured = setting.Kept, 1.456
	s.addChange(c)
	c.Number, c.Phase, c.Measured = 2, setting.Reverted, 0.9
	s.addChange(c)
	c.Number, c.Phase, c.Measured = 3, setting.Entered, 0
	s.addChange(c)
	const moved = "shares equal -> 133:67: predicted 1.50x the samples a second (1.10–2.00), "
	o := s.outcome()
	text := o.String()
	if want := moved + "measured 1.46x, kept\n" + moved + "measured 0.90x, taken back\n" +
		moved + "not measured\n"; !strings.Contains(text, want) {
		t.Errorf("%s, want %s in it", text, want)
	}
}

// TestPace holds a worker up as long as it says, and longer after a signal.
func TestPace(t *testing.T) {
	var p pace
	for range 100 {
		p.sleepToPace(1, time.Hour) // it computes slowly, and never sleeps
	}
	if p.usual < 50*time.Minute || p.usual > time.Hour {
		t.Errorf("it takes %v for a sample as a rule", p.usual)
	}
	signals := make(chan os.Signal, 1)
	signals <- slowSignal
	if err := p.slowDown(context.Background(), signals); err != nil || !p.slow.Load() {
		t.Errorf("it is not slow after a signal: %v", err)
	}
}
