package job_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
)

// route is a ring, whatever the cables are.
var route = collective.Route{Strategy: collective.Ring{}, Piece: 256 << 10, Streams: 1}

// gigabit is the seconds for a byte on a cable of 1 Gbit/s.
const gigabit = 8 / 1e9

// config returns a job of equal hosts with one worker each, on a machine of its own, and a batch
// that may change from 32 to 1024.
func config(t testing.TB, hosts int, samples, batch uint64) job.Config {
	data, err := cursor.New(samples, batch, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	c := job.Config{Seed: 1, Network: cost.Default(), Gradients: 10e6, Data: data,
		Levers: setting.Levers{Batch: setting.Range{From: 32, To: 1024}}}
	for i := range hosts {
		c.Cores = append(c.Cores, 2)
		c.Hosts = append(c.Hosts, job.Host{Machine: i, Workers: 1, Fixed: 0.03, PerSample: 0.0002,
			Cable: gigabit})
	}
	return c
}

// newWorld returns a world, or fails the test.
func newWorld(t testing.TB, c job.Config) *job.World {
	w, err := job.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// run has a world make so many steps, or fails the test.
func run(t testing.TB, w *job.World, steps int) (list []job.Step) {
	for range steps {
		s, on := w.Step()
		if !on {
			t.Fatalf("the job ended after %d steps", len(list))
		}
		list = append(list, s)
	}
	return list
}

// A step takes what its slowest worker takes and the communication that is not hidden; what happens
// changes that from its step on.
func TestSecondsOfSteps(t *testing.T) {
	c := config(t, 4, 100_000, 128)
	c.Hosts[1].Wait = 0.002
	ring := cost.Default()
	cables := []float64{gigabit, gigabit, gigabit, gigabit}
	at := func() float64 { return ring.AllReduceSecondsAtScale(cables, route, c.Gradients) }
	c.Route = route
	before := at()
	cables[2] *= 10
	after := at()
	c.Events = []job.Event{{Step: 1, What: job.Cable, Host: 2, Value: cables[2]},
		{Step: 2, What: job.Slow, Host: 3, Value: 3},
		{Step: 3, What: job.Slow, Host: 3, Value: 1, Text: "h4 recovers"}}
	c.Costs.Change = 0.5
	compute := 0.03 + 32*0.0002
	w := newWorld(t, c)
	for i, want := range []float64{compute + 0.002 + before, compute + 0.002 + after,
		3*compute + after, compute + 0.002 + after, compute + 32*0.0002 + 0.002 + after + 0.5} {
		if i == 4 {
			if err := w.Change(setting.Setting{Number: 1, Batch: 256}); err != nil {
				t.Fatal(err)
			}
		}
		s := run(t, w, 1)[0]
		if math.Abs(s.Seconds-want) > 1e-12 || s.Changing > 0 != (i == 4) {
			t.Errorf("step %d takes %v, want %v", i, s.Seconds, want)
		}
		if i == 3 && (len(s.Events) != 1 || s.Events[0].Text != "h4 recovers") {
			t.Errorf("before step 3 there was %+v", s.Events)
		}
	}
	o := w.Observation()
	if o.Setting.Batch != 256 || o.Setting.Number != 1 || o.First != 128 || o.Size != 4 ||
		o.Step != 5 || o.Noise.Known {
		t.Errorf("observed %+v", o)
	}
	if _, is := o.Steps.Newest(); !is || o.Split.Data != 0.0005 || o.Split.Slack[3] == 0 {
		t.Errorf("observed %+v", o.Split)
	}
	c.Hidden, c.Events = 1, nil
	if s := run(t, newWorld(t, c), 1)[0]; s.Exposed != max(0, before-compute-0.002) {
		t.Errorf("%v s are exposed of %v behind %v of compute", s.Exposed, before, compute)
	}
}

// Workers that want more processors than their machine has compute slower by as much.
func TestHostsShareProcessors(t *testing.T) {
	c := config(t, 4, 100_000, 128)
	c.Gradients = 0
	alone := run(t, newWorld(t, c), 1)[0].Seconds
	for i := range c.Hosts {
		c.Hosts[i].Machine, c.Hosts[i].Processors = 0, 1.5
	}
	if got := run(t, newWorld(t, c), 1)[0].Seconds / alone; math.Abs(got-3) > 1e-9 {
		t.Errorf("6 busy processors on 2: %v times as long, want 3", got)
	}
}

// Whatever happens, each sample of an epoch that is over has counted exactly once.
func TestEachSampleOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const samples = 997
		counts := map[uint64][]int{}
		c := job.Config{Cores: []float64{1}, Costs: job.Costs{Join: 0.1},
			Levers: setting.Levers{Batch: setting.Range{From: 2, To: 1024}}}
		c.Data, _ = cursor.New(samples, 64, 1, true)
		hosts := rapid.IntRange(1, 6).Draw(t, "hosts")
		for range hosts {
			c.Hosts = append(c.Hosts, job.Host{Workers: rapid.IntRange(1, 3).Draw(t, "workers"),
				Fixed: 0.1, Out: rapid.Bool().Draw(t, "out"), Residuals: job.ResidualFactors(0.1)})
		}
		c.Hosts[0].Out = false
		for range rapid.IntRange(0, 20).Draw(t, "events") {
			if hosts == 1 { // the first host stays, so that the job goes on
				break
			}
			c.Events = append(c.Events, job.Event{Value: 1,
				Step:  uint64(rapid.IntRange(0, 100).Draw(t, "step")),
				At:    rapid.Float64Range(0, 10).Draw(t, "at"),
				Timed: rapid.Bool().Draw(t, "timed"),
				What:  job.What(rapid.IntRange(int(job.Slow), int(job.Disk)).Draw(t, "what")),
				Host:  rapid.IntRange(1, hosts-1).Draw(t, "host")})
		}
		c.Audit = func(epoch uint64, spans []cursor.Span) {
			if counts[epoch] == nil {
				counts[epoch] = make([]int, samples)
			}
			for _, s := range spans {
				for i := s.From; i < s.To; i++ {
					counts[epoch][i]++
				}
			}
		}
		w, err := job.New(c)
		if err != nil {
			t.Fatal(err)
		}
		for range 150 {
			if batch := rapid.Uint64Range(0, 500).Draw(t, "batch"); batch > 300 || batch == 2 {
				if err := w.Change(setting.Setting{Batch: batch}); err != nil {
					t.Fatal(err)
				}
			}
			if _, on := w.Step(); !on {
				t.Fatal("the job ended, though the first host stayed")
			}
		}
		for epoch, list := range counts {
			for i, n := range list {
				if n > 1 || n == 0 && epoch < w.Cursor().Epoch {
					t.Fatalf("sample %d of epoch %d counts %d times", i, epoch, n)
				}
			}
		}
	})
}

