package act_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// batches is the range that the jobs of the tests have opened.
var batches = setting.Range{From: 32, To: 1024}

// newLoop returns a loop with the policies.
func newLoop(t testing.TB, mode act.Mode, policies ...decide.Policy) *act.Loop {
	l, err := act.New(act.Config{Mode: mode, Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// From the smallest batch the loop comes to about the best one, settles there, and loses hardly any
// time on the way. That holds wherever the best one lies, also when it moves as the noise grows.
func TestLoopFindsTheBestBatch(t *testing.T) {
	for _, c := range []struct {
		name         string
		fixed, slope float64
		spread       float64
		scale        func(float64) float64
		most         int // changes that are kept
	}{
		{"large batches", 0.05, 0.0005, 0.03, func(float64) float64 { return 6000 }, 7},
		{"medium batches", 0.02, 0.001, 0.03, func(float64) float64 { return 600 }, 6},
		{"noisy steps", 0.02, 0.001, 0.15, func(float64) float64 { return 600 }, 8},
		{"small batches", 0.001, 0.001, 0.03, func(float64) float64 { return 20 }, 3},
		{"growing noise", 0.05, 0.0005, 0.03, func(p float64) float64 { return 100 + p/4 }, 12},
	} {
		j := newJob(newLoop(t, act.Auto, policy.Batch{}), 32, batches)
		j.seconds = func(x float64) float64 { return c.fixed + c.slope*x }
		j.scale, j.spread = c.scale, c.spread
		took := j.run(t, 30000)
		best, least := j.bestFixed(batches, 30000)
		t.Logf("%s: %.3f of the time of batch %d; in the end %d", c.name, took/least, best,
			j.batch())
		if took > 1.05*least {
			t.Errorf("%s: %.3f times as long as batch %d", c.name, took/least, best)
		}
		if n := j.count(setting.Kept) - len(j.rates()); n > c.most {
			t.Errorf("%s: it does not settle: %v", c.name, j.phases())
		}
	}
}

// asker is a policy that changes nothing and notes at which steps it was asked. It wants to be
// asked again after some steps.
type asker struct {
	again uint64
	at    *[]uint64
}

// Name implements decide.Policy.
func (asker) Name() string { return "asker" }

// Levers implements decide.Policy.
func (asker) Levers() []string { return []string{"save"} }

// Decide implements decide.Policy.
func (a asker) Decide(o sense.Observation, _ decide.Twin, state []byte) (decide.Decision, []byte) {
	*a.at = append(*a.at, o.Step)
	return decide.Decision{Because: "it waits", Again: a.again}, state
}

// Policies are asked ever less while nothing changes, but soon after steps take longer at once, and
// when they want to be.
func TestWhenPoliciesAreAsked(t *testing.T) {
	for _, c := range []struct {
		again uint64
		round uint32
		want  []uint64
	}{{0, 1, []uint64{10, 30, 70, 150, 230, 305, 325}}, {5, 1, []uint64{10, 15, 20, 25, 30}},
		{5, 4, []uint64{10, 15, 20, 25, 30}}} {
		var at []uint64
		j := newJob(newLoop(t, act.Auto, asker{c.again, &at}), 64, batches)
		j.state.Setting = setting.Setting{Sync: "local", Round: c.round}
		j.scale = func(float64) float64 { return 0 }
		j.seconds = func(float64) float64 {
			if j.state.Step >= 300 {
				return 0.15
			}
			return 0.05
		}
		for range 340 {
			j.step(t)
		}
		if got := at[:min(len(at), len(c.want))]; !slices.Equal(got, c.want) {
			t.Errorf("who wants it after %d commits, of rounds of %d, is asked at %v", c.again,
				c.round, at)
		}
	}
}

// Where a host comes to lead, policies wait for so many optimizer steps, in as few commits as
// rounds make of them.
func TestPoliciesWaitForRoundsOfANewHead(t *testing.T) {
	var at []uint64
	j := newJob(newLoop(t, act.Auto, asker{5, &at}), 64, batches)
	j.state.Setting = setting.Setting{Sync: "local", Round: 4}
	j.state.Leads = false
	j.loop.EntryApplied(j.state)
	for range 20 {
		j.stepUnobserved()
	}
	j.state.Leads = true
	j.loop.EntryApplied(j.state)
	for range 20 {
		j.step(t)
	}
	if len(at) == 0 || at[0] != 22 {
		t.Errorf("who leads from commit 20 on is asked at %v, want 10 steps later at first", at)
	}
}

// A change that makes the job slower, whatever was predicted, is taken back; the next one waits.
func TestLoopTakesBack(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
	j.spread = 0.02
	j.seconds = func(x float64) float64 { // more than 32 samples do not fit into the cache
		if x > 32 {
			return 0.02 + 0.01*x
		}
		return 0.02 + 0.0005*x
	}
	j.run(t, 5000)
	if j.batch() > 128 {
		t.Errorf("it stays at batch %d", j.batch())
	}
	reverted := j.count(setting.Reverted)
	if reverted == 0 || reverted > 2 {
		t.Errorf("%d changes were taken back: %v", reverted, j.phases())
	}
}

// When something else slows the job down during a trial, the change is taken back, and tried again
// when it is over.
func TestLoopUnderInterference(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 32, batches)
	j.spread = 0.02
	slow := 1.0
	j.seconds = func(x float64) float64 { return slow * (0.05 + 0.0005*x) }
	for j.state.Trial == nil {
		j.step(t)
	}
	slow = 4
	j.events.Add(j.now+20, func() { slow = 1 })
	for len(j.log) < 2 {
		j.step(t)
	}
	if c := j.log[1].Change; c.Phase != setting.Reverted || j.batch() != 32 || c.Measured > 0.7 {
		t.Errorf("%+v", c)
	}
	took := j.run(t, 30000)
	_, least := j.bestFixed(batches, 30000)
	if took > 1.07*least {
		t.Errorf("%v s, %.3f of the best: %v\n%+v", took, took/least, j.phases(), j.loop.WhyNots())
	}
}
