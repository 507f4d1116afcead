package recorded_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/recorded"
	"github.com/shoal-ml/shoal/world/scenario"
)

// version is that of shoal which has run the jobs in testdata.
const version = "0.1.0"

// readFiles returns the files of a run in testdata, or fails the test.
func readFiles(t testing.TB, name string) (f recorded.Files) {
	for file, text := range map[string]*[]byte{"job.json": &f.Job, "sense.jsonl": &f.Sense,
		"events.jsonl": &f.Events} {
		var err error
		if *text, err = os.ReadFile(filepath.Join("testdata", name, file)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// fataler is a test of package testing or rapid.
type fataler interface{ Fatal(args ...any) }

// playRun plays a run in testdata, or fails the test.
func playRun(t fataler, f recorded.Files, what string) *recorded.Report {
	r, err := recorded.Play(recorded.Read(f, version), what, 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Two real jobs, of two workers on a host and of three hosts of which one takes twice as long, are
// played as they were measured. Their steps slept 4 ms and 0.25 ms for each sample of a worker.
func TestRealRuns(t *testing.T) {
	for name, want := range map[string]struct {
		hosts string
		slow  bool
		size  int
	}{
		"one": {"h1 = rank 0, h2 = rank 1", false, 2},
		"two": {"h1 = n1, h2 = n2, h3 = n3", true, 3},
	} {
		f := readFiles(t, name)
		r := playRun(t, f, "")
		if len(r.Periods) != 2 || r.Job != name || r.Changes != 1 || r.Workers != want.size ||
			r.Missing != nil {
			t.Fatalf("%s: %+v", name, r)
		}
		for _, p := range r.Periods {
			if off := math.Abs(math.Log(p.Played / p.Median)); off > 0.12 || p.Size != want.size {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if strings.Join(r.Hosts, ", ") != want.hosts ||
			strings.Contains(r.Scenario, "slow h2 1.") != want.slow {
			t.Errorf("%s: hosts %v in\n%s", name, r.Hosts, r.Scenario)
		}
		s, err := scenario.Parse(r.Scenario, nil, "")
		if err != nil {
			t.Fatalf("%s:\n%s\n%v", name, r.Scenario, err)
		}
		h := s.Job.Hosts[0]
		if h.PerSample < 0.22e-3 || h.PerSample > 0.28e-3 || h.Fixed < 3e-3 || h.Fixed > 8e-3 {
			t.Errorf("%s: a worker takes %v and %v a sample", name, h.Fixed, h.PerSample)
		}
		again := playRun(t, f, "size=1, batch=64")
		one, err := json.Marshal(again)
		two, err2 := json.Marshal(playRun(t, f, "size=1, batch=64"))
		if err := errors.Join(err, err2); err != nil || !bytes.Equal(one, two) {
			t.Errorf("%s: it comes to something else when it is played again, %v", name, err)
		}
	}
}

// What-ifs of real jobs come to what the numbers of their programs say.
func TestWhatIfs(t *testing.T) {
	for _, c := range []struct {
		run, what string
		low, high float64 // of the factor by which a step takes longer
	}{
		{"one", "batch=512", 1.5, 2.2},
		{"one", "size=4", 0.45, 0.65},
		{"one", "slow h2=3x", 2.2, 3.2},
		{"two", "link h2=100Mbit", 2.5, 4.5},
		{"two", "slow h2=2x", 1.5, 2.1},
		{"two", "slow h1=1x", 0.9, 1.1},
		{"two", "link=100Gbit, batch=60", 0.25, 0.5},
	} {
		w := playRun(t, readFiles(t, c.run), c.what).WhatIf
		if w.Step.Mid < c.low || w.Step.Mid > c.high || w.Step.Low > w.Step.Mid ||
			w.Step.High < w.Step.Mid || !w.Goodput.IsKnown() || w.Step.High > 3*w.Step.Low {
			t.Errorf("%s: %+v", c.what, *w)
		}
	}
}

// Where work was divided unequally, the report says what it makes of that.
func TestShares(t *testing.T) {
	f := readFiles(t, "one")
	f.Events = append(f.Events, `{"what":"change","change":{"phase":"entered","to":"shares=2:1"}}`+
		"\n"...)
	r := playRun(t, f, "")
	if r.Changes != 2 || !strings.Contains(strings.Join(r.Notes, "; "), "unequal shares") {
		t.Errorf("%d changes, %q", r.Changes, r.Notes)
	}
}

// What cannot be asked is refused in words.
func TestWhatIsRefused(t *testing.T) {
	for _, c := range []struct{ run, what, want string }{
		{"one", "size=0", "a size is a number of workers"},
		{"one", "size=99999", "up to 10000 hosts are played"},
		{"one", "batch=x", "a batch is a number of samples"},
		{"one", "link=1Gbit", "the job was on one host"},
		{"one", "policy=batch", "policies decide in scenarios"},
		{"one", "sise=3", "did you mean size?"},
		{"one", "slow h9=2x", "there are 2 hosts"},
		{"two", "slow h2=2x3", `"2x3" is not how many times slower`},
		{"two", "slow h2=2x 3x", `"3x" is too much`},
		{"two", "link h2=1Gbyte", "is not a rate"},
		{"two", "", ""},
	} {
		_, err := recorded.Play(recorded.Read(readFiles(t, c.run), version), c.what, 1)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, expected one with %q", c.what, err, c.want)
		}
	}
}

// Where steps with one number of samples were seen only, the report says so, and the band has all
// that can be.
func TestOneBatch(t *testing.T) {
	f := readFiles(t, "one")
	f.Sense, _, _ = bytes.Cut(f.Sense, []byte("\n"))
	r := playRun(t, f, "batch=128")
	if !strings.Contains(strings.Join(r.Notes, "; "), "only steps with 32 samples a worker") ||
		r.WhatIf.Step.Low > 1.1 || r.WhatIf.Step.High < 1.85 {
		t.Errorf("%q, %+v", r.Notes, *r.WhatIf)
	}
	if r.WhatIf.Goodput.IsKnown() && !strings.Contains(r.Scenario, "noise") {
		t.Errorf("goodput without a noise scale: %+v", *r.WhatIf)
	}
}

// Of a worker that was alone nobody knows what more of them exchange, and the report says so.
func TestWorkerThatWasAlone(t *testing.T) {
	f := recordJob(t, "hosts 1\ngradients 10MB\ncompute 5ms + 1ms/sample\n"+
		"data 100000 batch 96 range 16-4096\n", 96, 240)
	if r := playRun(t, f, "size=4"); !strings.Contains(strings.Join(r.Notes, "; "), "is alone") {
		t.Errorf("%q, %+v", r.Notes, *r.WhatIf)
	}
	if r := playRun(t, readFiles(t, "two"), ""); strings.Contains(fmt.Sprint(r.Notes), "is alone") {
		t.Errorf("of three workers: %q", r.Notes)
	}
}

// What is missing or broken is said, and the rest is shown.
func TestMissing(t *testing.T) {
	whole := readFiles(t, "one")
	long := `{"step":1,"steps":1,"size":1,"x":"` + strings.Repeat("x", 10<<20) + "\"}\n"
	for name, c := range map[string]struct {
		change  func(f *recorded.Files)
		want    string
		nothing bool
	}{
		"no job": {func(f *recorded.Files) { f.Job = nil }, "there is no job.json", false},
		"no ledger": {func(f *recorded.Files) { f.Events = nil }, "there is no events.jsonl",
			false},
		"no sense": {func(f *recorded.Files) { f.Sense = nil }, "there is no sense.jsonl", true},
		"empty": {func(f *recorded.Files) { f.Sense = []byte{} }, "nothing that can be read",
			true},
		"foreign": {func(f *recorded.Files) {
			f.Job, f.Sense, f.Events = []byte("PNG"), []byte("a\nb\n"), []byte("c\nd\n")
		}, "2 lines of sense.jsonl cannot be read and are left out, the first is line 1", true},
		"torn": {func(f *recorded.Files) { f.Sense = f.Sense[:len(f.Sense)-9] },
			"the last line of sense.jsonl is torn", false},
		"long": {func(f *recorded.Files) { f.Sense = append([]byte(long), f.Sense...) },
			"line 1: a line of 104857", false},
		"newer": {func(f *recorded.Files) {
			f.Job = bytes.ReplaceAll(f.Job, []byte(version), []byte("9.0"))
		}, "the run is of shoal 9.0", false},
		"one step": {func(f *recorded.Files) {
			f.Sense = []byte("{\"step\":1,\"steps\":1,\"generation\":1,\"size\":1}\n")
		}, "no step was measured that no change", true},
		"huge": {func(f *recorded.Files) {
			f.Sense = []byte(`{"step":9,"steps":9,"generation":1,"size":900000,` +
				`"seconds":{"p10":1,"median":1,"p90":1}}` + "\n")
		}, "it cannot be played", true},
	} {
		f := whole
		c.change(&f)
		r, err := recorded.Play(recorded.Read(f, version), "", 1)
		if missing := strings.Join(r.Missing, "; "); !strings.Contains(missing, c.want) ||
			errors.Is(err, recorded.ErrNothing) != c.nothing || (err != nil) != c.nothing {
			t.Errorf("%s: %.300q, error %v", name, missing, err)
		}
		if !c.nothing && len(r.Periods) == 0 ||
			f.Job != nil && name != "foreign" && r.Job != "one" {
			t.Errorf("%s: what is there is not shown: %+v", name, r)
		}
	}
}

// recordJob plays a job in virtual time by some batches, and returns what would be kept of it.
func recordJob(t fataler, text string, batches ...uint64) (f recorded.Files) {
	s, err := scenario.Parse(text, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	w, err := job.New(s.Job)
	if err != nil {
		t.Fatal(err)
	}
	var r history.Recorder
	// keep keeps a row; nil = there is none.
	keep := func(row *history.Row) {
		if row != nil {
			row.Noise = history.NewNoise(w.Observation().Noise)
			f.Sense = append(f.Sense, row.Encode()...)
		}
	}
	made := uint64(0) // optimizer steps
	for _, batch := range batches {
		if err := w.Change(setting.Setting{Batch: batch}); err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			step, _ := w.Step()
			if n := float64(step.Round); n > 1 { // an agent tells of optimizer steps
				step.Seconds, step.Samples = step.Seconds/n, step.Samples/uint64(n)
			}
			made += step.Steps()
			over, began := r.Add(step.StepSample, made)
			if began {
				var hosts []history.Host
				for rank := range step.Size {
					if n := step.Size / step.Hosts; rank%n == 0 {
						hosts = append(hosts, history.Host{Name: fmt.Sprint("n", rank/n)})
					}
					h := &hosts[len(hosts)-1]
					h.Ranks = append(h.Ranks, rank)
				}
				r.Describe(hosts, &history.Data{Samples: s.Job.Data.Samples,
					First: s.Job.Data.Batch})
			}
			if r.SetGradientBytes(uint64(s.Job.Gradients)); i%10 == 9 {
				r.AddSplit(w.Observation().Split, 0, false)
			}
			keep(over)
		}
		keep(r.EndRow())
	}
	return f
}

// Whatever a job is, what is said of another batch and another size is near what comes of it.
func TestPredictions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// from draws a number from low to high, evenly in its logarithm.
		from := func(name string, low, high float64) float64 {
			return low * math.Pow(high/low, rapid.Float64Range(0, 1).Draw(t, name))
		}
		hosts := rapid.IntRange(2, 6).Draw(t, "hosts")
		text := func(hosts int, batch uint64) string {
			return fmt.Sprintf("hosts %d cable 1Gbit\ndata 100000 batch %d range 16-4096\n"+
				"run 400 steps\n", hosts, batch)
		}
		rest := fmt.Sprintf("compute %.3fms + %.4fms/sample sd %d%%\ngradients %.0fkB\n",
			from("fixed", 1, 100), from("each", 0.05, 2), rapid.IntRange(0, 10).Draw(t, "sd"),
			from("gradients", 10, 10_000))
		f := recordJob(t, text(hosts, 96)+rest, 96, 240)
		type question struct{ what, same string } // same is the job in which it is so
		q := rapid.SampledFrom([]question{
			{"batch=480", text(hosts, 480)},
			{fmt.Sprintf("size=%d", hosts+2), text(hosts+2, 240)},
			{"batch=144, slow h1=2x", text(hosts, 144) + "at step 0 slow h1 2x\n"},
			{"size=4, link h2=100Mbit", text(4, 240) + "at step 0 cable h2 100Mbit\n"},
		}).Draw(t, "question")
		r := playRun(t, f, q.what)
		want := medianOf(t, q.same+rest)
		if off := math.Log(r.WhatIf.StepSeconds.Mid / want); math.Abs(off) > 0.25 {
			t.Errorf("%s\n%s: %v s, it takes %v s; played as\n%s%q", text(hosts, 96)+rest, q.what,
				r.WhatIf.StepSeconds, want, r.Scenario, r.Notes)
		}
	})
}

// Hosts with several workers stay such, and a size is a number of workers.
func TestSeveralWorkersOfAHost(t *testing.T) {
	const rest = "compute 5ms + 1ms/sample sd 3%\ngradients 1MB\n" +
		"data 100000 batch 96 range 16-4096\n"
	f := recordJob(t, "hosts 2 workers 2 cable 1Gbit\nat step 0 slow h2 2x\n"+rest, 96, 240)
	r := playRun(t, f, "size=6")
	if !strings.HasPrefix(r.Scenario, "hosts 2 workers 2 cable ") ||
		strings.Join(r.Hosts, ", ") != "h1 = n0, h2 = n1" || r.WhatIf.Size != 6 {
		t.Errorf("hosts %v, size %d in\n%s", r.Hosts, r.WhatIf.Size, r.Scenario)
	}
	want := medianOf(t, "hosts 3 workers 2 cable 1Gbit\nat step 0 slow h2 2x\n"+
		strings.ReplaceAll(rest, "batch 96", "batch 240"))
	if off := math.Log(r.WhatIf.StepSeconds.Mid / want); math.Abs(off) > 0.15 {
		t.Errorf("%v s, it takes %v s; played as\n%s", r.WhatIf.StepSeconds, want, r.Scenario)
	}
	if _, err := recorded.Play(recorded.Read(f, version), "size=5", 1); err == nil ||
		!strings.Contains(err.Error(), "have 2 workers each: a size is a multiple") {
		t.Errorf("a size of 5: %v", err)
	}
}

// Where steps or rounds take longer than a row, the hosts of the job are known too, though the row
// that tells of them has no step that nothing has disturbed.
func TestHostsOfLongSteps(t *testing.T) {
	f := recordJob(t, "hosts 2 workers 2 cable 1Gbit\nat step 0 slow h2 2x\ngradients 1MB\n"+
		"compute 2s + 10ms/sample sd 3%\ndata 100000 batch 96 range 16-4096 sync local/8\n",
		96, 240)
	r := playRun(t, f, "link h2=100Mbit")
	if !strings.HasPrefix(r.Scenario, "hosts 2 workers 2 cable ") ||
		strings.Join(r.Hosts, ", ") != "h1 = n0, h2 = n1" {
		t.Errorf("hosts %v in\n%s", r.Hosts, r.Scenario)
	}
}

// Who is slow is told of the members among whom that was measured: others have the ranks since.
func TestSlowHostOfOtherMembers(t *testing.T) {
	var f recorded.Files
	for i, hosts := range []string{"abc", "bcd"} {
		row := history.Row{Step: 120, Steps: 20, Generation: uint64(i) + 1, Size: 3, Batch: 96,
			Seconds: &history.Quantiles{P10: 0.99, Median: 1, P90: 1.01},
			Slack:   []float64{0.5, 0.5, 0.5}, Gradients: 1 << 20,
			Split: &history.Split{Compute: 1.7 / 3, Exposed: 0.1}}
		if i == 0 {
			row.Step, row.Steps = 100, 100
		}
		row.Slack[strings.Index(hosts, "c")] = 0
		for rank, name := range hosts {
			row.Hosts = append(row.Hosts, history.Host{Name: string(name), Ranks: []int{rank}})
		}
		f.Sense = append(f.Sense, row.Encode()...)
	}
	r := playRun(t, f, "")
	if strings.Join(r.Hosts, ", ") != "h1 = b, h2 = c, h3 = d" ||
		!strings.Contains(r.Scenario, "slow h2 2.25x") || strings.Contains(r.Scenario, "slow h3") {
		t.Errorf("hosts %v in\n%s", r.Hosts, r.Scenario)
	}
}

// A run in rounds is played in rounds, and what comes of other ones is near what comes of them.
func TestRounds(t *testing.T) {
	const rest = "compute 20ms + 0.5ms/sample sd 10%\ngradients 20MB\n"
	// text returns the lines of a job.
	text := func(sync string) string {
		return "hosts 4 cable 1Gbit\ndata 100000 batch 96 range 16-4096 sync " + sync +
			"\nrun 400 steps\n" + rest
	}
	for _, from := range []string{"ssgd", "local/8"} {
		f := recordJob(t, text(from), 96, 240)
		r := playRun(t, f, "")
		for _, p := range r.Periods {
			if off := math.Log(p.Played / p.Median); math.Abs(off) > 0.05 ||
				(p.Round > 1) != (from != "ssgd") {
				t.Errorf("%s: %+v, as\n%s", from, p, r.Scenario)
			}
		}
		for _, to := range []string{"ssgd", "local/16", "local/4"} {
			want := medianOf(t, strings.ReplaceAll(text(to), "batch 96", "batch 240"))
			got := playRun(t, f, "sync="+to).WhatIf.StepSeconds.Mid
			if off := math.Log(got / want); math.Abs(off) > 0.1 {
				t.Errorf("%s to %s: %v s, it takes %v s", from, to, got, want)
			}
		}
	}
	f := recordJob(t, text("ssgd"), 240)
	for what, want := range map[string]string{"sync=auto": "name a way",
		"sync=locl": "did you mean", "sync=local/x": "a number of steps"} {
		if _, err := recorded.Play(recorded.Read(f, version), what, 1); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// medianOf returns the median of the seconds of the steps of a scenario.
func medianOf(t fataler, text string) float64 {
	s, err := scenario.Parse(text, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	w, err := job.New(s.Job)
	if err != nil {
		t.Fatal(err)
	}
	var seconds []float64
	for range 200 {
		step, _ := w.Step()
		seconds = append(seconds, step.Seconds/float64(max(step.Round, 1)))
	}
	slices.Sort(seconds)
	return seconds[len(seconds)/2]
}

// Whatever bytes a run has, it is read and played, and all numbers are numbers.
func FuzzRun(f *testing.F) {
	for _, name := range []string{"one", "two"} {
		run := readFiles(f, name)
		f.Add(run.Job, run.Sense, run.Events, "batch=64")
	}
	f.Add([]byte("{}"), []byte(`{"step":9,"steps":9,"size":2,"seconds":{"p10":1,"median":1,`+
		`"p90":1}}`), []byte("{}"), "size=2, slow h1=2x")
	f.Fuzz(func(t *testing.T, job, sense, events []byte, what string) {
		r := recorded.Read(recorded.Files{Job: job, Sense: sense, Events: events}, version)
		for _, row := range r.Rows {
			if row.Size > 32 {
				return // takes too long to play often
			}
		}
		if strings.Contains(what, "size") && len(what) > 8 {
			return
		}
		report, err := recorded.Play(r, what, 1)
		if err != nil {
			return
		}
		if _, err := json.Marshal(report); err != nil {
			t.Errorf("%+v: %v", report, err)
		}
	})
}
