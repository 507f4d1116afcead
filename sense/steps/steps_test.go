package steps_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/sense/steps"
)

// send takes the note of a host and gives it to a job, by way of its bytes. A note that is refused
// fails the test.
func send(t *testing.T, j *steps.Job, name string, h *steps.Host) {
	t.Helper()
	b := h.TakeNote().Encode()
	n, err := steps.Parse(b)
	if err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	j.Add(name, n)
}

// Two hosts with two workers each: the split is what the workers have told and waited, and slack
// shows which rank is slow, though only its last call tells of it.
func TestSplit(t *testing.T) {
	testSplit(t, false)
	testSplit(t, true)
}

// testSplit is TestSplit where agents see how long workers wait, or only what these tell, since
// gradients go from device to device.
func testSplit(t *testing.T, told bool) {
	t.Helper()
	var j steps.Job
	var hosts [2]steps.Host
	for i := range 40 {
		// rank 2 posts last, 3 ms before the commit; others have waited 30 ms longer
		wait := [4]float64{0.033, 0.033, 0.003, 0.033}
		for h := range hosts {
			var workers []steps.Worker
			for r := 2 * h; r < 2*h+2; r++ {
				w := steps.Worker{Rank: r, Wait: wait[r], Data: 0.004,
					Compute: 0.094 - wait[r], Optimizer: 0.002, Loss: float64(1 + r)}
				if told {
					w.Wait = -1
				}
				workers = append(workers, w)
			}
			hosts[h].Add(steps.Step{Generation: 3, Size: 4, Seconds: 0.1, Workers: workers})
		}
		if i%10 == 9 {
			send(t, &j, "h0", &hosts[0])
			send(t, &j, "h1", &hosts[1])
		}
	}
	want := sense.Split{Data: 0.004, Compute: 0.0685, Exposed: 0.003, Optimizer: 0.002,
		Seconds: 0.1, Slack: []float64{0.03, 0.03, 0, 0.03}}
	near := cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) < 1e-6 })
	if diff := cmp.Diff(want, j.Split(3, 0), near); diff != "" {
		t.Errorf("the split is another one (-want +got): %s", diff)
	}
	if loss, known := j.Loss(); !known || math.Abs(loss-2.5) > 1e-9 {
		t.Errorf("the loss is %v, known %v, expected 2.5", loss, known)
	}

	// other members: what is known of the old ones is forgotten, and slack is known when all have
	// told
	if got := j.Split(4, 0); got.Slack != nil || got.Seconds != 0 {
		t.Errorf("before anybody has told of these members: %+v", got)
	}
	hosts[0].Add(steps.Step{Generation: 4, Size: 2, Seconds: 0.1,
		Workers: []steps.Worker{{Rank: 0, Wait: 0.01}}})
	send(t, &j, "h0", &hosts[0])
	got := j.Split(4, 0)
	if got.Slack != nil || math.Abs(got.Exposed-0.01) > 1e-6 || got.Data != 0 {
		t.Errorf("after a change of members: %+v", got)
	}
	hosts[1].Add(steps.Step{Generation: 3, Size: 4, Seconds: 0.1,
		Workers: []steps.Worker{{Rank: 3, Wait: 0.001}}})
	send(t, &j, "h1", &hosts[1])
	if got := j.Split(4, 0); math.Abs(got.Exposed-0.01) > 1e-6 {
		t.Errorf("an old note counts: %+v", got)
	}
	hosts[1].Add(steps.Step{Generation: 4, Size: 2, Seconds: 0.1,
		Workers: []steps.Worker{{Rank: 1, Wait: 0.02}}})
	send(t, &j, "h1", &hosts[1])
	if got := j.Split(4, 0); len(got.Slack) != 2 || math.Abs(got.Slack[1]-0.01) > 1e-6 {
		t.Errorf("all have told, and slack is %v", got.Slack)
	}

	// other shares of work: what was before says nothing about them
	deal := sense.DealOf([]uint16{1, 2})
	for h := range hosts {
		hosts[h].Add(steps.Step{Generation: 4, Size: 2, Deal: deal, Seconds: 0.2,
			Workers: []steps.Worker{{Rank: h, Wait: 0.05}}})
		if h == 1 && j.Split(4, deal).Slack != nil {
			t.Error("the slack of both is known from one host")
		}
		send(t, &j, []string{"h0", "h1"}[h], &hosts[h])
	}
	if got := j.Split(4, deal); got.Exposed != 0.05 || got.Seconds != 0.2 || len(got.Slack) != 2 {
		t.Errorf("by other shares: %+v", got)
	}
}