// A lost host takes its samples of one step, and a host with a notice takes none. Nobody is left
// when the last one is lost, unless another one joins later.
func TestHostsComeAndGo(t *testing.T) {
	c := config(t, 3, 100_000, 120)
	c.Hosts[2].Out = true
	c.Costs = job.Costs{Join: 1, Release: 2, Loss: 4}
	c.Events = []job.Event{{Step: 1, What: job.Lose, Host: 1}, {Step: 3, What: job.Join, Host: 1},
		{Step: 4, What: job.Notice, Host: 1, Value: 9}, {Step: 5, What: job.Lose, Host: 0},
		{At: 100, Timed: true, What: job.Join, Host: 2}}
	w := newWorld(t, c)
	type seen struct {
		Size       int
		Samples    uint64
		Pause      float64
		Generation uint64
	}
	var got []seen
	for _, s := range run(t, w, 6) {
		got = append(got, seen{s.Size, s.Samples, s.Pause, s.Generation})
	}
	want := []seen{{2, 120, 0, 1}, {2, 60, 4, 1}, {1, 120, 0, 2}, {2, 120, 1, 3}, {1, 120, 2, 4},
		{1, 120, 5, 6}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got): %s", diff)
	}
	if w.Now() < 100 {
		t.Errorf("the job goes on at %v, before anybody has joined", w.Now())
	}
	c.Events = c.Events[:4]
	w = newWorld(t, c)
	run(t, w, 5)
	if _, on := w.Step(); on {
		t.Error("the job goes on without hosts")
	}
}

