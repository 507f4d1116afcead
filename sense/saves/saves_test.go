package saves

import (
	"cmp"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/sense"
)

// world is a job that makes checkpoints, whose Meter looks at it each 0.25 s.
type world struct {
	// step and stall are the seconds from commit to commit and of the copy, and slow is by which
	// factor a step is slower while a checkpoint is written.
	step, stall, slow float64
	round             uint32  // optimizer steps from commit to commit; 0 = one
	writing           float64 // seconds for which a checkpoint is written
	spread            float64 // of the logarithms of the seconds
	every             uint64  // steps from one checkpoint to the next

	meter  Meter
	series sense.StepSeries
	rng    *rand.Rand
	now    float64
	at     uint64  // step of the newest checkpoint
	since  float64 // when its writing began
	looked float64
	size   int
}

// train makes so many steps.
func (w *world) train(steps int) {
	newest, _ := w.series.Newest()
	for i := range uint64(steps) {
		number := newest.Step + i + 1
		took := w.step * math.Exp(w.spread*w.rng.NormFloat64())
		if w.at > 0 && w.now < w.since+w.writing {
			took *= w.slow
		}
		if (number-1)%w.every == 0 && number > 1 {
			took += w.stall
			w.at, w.since = number-1, w.now+w.stall
		}
		end := w.now + took
		for ; w.looked+0.25 < end; w.looked += 0.25 {
			w.look(w.looked + 0.25)
		}
		w.now = end
		w.series.Add(sense.StepSample{Step: number, Seconds: took / float64(max(w.round, 1)),
			Samples: 8, Batch: 8, Size: w.size, Generation: uint64(w.size), Round: w.round})
	}
}

// look has the meter look at the job at a time, which may be amid a step.
func (w *world) look(now float64) {
	n := Newest{Step: w.at}
	if w.at > 0 {
		n.Seconds = min(max(now-w.since, 0), w.writing)
		n.Done = n.Seconds == w.writing
	}
	w.meter.Observe(n, &w.series)
}

// newWorld returns a world of two workers, with steps of 10 ms and a checkpoint after each 200
// where w says nothing else.
func newWorld(w world) *world {
	w.step, w.slow, w.every = cmp.Or(w.step, 0.01), cmp.Or(w.slow, 1), cmp.Or(w.every, 200)
	w.rng, w.size = rand.New(rand.NewPCG(1, 2)), 2
	return &w
}

// What a checkpoint costs is the time for which steps stand still and by which they are slower,
// also where single steps differ by more than that, are far shorter, or take seconds.
func TestCost(t *testing.T) {
	for name, x := range map[string]struct {
		world        world
		cost, within float64
	}{
		"nothing":     {world{}, 0, 0.001},
		"a copy":      {world{stall: 0.5}, 0.5, 0.01},
		"slower":      {world{stall: 0.1, slow: 1.5, writing: 0.6}, 0.1 + 0.6/3, 0.05},
		"chance":      {world{stall: 0.05, spread: 0.2, writing: 0.3}, 0.05, 0.03},
		"short steps": {world{step: 0.001, stall: 0.02, every: 2000}, 0.02, 0.002},
		"long steps":  {world{step: 4, stall: 1, every: 20}, 1, 0.1},
		"long steps, of which one is slower": {world{step: 4, stall: 1, slow: 1.5, writing: 6,
			every: 20}, 1 + 6/3.0, 0.1},
		"written between two looks": {world{slow: 1.5, writing: 0.1}, 0.1 / 3, 0.01},
		"rounds": {world{step: 0.16, round: 16, stall: 0.5, slow: 1.5, writing: 2}, 0.5 + 2/3.0,
			0.01},
		"long to write": {world{every: 3000, writing: 12, slow: 1.1}, 12 / 11.0, 0.1},
	} {
		w := newWorld(x.world)
		w.train(int(w.every)*9 + 500)
		got := w.meter.Means()
		if got.Count != kept || math.Abs(got.Cost-x.cost) > x.within ||
			math.Abs(got.Writing-w.writing) > 0.01 {
			t.Errorf("%s: %+v, expected a cost of %.3g s", name, got, x.cost)
		}
	}
}

// Where members come, or a new checkpoint follows before the steps of one have ended, that one
// tells nothing; and before the first there is nothing to tell.
func TestNothingIsTold(t *testing.T) {
	w := newWorld(world{})
	w.stall, w.writing = 0.5, 0.5
	w.train(200)
	if got := w.meter.Means(); got != (sense.Saves{}) {
		t.Errorf("before the first: %+v", got)
	}
	w.size = 3
	w.train(190)
	if got := w.meter.Means(); got != (sense.Saves{}) {
		t.Errorf("with other members: %+v", got)
	}
	w.train(200)
	if got := w.meter.Means(); got.Count != 1 || math.Abs(got.Cost-0.5) > 0.01 {
		t.Errorf("with those: %+v", got)
	}
	w.size = 4
	w.train(25) // amid the steps while the next one is written
	w.size = 3
	w.train(150)
	if got := w.meter.Means(); got.Count != 1 {
		t.Errorf("with others for a while: %+v", got)
	}
	w = newWorld(world{})
	w.step, w.stall, w.every = 0.3, 0.5, 7
	w.train(13)
	if got := w.meter.Means(); got != (sense.Saves{}) {
		t.Errorf("after seven steps: %+v", got)
	}
	w = newWorld(world{})
	w.writing, w.every = 3, 100
	w.train(1000)
	if got := w.meter.Means(); got != (sense.Saves{}) {
		t.Errorf("one after the other: %+v", got)
	}
}