// What cannot be is not believed, whatever a worker tells.
func TestNotBelieved(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	var h steps.Host
	for _, w := range []steps.Worker{
		{Data: nan}, {Compute: inf}, {Optimizer: -1}, {Compute: 4294}, {Data: 0.06, Compute: 0.08},
		{Loss: nan}, {Loss: inf}, {Loss: 1e38}, {Wait: -1}, {Wait: nan},
	} {
		h.Add(steps.Step{Generation: 1, Size: 1, Seconds: 0.1, Workers: []steps.Worker{w}})
	}
	n := h.TakeNote()
	if n.Told != 0 || n.Data != 0 || n.Compute != 0 || n.Losses != 0 || n.Loss != 0 ||
		!(n.Exposed >= 0) {
		t.Errorf("it is believed: %+v", n)
	}
	if n.Steps != 10 || n.Timed != 8 {
		t.Errorf("%v steps, %v of them with waits, expected 10 and 8", n.Steps, n.Timed)
	}
	if _, err := steps.Parse(n.Encode()); err != nil {
		t.Error(err)
	}
}

// Whatever a step takes and however large the gradient is, to measure it costs half a percent of
// the step at most, also where it has few chunks, unless that is so little that the least part of
// one step in 1024 is too much; and no more of it is left out than need be.
func TestSampling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := steps.Host{SecondsPerRead: 5e-10}
		seconds := rapid.Float64Range(1e-4, 10).Draw(t, "seconds")
		reads := rapid.IntRange(1, 1<<33).Draw(t, "reads")
		chunks := rapid.IntRange(1, 40).Draw(t, "chunks")
		every, turn := 0, 0
		step := func() (part float64) {
			s := steps.Step{Size: 1, Seconds: seconds, Reads: reads}
			if every, turn = h.Sampling(); every > 0 {
				part = 1 / float64(min(every, chunks))
				s.Gradient = noise.Step{Norms: []float64{1}, Samples: []float64{1}, Mean: 1,
					Workers: 2, Batch: 2, Part: part}
			}
			h.Add(s)
			return part
		}
		for range 3 { // notes
			for range 2 * 1024 {
				step()
			}
			h.TakeNote()
		}
		const all = 1024 * 16
		measured, read, chosen := 0, 0.0, 0
		turns := map[int]bool{}
		for range all {
			if part := step(); part > 0 {
				measured++
				read += part
				chosen = every
				turns[turn%every] = true
			}
		}
		cost := read / all * float64(reads) * h.SecondsPerRead
		most := 0.005 * seconds * (1 + 1e-6) // some rounding
		if least := chosen == 16 && measured == all/1024; cost > most && !least {
			t.Fatalf("one chunk in %d of %d steps: costs %v of a step of %v", chosen, measured,
				cost, seconds)
		}
		if whole := measured == all; cost < 0.001*seconds && !whole {
			t.Fatalf("one chunk in %d of %d steps, though it costs only %v of %v", chosen,
				measured, cost, seconds)
		}
		if len(turns) != chosen {
			t.Fatalf("%d of %d chunks have a turn", len(turns), chosen)
		}
	})
}