// Checkpoints take their time, and are needed only when nobody is left who has the state: then a
// new run goes on from the newest one that is written, with its setting, and knows nothing else.
func TestCheckpoints(t *testing.T) {
	c := config(t, 2, 100_000, 120)
	c.Levers.Save, c.Gradients = true, 0
	c.Hosts[0].PerSample, c.Hosts[1].PerSample = 0, 0
	c.Hosts[0].Fixed, c.Hosts[1].Fixed = 1, 1
	c.Costs = job.Costs{Save: 0.5, Write: 3}
	c.Events = []job.Event{{Step: 44, What: job.Lose, Host: 0}, {Step: 52, What: job.Lose, Host: 1},
		{At: 100, Timed: true, What: job.Join, Host: 0}}
	w := newWorld(t, c)
	run(t, w, 5)
	if err := w.Change(setting.Setting{Number: 1, Save: 10, Batch: 60}); err != nil {
		t.Fatal(err)
	}
	var made []uint64 // steps before which there was a checkpoint
	var before job.Step
	for _, s := range run(t, w, 47) {
		if s.Saving > 0 {
			made = append(made, s.StepSample.Step-1)
		}
		before = s
	}
	if want := []uint64{10, 20, 30, 40, 50}; !slices.Equal(made, want) || before.GoneBack {
		t.Errorf("checkpoints after %v steps, want %v", made, want)
	}
	saves := w.Observation().Saves
	if saves.Count == 0 || math.Abs(saves.Cost-0.5) > 1e-9 || saves.Writing != 3 {
		t.Errorf("measured %+v", saves)
	}
	at := w.Cursor()
	s := run(t, w, 1)[0] // the checkpoint after 50 steps was not written yet
	o := w.Observation()
	// Two of the samples of a host that was lost were dealt out again, in whole batches of 60.
	lost := at.Committed() - w.Cursor().Committed() + s.Samples
	if !s.GoneBack || s.StepSample.Step != 53 || s.Size != 1 || lost < 11*60 || lost > 12*60 ||
		o.Setting.Save != 10 || o.Setting.Batch != 60 || o.Saves.Count != 0 ||
		o.Now > 2*sense.Second {
		t.Errorf("gone back by %d samples to %+v, observed %+v", lost, s, o)
	}
	run(t, w, 5)
	if list := w.Observation().Steps.Between(0, 60); len(list) != 5 || list[0].Step != 54 {
		t.Errorf("the new run remembers the steps %+v", list)
	}
	c.Levers.Save = false
	w = newWorld(t, c)
	if err := w.Change(setting.Setting{Save: 10}); err == nil {
		t.Error("a job without checkpoints takes steps between them")
	}
	for _, s := range run(t, w, 60) {
		if s.Saving > 0 || s.GoneBack {
			t.Errorf("a job without checkpoints has one before step %d", s.StepSample.Step)
		}
	}
}

// Hosts tell what memory their workers need, and one whose workers need more than there is is lost.
func TestMemory(t *testing.T) {
	c := config(t, 2, 100_000, 120)
	for i := range c.Hosts {
		c.Hosts[i].Memory, c.Hosts[i].MemoryPerSample, c.Hosts[i].Room = 100, 1, 200
	}
	w := newWorld(t, c)
	run(t, w, 3)
	told := machine.Host{Name: "h2", Memory: []machine.Memory{{Used: 160, Samples: 60, Room: 200}}}
	if m := w.Observation().Machines; len(m) != 2 || !cmp.Equal(m[1], told) {
		t.Errorf("hosts tell %+v", m)
	}
	if err := w.Change(setting.Setting{Number: 1, Shares: []uint16{9, 1}}); err != nil {
		t.Fatal(err)
	}
	s := run(t, w, 1)[0]
	if len(s.Events) != 1 || s.Events[0].Text != "h1 is out of memory" || s.Samples != 12 {
		t.Errorf("a host with 108 samples: %+v", s)
	}
	if s, on := w.Step(); on { // the other one would have all of them
		t.Errorf("the job goes on: %+v", s)
	}
}

