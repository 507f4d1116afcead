package policy_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/predict"
	"github.com/shoal-ml/shoal/setting"
)

// fleet is a job whose workers take slow[rank]·(fixed + samples) seconds a step, and a twin that
// knows that.
type fleet struct {
	slow  []float64
	fixed float64
	now   setting.Setting
	step  uint64
	hosts []string
}

// secondsTaken returns what the workers take by a setting.
func (f *fleet) secondsTaken(s setting.Setting) []float64 {
	list := decide.SamplesOf(s, len(f.slow))
	for rank, n := range list {
		list[rank] = f.slow[rank] * (f.fixed + n)
	}
	return list
}

// observe returns what is known of the job: when workers are ready, and nothing that they tell.
func (f *fleet) observe() sense.Observation {
	took := f.secondsTaken(f.now)
	o := sense.Observation{Step: f.step, Size: len(f.slow), Setting: f.now, First: f.now.Batch,
		Hosts: f.hosts, Split: sense.Split{Exposed: 0.1, Seconds: slices.Max(took) + 0.1}}
	for _, x := range took {
		o.Split.Slack = append(o.Split.Slack, slices.Max(took)-x)
	}
	return o
}

// Predict implements decide.Twin.
func (f *fleet) Predict(to decide.Target) decide.Prediction {
	gain := slices.Max(f.secondsTaken(f.now)) / slices.Max(f.secondsTaken(to.Setting))
	one := setting.Band{Low: 1, Mid: 1, High: 1}
	band := setting.Band{Low: gain, Mid: gain, High: gain}
	return decide.Prediction{Throughput: band, Efficiency: one, Goodput: band}
}

// run has the policy decide every five steps until it has left things alone for 60 of them, and
// returns what it decided. What it decides comes true. wobble is by which factor rank 1 is slower
// at each look, in turns.
func (f *fleet) run(wobble ...float64) (list []decide.Decision) {
	state, usual := []byte(nil), slices.Clone(f.slow)
	for i, last := 0, f.step; f.step < last+60; i++ {
		f.step += 5
		copy(f.slow, usual)
		if len(wobble) > 0 {
			f.slow[1] *= wobble[i%len(wobble)]
		}
		f.slow[0] *= 1 + 1e-6*float64(i%2) // no two looks are the same
		var d decide.Decision
		d, state = policy.Shares{}.Decide(f.observe(), f, state)
		list = append(list, d)
		if d.To != nil {
			f.now, last = d.To.Setting, f.step
		}
	}
	copy(f.slow, usual)
	return list
}

// changes returns the decisions that change something.
func changes(list []decide.Decision) (made []decide.Decision) {
	for _, d := range list {
		if d.To != nil {
			made = append(made, d)
		}
	}
	return made
}

// A worker that is slow gets less work after ten steps, and has a name at once; when it has
// recovered, all get the same again. That goes by when it is ready, whatever of it is slow.
func TestSlowWorkerGetsLess(t *testing.T) {
	f := fleet{slow: []float64{1, 3, 1, 1}, now: setting.Setting{Batch: 400, Save: 7},
		hosts: []string{"a", "b", "c", "d"}}
	list := f.run()
	if want := "rank 1 on b takes 3.0 times as long for a sample as most"; list[0].To != nil ||
		list[0].Again != 5 || !strings.HasPrefix(list[0].Because, want) ||
		list[1].To != nil || list[2].To == nil || list[2].Because != want {
		t.Errorf("three decisions: %+v", list[:3])
	}
	if made := changes(list); len(made) != 1 ||
		!slices.Equal(f.now.Shares, []uint16{120, 40, 120, 120}) || f.now.Save != 7 {
		t.Errorf("%d changes, to %v", len(made), f.now)
	}
	f.slow[1] = 1
	list = f.run()
	if made := changes(list); len(made) != 1 || f.now.Shares != nil {
		t.Errorf("%d changes when it recovers, to %v: %+v", len(made), f.now, list)
	}
}

// In rounds of local steps a measurement is of more than one of them, so work moves one round after
// somebody is slow first. Rounds are looked at one by one then.
func TestSlowWorkerInRounds(t *testing.T) {
	f := fleet{slow: []float64{1, 3}, now: setting.Setting{Batch: 400, Round: 16}}
	o := f.observe()
	first, state := policy.Shares{}.Decide(o, &f, nil)
	f.slow[1] = 3.1
	o = f.observe()
	o.Step++
	if second, _ := (policy.Shares{}).Decide(o, &f, state); first.To != nil || first.Again != 1 ||
		second.To == nil {
		t.Errorf("two decisions: %+v, %+v", first, second)
	}
}

// The reason says what of its machine is busy. Who does not wait moves work at the first look.
func TestSlowMachineIsNamed(t *testing.T) {
	f := fleet{slow: []float64{1, 3}, now: setting.Setting{Batch: 400}, hosts: []string{"a", "b"}}
	o := f.observe()
	busy := machine.Unknown()
	busy.CPU, busy.Own = 0.97, 0.582
	o.Machines = []machine.Host{{Name: "a"}, {Name: "b", Usage: busy,
		Bottleneck: &predict.Bottleneck{Resource: predict.CPU}}}
	want := "rank 1 on b takes 3.0 times as long for a sample as most, and its processors are " +
		"97 % busy, 40 % of that by others"
	for _, atOnce := range []bool{false, true} {
		d, _ := policy.Shares{AtOnce: atOnce}.Decide(o, &f, nil)
		if !strings.HasPrefix(d.Because, want) || (d.To != nil) != atOnce {
			t.Errorf("at once %v: %+v", atOnce, d)
		}
	}
}