// A note fits, however many workers a host has and whatever they measure.
func TestNoteFits(t *testing.T) {
	for _, workers := range []int{1, 96, 500} {
		rng := rand.New(rand.NewPCG(1, 1))
		var h steps.Host
		for range 1000 {
			s := steps.Step{Generation: 1 << 60, Size: 4000, Seconds: 1e3 * rng.Float64()}
			for i := range workers {
				s.Workers = append(s.Workers, steps.Worker{Rank: 3000 + i, Wait: 99 * rng.Float64(),
					Data: rng.Float64() / 3, Compute: rng.Float64() / 7, Optimizer: rng.Float64(),
					Loss: rng.Float64()})
			}
			s.Gradient = noise.Step{Norms: []float64{rng.Float64()}, Samples: []float64{3},
				Mean: rng.Float64(), Workers: 7, Batch: 77, Part: 1. / 3}
			h.Add(s)
		}
		b := h.TakeNote().Encode()
		n, err := steps.Parse(b)
		if err != nil || n.Steps != 1000 || (n.Ranks != nil) != (workers <= 96) {
			t.Errorf("%d workers: %d bytes, %v: %s", workers, len(b), err, b)
		}
	}
}

// Notes that cannot be are refused, in words.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "cannot be read",
		"{":                               "cannot be read",
		`{"steps":-1}`:                    "the sum -1",
		`{"exposed":1e13}`:                "the sum 1e+13",
		`{"size":2,"ranks":[0]}`:          "contradicts",
		`{"loss":1e41}`:                   "contradicts",
		`{"noise":{"own":-1}}`:            "contradicts",
		`{"links":{"h2":-1}}`:             "contradicts",
		`{"machine":{"usage":{"cpu":2}}}`: "a machine that cannot be",
		`{"machine":{"memory":[{"used":-1,"samples":8,"room":9}]}}`: "a machine that cannot be",
		`{"machine":{"memory":[{"used":1,"room":9}]}}`:              "a machine that cannot be",
		`{"machine":{"memory":[{"used":1,"samples":8}]}}`:           "a machine that cannot be",
		strings.Repeat(" ", 1<<12):                                  "limit is 2048",
		`{"size":2,"ranks":[2],"waits":[1]}`:                        "rank 2",
		`{"size":2,"ranks":[1,1],"waits":[1,1]}`:                    "rank 1",
		`{"size":2,"ranks":[-1],"waits":[1]}`:                       "rank -1",
	} {
		if _, err := steps.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, expected one with %q", text, err, want)
		}
	}
}

// The norms of the parts of steps, on two hosts that measure other chunks, come to the noise scale:
// weights are samples, or divide the samples of the step.
func TestNoise(t *testing.T) {
	for name, unit := range map[string]float64{"samples": 1, "shares": 1. / 64} {
		rng := rand.New(rand.NewPCG(4, 4))
		weights := []float64{24 * unit, 8 * unit, 16 * unit, 16 * unit, 0}
		const scale, dims = 96.0, 240
		var j steps.Job
		var hosts [2]steps.Host
		var gradients [2]steps.Gradient
		for i := range 240 {
			for h := range gradients {
				gradients[h].Reset()
			}
			for range 3 { // parts
				addPart(rng, weights, scale, unit, dims, &gradients)
			}
			for h := range hosts {
				s := steps.Step{Generation: 1, Size: 5, Seconds: 0.1,
					Gradient: gradients[h].NoiseStep(64), Reads: gradients[h].ElementsRead()}
				if s.Reads != 3*dims*[]int{4, 3}[h] {
					t.Fatalf("host %d reads %d elements", h, s.Reads)
				}
				hosts[h].Add(s)
			}
			if i%5 == 4 {
				send(t, &j, "h0", &hosts[0])
				send(t, &j, "h1", &hosts[1])
			}
		}
		estimator := j.Noise()
		if got := estimator.Estimate(); !got.Known || got.Scale.Mid < 0.8*scale ||
			got.Scale.Mid > 1.25*scale {
			t.Errorf("%s: the scale is %v, the estimate %+v", name, scale, got)
		}
	}
}