// Two runs differ by what is changed alone: the same workers are slow in the same steps.
func TestWhatIfsShareNoise(t *testing.T) {
	c := config(t, 8, 100_000, 128)
	for i := range c.Hosts {
		c.Hosts[i].PerSample, c.Hosts[i].Residuals = 0, job.ResidualFactors(0.3)
	}
	one := run(t, newWorld(t, c), 50)
	c.Data = c.Data.WithBatch(512)
	for i := range c.Hosts {
		c.Hosts[i].Cable *= 2
	}
	two := run(t, newWorld(t, c), 50)
	c.Seed = 2
	three := run(t, newWorld(t, c), 50)
	same := 0
	for i := range one {
		if a, b := one[i].Seconds-one[i].Exposed, two[i].Seconds-two[i].Exposed; math.Abs(a-b) >
			1e-12 {
			t.Fatalf("step %d computes for %v, and with other cables for %v", i, a, b)
		}
		if two[i].Seconds == three[i].Seconds {
			same++
		}
	}
	if same > 5 {
		t.Errorf("%d of 50 steps are the same with another seed", same)
	}
}

// What MeanSeconds returns is what steps take in the mean.
func TestMeanSeconds(t *testing.T) {
	c := config(t, 8, 1_000_000, 128)
	for i := range c.Hosts {
		c.Hosts[i].Residuals = job.ResidualFactors(0.2)
	}
	w := newWorld(t, c)
	want := w.MeanSeconds(512, false)
	if err := w.Change(setting.Setting{Batch: 512}); err != nil {
		t.Fatal(err)
	}
	got := 0.0
	for _, s := range run(t, w, 500) {
		got += s.Seconds / 500
	}
	if got < 0.97*want || got > 1.03*want {
		t.Errorf("steps take %v in the mean, want %v", got, want)
	}
	if err := w.Change(setting.Setting{Batch: 2048}); err == nil {
		t.Error("a batch beyond the range is taken")
	}
}

// Work is divided by the shares of the setting, which members take along; by ideal shares all
// compute for as long.
func TestSharesOfWork(t *testing.T) {
	c := config(t, 3, 100_000, 120)
	c.Gradients = 0
	c.Events = []job.Event{{Step: 0, What: job.Slow, Host: 1, Value: 2},
		{Step: 2, What: job.Lose, Host: 0}}
	w := newWorld(t, c)
	even := run(t, w, 1)[0]
	if err := w.Change(setting.Setting{Shares: []uint16{1, 2}}); err == nil {
		t.Error("two shares for three workers are taken")
	}
	if err := w.Change(setting.Setting{Number: 1, Shares: []uint16{4, 2, 6}}); err != nil {
		t.Fatal(err)
	}
	s := run(t, w, 1)[0]
	if want := 0.03 + 60*0.0002; math.Abs(s.Seconds-max(want, 2*(0.03+20*0.0002))) > 1e-12 ||
		even.Deal != 0 || s.Deal != sense.DealOf([]uint16{4, 2, 6}) {
		t.Errorf("a step by shares takes %v, one without %v", s, even)
	}
	o := w.Observation()
	if len(o.Split.Slack) != 3 || o.Split.Slack[1] != 0 || o.Hosts[1] != "h2" ||
		math.Abs(o.Split.Seconds-s.Seconds) > 1e-12 {
		t.Errorf("observed %+v of %v", o.Split, o.Hosts)
	}
	run(t, w, 2)
	if got := w.Observation().Setting.Shares; !slices.Equal(got, []uint16{2, 6}) {
		t.Errorf("those who stay have the shares %v", got)
	}
	c.Events = c.Events[:1]
	c.Hosts[1].Fixed, c.Hosts[0].Fixed, c.Hosts[2].Fixed = 0, 0, 0
	w = newWorld(t, c)
	run(t, w, 1)
	if got, want := w.MeanSeconds(120, true), 48*0.0002; math.Abs(got-want) > 1e-9 {
		t.Errorf("by ideal shares a step takes %v, want %v", got, want)
	}
}