// What comes and goes, or is not worth it, moves no work.
func TestWorkStays(t *testing.T) {
	for name, wobble := range map[string][]float64{"comes and goes": {3, 1},
		"is a little slow": {1.04}, "changes": {3, 2, 4}} {
		f := fleet{slow: []float64{1, 1, 1, 1}, now: setting.Setting{Batch: 128}}
		list := f.run(wobble...)
		if made := changes(list[:11]); len(made) > 0 {
			t.Errorf("%s: %+v", name, made)
		}
	}
	same := fleet{slow: []float64{1, 3}, now: setting.Setting{Batch: 128}}
	state := []byte(nil)
	for range 20 { // nothing new is known, as between two notes of the hosts
		var d decide.Decision
		if d, state = (policy.Shares{}).Decide(same.observe(), &same, state); d.To != nil {
			t.Fatalf("it goes by one look: %+v", d)
		}
		same.step += 5
	}
}

// A worker that is too slow for a quarter of the mean gets that, and should be drained.
func TestTooSlow(t *testing.T) {
	f := fleet{slow: []float64{1, 1, 9, 1}, now: setting.Setting{Batch: 128},
		hosts: []string{"a", "a", "b", "a"}}
	made := changes(f.run())
	if len(made) != 1 || !slices.Equal(f.now.Shares, []uint16{125, 125, 25, 125}) ||
		!strings.Contains(made[0].Because, "too much for rank 2 on b: see shoal drain") ||
		len(made[0].Because) > setting.MaxText {
		t.Errorf("to %v: %+v", f.now, made)
	}
	f = fleet{slow: []float64{1, 1, 0.1}, now: setting.Setting{Batch: 300}}
	if made := changes(f.run()); len(made) != 1 ||
		!slices.Equal(f.now.Shares, []uint16{50, 50, 200}) ||
		!strings.Contains(made[0].Because, "rank 2 is 10.0 times as fast as most") {
		t.Errorf("to %v: %+v", f.now, made)
	}
}

// Whatever the workers are, shares end within 12 % of the best division in the bounds, or a sample
// or two, after three changes at most, and everybody keeps two samples.
func TestSharesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 12).Draw(t, "size")
		f := fleet{fixed: rapid.Float64Range(0, 60).Draw(t, "fixed"),
			now: setting.Setting{Batch: uint64(size * rapid.IntRange(2, 100).Draw(t, "each"))}}
		for rank := range size {
			f.slow = append(f.slow, math.Exp(rapid.Float64Range(0, 1.2).Draw(t,
				fmt.Sprint("slow", rank))))
		}
		before := slices.Max(f.secondsTaken(f.now))
		if made := changes(f.run()); len(made) > 3 {
			t.Fatalf("%d changes", len(made))
		}
		mean := float64(f.now.Batch) / float64(size)
		best := 0.0 // seconds
		for sum := 0.0; sum < float64(f.now.Batch); best += 0.01 * mean {
			sum = 0
			for _, x := range f.slow {
				sum += min(max(best/x-f.fixed, max(mean/4, min(2, mean))), 2*mean)
			}
		}
		for _, x := range f.slow { // who has the least may take longer
			best = max(best, x*(f.fixed+max(mean/4, min(2, mean))))
		}
		took := f.secondsTaken(f.now)
		if now := slices.Max(took); now > before ||
			now > 1.12*best+2*slices.Max(f.slow) {
			t.Errorf("%v by %v, %v before; the best is %v", took, f.now, before, best)
		}
		if slices.Min(decide.SamplesOf(f.now, size)) < 2 {
			t.Errorf("%v by %v", decide.SamplesOf(f.now, size), f.now)
		}
	})
}

// Where nothing is known or can be divided, the policy says so.
func TestSharesUnknown(t *testing.T) {
	for want, f := range map[string]fleet{
		"one worker has all": {slow: []float64{1}, now: setting.Setting{Batch: 9}},
		"too small":          {slow: []float64{1, 3}, now: setting.Setting{Batch: 3}},
		"not measured":       {slow: []float64{1, 3}},
		"as the workers are": {slow: []float64{1, 1}, now: setting.Setting{Batch: 64}},
	} {
		d, _ := policy.Shares{}.Decide(f.observe(), &f, []byte("no state"))
		if d.To != nil || !strings.Contains(d.Because, want) {
			t.Errorf("want %q: %+v", want, d)
		}
	}
}

// Where all workers weigh alike in the average of the gradients, work is left as it is, and why.
func TestSharesOfWorkersThatWeighAlike(t *testing.T) {
	f := &fleet{slow: []float64{0.01, 0.03}, now: setting.Setting{Batch: 64}}
	o := f.observe()
	o.Levers.Alike = true
	for range 9 {
		d, _ := policy.Shares{}.Decide(o, f, nil)
		if d.To != nil || d.Because != setting.WhyAlike {
			t.Fatalf("%+v", d)
		}
		o.Step += 5
	}
}