// News of links, which comes at any time, leaves the norms of a step from several hosts in one
// block.
func TestLinksLeaveBlocksWhole(t *testing.T) {
	var with, without steps.Job
	rng := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		for _, host := range []string{"h0", "h1"} {
			n := steps.Note{Generation: 1, Size: 4, Steps: 1}
			n.Noise.AddStep(noise.Step{Norms: []float64{40 + rng.Float64(), 40 + rng.Float64()},
				Samples: []float64{8, 8}, Mean: 12 + rng.Float64(), Batch: 32, Workers: 4, Part: 1})
			with.Add(host, n)
			without.Add(host, n)
			with.Add("h0", steps.Note{Links: map[string]float64{"h1": 1e6}})
		}
	}
	a, b := with.Noise(), without.Noise()
	if got, want := a.Estimate(), b.Estimate(); got != want || !want.Known {
		t.Errorf("with news of links %+v, without %+v", got, want)
	}
}

// addPart draws a part of a gradient of so many coordinates and noise scale, and tells two hosts of
// it, of which the first has three of five members. Each measures a half of the part, another one.
func addPart(rng *rand.Rand, weights []float64, scale, unit float64, dims int,
	gradients *[2]steps.Gradient) {
	norms := [2][]float64{make([]float64, len(weights)), make([]float64, len(weights))}
	var mean [2]float64
	for c := range dims {
		half, m := c%2, 0.0
		for i, w := range weights {
			if w > 0 {
				g := 1 + math.Sqrt(scale/(w/unit))*rng.NormFloat64()
				norms[half][i] += g * g
				m += g * w / (64 * unit)
			}
		}
		mean[half] += m * m
	}
	for h := range gradients {
		g := &gradients[h]
		for i, w := range weights {
			g.AddMember(i, w, (i >= 3) == (h == 1))
		}
		in := g.Norms(len(weights))
		for i := range in {
			if (i >= 3) == (h == 1) {
				in[i] += norms[h][i]
			}
		}
		g.AddPart(dims, dims/2, mean[h])
	}
}

// A step whose parts do not belong together tells nothing of its gradient.
func TestUnlikeParts(t *testing.T) {
	for name, spoil := range map[string]func(g *steps.Gradient){
		"none":          func(*steps.Gradient) {},
		"fewer members": func(g *steps.Gradient) { g.Norms(1) },
		"more members":  func(g *steps.Gradient) { g.AddMember(2, 1, true) },
		"other weights": func(g *steps.Gradient) { g.AddMember(1, 7, false) },
		"said so":       func(g *steps.Gradient) { g.MarkUnusable() },
		"nothing":       func(g *steps.Gradient) { g.Reset() },
	} {
		var g steps.Gradient
		g.Reset()
		g.AddMember(0, 3, true)
		g.AddMember(1, 5, false)
		g.Norms(2)[0] = 7
		g.AddPart(100, 50, 3)
		spoil(&g)
		want := noise.Step{}
		if name == "none" {
			want = noise.Step{Norms: []float64{7}, Samples: []float64{3}, Mean: 3, Workers: 2,
				Batch: 8, Part: 0.5}
		}
		if diff := cmp.Diff(want, g.NoiseStep(8)); diff != "" {
			t.Errorf("%s: (-want +got) %s", name, diff)
		}
	}
}

// Of hosts that contradict each other in how many members there are, no slack is told.
func TestContradictingHosts(t *testing.T) {
	var j steps.Job
	j.Add("a", steps.Note{Size: 4, Steps: 1, Timed: 1, Seconds: 2, Exposed: 1, Ranks: []int{3},
		Waits: []float64{1}})
	j.Add("b", steps.Note{Size: 2, Steps: 1, Timed: 1, Seconds: 2, Exposed: 1, Ranks: []int{0},
		Waits: []float64{1}})
	if s := j.Split(0, 0); s.Slack != nil || s.Exposed != 1 || s.Seconds != 2 {
		t.Errorf("it is said that time goes so: %+v", s)
	}
}

// Whatever bytes come in, Parse panics never, and a note that it takes can be added.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"size":2,"ranks":[0,1],"waits":[1,2],"noise":{"own":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := steps.Parse(b)
		if err != nil {
			return
		}
		var j steps.Job
		j.Add("h", n)
		j.Add("h", n)
		if s := j.Split(n.Generation, n.Deal); !(s.Exposed >= 0) {
			t.Errorf("%q gives %+v", b, s)
		}
	})
}
