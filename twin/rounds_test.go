package twin_test

import (
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// A step of longer rounds has less of the exchange in it, and of the waiting for others at most as
// much less as chance explains. Steps of other rounds do not count, and a setting that says nothing
// of the round has that of the program.
func TestRounds(t *testing.T) {
	w := newWorld(0.1, 0, 0)
	w.train(128, 8) // each step is committed
	for range 8 {
		w.step++
		w.steps.Add(sense.StepSample{Step: w.step, Samples: 128, Batch: 128, Size: w.workers,
			Seconds: 0.05, Round: 4, Change: 1})
	}
	o := w.observe(128, 1000)
	o.Setting.Round, o.Setting.Sync = 4, "local"
	o.Levers = setting.Levers{Sync: "local", Round: 4}
	o.Split = sense.Split{Seconds: 0.05, Exposed: 0.02, Slack: []float64{0.01, 0.01, 0.01, 0.01}}
	var twin twin.Twin
	twin.Observe(o)
	if p := twin.Predict(decide.Target{}); p.StepSeconds.Mid != 0.05 || p.Goodput.Mid != 1 {
		t.Errorf("as it is: %+v", p)
	}
	p := twin.Predict(decide.Target{Setting: setting.Setting{Round: 16}})
	all := 0.05 / (0.05 - 0.02 - 0.01*(1-math.Sqrt(0.25)) + 0.02/4)
	if math.Abs(p.Throughput.Low-0.05/(0.03+0.02/4)) > 1e-9 ||
		math.Abs(p.Throughput.High-all) > 1e-9 || !(p.Efficiency.Mid < 1) || p.Guess != "" {
		t.Errorf("of 16 steps a round: %+v", p)
	}
	if p := twin.Predict(decide.Target{Setting: setting.Setting{Round: 1}}); p.Throughput.High >=
		1 || math.Abs(p.Throughput.High-0.05/(0.03+0.08)) > 1e-9 {
		t.Errorf("of a step a round: %+v", p)
	}
	o.Split = sense.Split{}
	twin.Observe(o)
	if p := twin.Predict(decide.Target{Setting: setting.Setting{Sync: "sma"}}); p.Guess !=
		"where the time of steps goes is not known" || p.Gain() != 0 {
		t.Errorf("of a job that tells nothing: %+v", p)
	}
}

// inSync returns a job whose steps of synchronous SGD take 420 ms, of which 310 are an exchange,
// and what is observed of it.
func inSync(scale float64) (*world, sense.Observation) {
	w := newWorld(0.388, 1e-3, 0)
	w.train(128, 40)
	o := w.observe(128, scale)
	o.Levers = setting.Levers{Sync: "ssgd", Round: 1, Auto: true}
	o.Setting.Sync, o.Setting.Round = "ssgd", 1
	o.Split = sense.Split{Seconds: 0.42, Compute: 0.11, Exposed: 0.31, Slack: make([]float64, 4)}
	return w, o
}

// localTarget returns the target of a job that synchronises in a way after so many steps.
func localTarget(sync string, round uint32) decide.Target {
	return decide.Target{Setting: setting.Setting{Sync: sync, Round: round}}
}

// predict returns what a twin that has observed nothing else predicts.
func predict(o sense.Observation, to decide.Target) decide.Prediction {
	var twin twin.Twin
	twin.Observe(o)
	return twin.Predict(to)
}

// What a sample brings falls with the length of rounds, and less where noise is most of a gradient;
// meetings in pairs cost time and keep replicas together. Where the noise is unknown, it may be
// none, but of gradients that are not finite nothing follows.
func TestWorthOfRounds(t *testing.T) {
	_, o := inSync(128)
	_, noisy := inSync(128 * 8)
	at := func(o sense.Observation, round uint32) setting.Band {
		return predict(o, localTarget("local", round)).Efficiency
	}
	for _, round := range []uint32{4, 16, 64} {
		if a, b := at(o, round), at(o, 4*round); !(b.Low < a.Low && b.Mid < a.Mid && a.High <= 1) {
			t.Errorf("rounds of %d: %+v, and four times as long: %+v", round, a, b)
		}
		lost := at(o, round).Low / at(o, 1).Low
		if x := at(noisy, round).Low / at(noisy, 1).Low; !(x > lost) {
			t.Errorf("rounds of %d keep %v, and %v with more noise", round, lost, x)
		}
	}
	pair, one := predict(o, localTarget("pair", 16)), predict(o, localTarget("local", 16))
	if want := 0.42 / (0.11 + 0.31/16 + 0.31*4/6); !isNear(pair.Throughput.High, want) ||
		!(pair.Efficiency.Low > one.Efficiency.Low) ||
		!isNear(one.Throughput.High, 0.42/(0.11+0.31/16)) {
		t.Errorf("pairs: %+v; all: %+v", pair, one)
	}
	parts := predict(o, localTarget("hybrid:parts=8", 16))
	if want := 0.42 / (0.11 + 0.31/16 + 0.31*4/6/8); !isNear(parts.Throughput.High, want) ||
		!isNear(parts.Efficiency.Low, one.Efficiency.Low) {
		t.Errorf("pairs that meet with an eighth: %+v; all: %+v", parts, one)
	}
	_, unknown := inSync(0)
	if p := predict(unknown, localTarget("local", 16)); !isNear(p.Efficiency.Low, 0.7/3) ||
		!isNear(p.Careful, 0.7/3) || !isNear(p.Efficiency.High, 1) {
		t.Errorf("where the noise is unknown: %+v", p)
	}
	unknown.Setting.Batch *= 2
	if p := predict(unknown, localTarget("local", 16)); p.Efficiency.IsKnown() && p.Gain() != 0 {
		t.Errorf("of another batch, where the noise is unknown: %+v", p)
	}
	unknown.Setting.Batch, unknown.Noise.NotFinite = 128, true
	if p := predict(unknown, localTarget("local", 16)); p.Goodput.IsKnown() || p.Gain() != 0 ||
		!strings.Contains(p.Guess, "noise scale is unknown: too few steps") {
		t.Errorf("of gradients that are not finite: %+v", p)
	}
	own := o
	own.Levers, own.Setting.Sync = setting.Levers{Sync: "own", Round: 1}, "own"
	if p := predict(own, localTarget("own", 16)); p.Efficiency.IsKnown() {
		t.Errorf("of averages that the program makes by itself: %+v", p)
	}
}

// A decision rests on the least that local steps may be worth, in both directions: so what one
// gains, to go back loses. How much of an exchange synchronous SGD hides shows after a change.
func TestBackToEverySteps(t *testing.T) {
	w, o := inSync(512)
	var twin twin.Twin
	twin.Observe(o)
	there := twin.Predict(localTarget("local", 16))
	for range 20 { // an exchange takes 400 ms, of which 90 were hidden
		w.step++
		w.steps.Add(sense.StepSample{Step: w.step, Samples: 128, Batch: 128, Size: 4,
			Seconds: 0.135, Round: 16, Change: 1})
	}
	o.Setting.Sync, o.Setting.Round, o.Setting.Number, o.Step = "local", 16, 1, w.step
	o.Split = sense.Split{Seconds: 0.135, Compute: 0.11, Exposed: 0.025, Slack: make([]float64, 4)}
	twin.Observe(o)
	back := twin.Predict(localTarget("ssgd", 1))
	sure := back.SureEfficiency()
	if !isNear(there.SureEfficiency()*sure, 1) || !(back.Efficiency.Low < sure) {
		t.Errorf("there %v, back %v of %+v", there.SureEfficiency(), sure, back.Efficiency)
	}
	if !isNear(back.Throughput.Mid, 0.135/0.42) {
		t.Errorf("back: %+v", back.Throughput)
	}
}

// Rounds and batches of more than an epoch are never whole, so nothing is measured: that is said.
func TestRoundsLongerThanAnEpoch(t *testing.T) {
	_, o := inSync(512)
	o.Setting.Sync, o.Setting.Round = "pair", 16
	for samples, want := range map[uint64]string{0: "fewer than 3 steps", 128 * 16: "fewer than 3",
		128*16 - 1: "an epoch of 2047 samples is shorter than 16 steps"} {
		o.Samples = samples
		if p := predict(o, localTarget("local", 16)); !strings.Contains(p.Guess, want) {
			t.Errorf("epochs of %d samples: %q", samples, p.Guess)
		}
	}
	o.Setting.Sync, o.Setting.Round, o.Samples, o.Steps = "", 0, 127, nil
	want := "no step is whole: an epoch has 127 samples, and a batch 128"
	if p := predict(o, localTarget("local", 16)); p.Guess != want {
		t.Errorf("a batch of more than an epoch: %q", p.Guess)
	}
}

// What workers that average in pairs exchange in each step is no part of the exchange at the end of
// a round: from pairs to another way and back is as much faster as slower.
func TestFromPairs(t *testing.T) {
	w, o := inSync(512)
	met := 0.31/16 + 0.31*4/6
	for range 20 {
		w.step++
		w.steps.Add(sense.StepSample{Step: w.step, Samples: 128, Batch: 128, Size: 4,
			Seconds: 0.11 + met, Round: 16, Change: 1})
	}
	o.Setting.Sync, o.Setting.Round, o.Setting.Number, o.Step = "pair", 16, 1, w.step
	o.Split = sense.Split{Seconds: 0.11 + met, Compute: 0.11, Exposed: met,
		Slack: make([]float64, 4)}
	if p := predict(o, localTarget("local", 16)); !isNear(p.Throughput.Mid,
		(0.11+met)/(0.11+0.31/16)) {
		t.Errorf("to rounds alone: %+v", p.Throughput)
	}
	if p := predict(o, localTarget("ssgd", 1)); !isNear(p.Throughput.Low, (0.11+met)/0.42) {
		t.Errorf("to synchronous SGD: %+v", p.Throughput)
	}
}

// Where workers are lost, long rounds lose more.
func TestRoundsLoseWorkers(t *testing.T) {
	w, o := inSync(512)
	calm := predict(o, localTarget("local", 64))
	for i := range 40 {
		w.step++
		size := 4 - i%2
		w.steps.Add(sense.StepSample{Step: w.step, Samples: 128, Batch: 128, Size: size,
			Seconds: 0.42, Generation: uint64(i)})
	}
	w.train(128, 8)
	o.Step = w.step
	storm := predict(o, localTarget("local", 64))
	if got := storm.Efficiency.Mid / calm.Efficiency.Mid; !(got < 0.6) {
		t.Errorf("rounds bring %v of what they bring without losses", got)
	}
	if x := predict(o, localTarget("local", 4)).Efficiency.Mid; !(x > storm.Efficiency.Mid) {
		t.Errorf("short rounds bring %v, long ones %v", x, storm.Efficiency.Mid)
	}
}