// The progress of a fixed batch is what its efficiency says, and the estimate of the noise scale,
// of which the workers tell, contains the truth.
func TestProgressAndNoise(t *testing.T) {
	c := config(t, 4, 100_000, 128)
	c.Data = c.Data.WithBatch(512)
	c.Noise = job.Noise{From: 600, To: 600, Target: 1e5}
	w := newWorld(t, c)
	last := run(t, w, 150)[149]
	if want := float64(150 * 512); math.Abs(last.Progress-want) > 1e-6*want {
		t.Errorf("progress %v at the batch that the program states, want %v", last.Progress, want)
	}
	if n := w.Observation().Noise; !n.Known || !n.Scale.Contains(600) {
		t.Errorf("noise is estimated as %+v", n)
	}
	before := last.Progress
	if err := w.Change(setting.Setting{Batch: 1024, Number: 1}); err != nil {
		t.Fatal(err)
	}
	last = run(t, w, 1)[0]
	if got, want := last.Progress-before, 1024*(600.0+512)/(600+1024); math.Abs(got-want) > 1e-9 {
		t.Errorf("a step of 1024 brings %v, want %v", got, want)
	}
	c.Noise.To = 4000
	w = newWorld(t, c)
	for s := run(t, w, 1)[0]; ; s, _ = w.Step() {
		if s.Progress >= c.Noise.Target {
			if math.Abs(s.Noise-4000) > 50 {
				t.Errorf("the noise scale is %v at the target, want 4000", s.Noise)
			}
			break
		}
	}
	c.Hosts = c.Hosts[:1]
	w = newWorld(t, c)
	run(t, w, 50)
	if n := w.Observation().Noise; n.Known {
		t.Errorf("one worker knows the noise: %+v", n)
	}
}

// Between two events a step takes no memory, and nothing is computed anew but the draws.
func TestNothingIsAllocatedBetweenEvents(t *testing.T) {
	c := config(t, 100, 1e9, 3200)
	c.Noise = job.Noise{From: 600, To: 4000, Target: 1e9}
	c.Events = []job.Event{{Step: 200, What: job.Lose, Host: 3}}
	w := newWorld(t, c)
	run(t, w, 300) // the estimator of the noise has all its blocks then
	before := w.Conditions()
	if before != 3 {
		t.Errorf("the times of steps were found %d times; want 3: at the start, when a host is "+
			"lost, and when it has left", before)
	}
	if n := testing.AllocsPerRun(200, func() { w.Step() }); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
	if w.Conditions() != before {
		t.Error("the times of steps were found anew without an event")
	}
}

// What no job is has an error.
func TestNoJob(t *testing.T) {
	for name, spoil := range map[string]func(c *job.Config){
		"hosts":   func(c *job.Config) { c.Hosts = nil },
		"data":    func(c *job.Config) { c.Data = cursor.Cursor{} },
		"machine": func(c *job.Config) { c.Hosts[1].Machine = 2 },
		"cores":   func(c *job.Config) { c.Cores[1] = 0 },
		"workers": func(c *job.Config) { c.Hosts[1].Workers = 0 },
		"compute": func(c *job.Config) { c.Hosts[1].Fixed = math.NaN() },
		"noise":   func(c *job.Config) { c.Noise.From = 1 },
		"event":   func(c *job.Config) { c.Events = []job.Event{{Host: 2}} },
	} {
		c := config(t, 2, 100, 10)
		spoil(&c)
		if _, err := job.New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// BenchmarkWorld measures 10,000 steps of a job on 1,000 hosts.
func BenchmarkWorld(b *testing.B) {
	c := config(b, 1000, 1e9, 32_000)
	for i := range c.Hosts {
		c.Hosts[i].Residuals = job.ResidualFactors(0.05)
	}
	c.Noise = job.Noise{From: 600, To: 4000, Target: 1e9}
	for b.Loop() {
		run(b, newWorld(b, c), 10_000)
	}
}
