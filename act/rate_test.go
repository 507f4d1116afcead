package act_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// largest is a range in which a job of 64 samples comes to its largest batch, and stays there.
var largest = setting.Range{From: 64, To: 256}

// newNoisy returns a job whose noise grows from a scale to ten times that in 4,000 steps, and has
// the policy of the batch and others.
func newNoisy(t testing.TB, scale float64, l *act.Loop) *job {
	j := newJob(l, 64, largest)
	j.scale = func(float64) float64 {
		return scale * (1 + 9*min(float64(j.state.Step)/4000, 1))
	}
	return j
}

// rates returns the changes of the rate alone.
func (j *job) rates() (list []setting.Change) {
	for _, o := range j.log {
		if o.Change.IsAtOnce() {
			list = append(list, o.Change)
		}
	}
	return list
}

// While the batch stays, the rate follows the noise: by entries that begin and end at once, say
// why, and predict nothing. There are few of them, and what they count comes near to the truth.
func TestRateFollowsNoise(t *testing.T) {
	j := newNoisy(t, 200, newLoop(t, act.Auto, policy.Batch{}))
	j.train(t, 4000)
	list := j.rates()
	if n := len(list); n < 3 || n > 10 || j.batch() != 256 {
		t.Fatalf("%d changes of the rate at batch %d: %v", n, j.batch(), j.phases())
	}
	for _, c := range list {
		if c.Phase != setting.Kept || c.Policy != "batch" || c.Predicted.IsKnown() ||
			c.Rate != 0 || c.IsNews() ||
			!strings.Contains(c.String(), " is worth "+c.To[len("rate="):]) {
			t.Errorf("%+v says %q", c, c)
		}
	}
	if x := j.counted / j.progress; x < 0.93 || x > 1.01 {
		t.Errorf("the rates count %.3f of the progress: %v", x, j.phases())
	}
	rate := j.state.Setting.Rate
	j.train(t, 4000) // the noise stays
	if s := j.state.Setting; len(j.rates()) > len(list)+1 || s.Rate < rate {
		t.Errorf("%v, then %v", list, j.rates())
	}
}

// A change of the rate holds up no other one: what else a policy wants is ordered right after it,
// and no lever is left alone because of it.
func TestRateHoldsNothingUp(t *testing.T) {
	wants := uint64(0)
	j := newNoisy(t, 200, newLoop(t, act.Auto, policy.Batch{}, policy.Checkpoint{}))
	j.train(t, 1000)
	before := len(j.rates())
	j.saves = sense.Saves{Cost: 0.5, Writing: 1, Count: 1} // now there is something to change
	j.state.Levers.Save = true
	for wants < 4000 && !slices.ContainsFunc(j.log, func(o act.Order) bool {
		return o.Change.Policy == "checkpoint"
	}) {
		j.step(t)
		wants++
	}
	if wants > maxPace+interval || before == 0 {
		t.Errorf("%d steps until the steps between checkpoints changed: %v", wants, j.phases())
	}
	j.train(t, 3000)
	if j.hasWhyNot("oscillates") || j.hasWhyNot("batch waits") {
		t.Errorf("%v: %v", j.phases(), j.loop.WhyNots())
	}
}

// How many steps are between two decisions, while nothing changes and right behind a change.
const maxPace, interval = 80, 10

// What the head refuses is asked for again some time later. A rate that a person has set stays, and
// so does that of a person's batch, which workers choose.
func TestRateIsRefused(t *testing.T) {
	j := newNoisy(t, 200, newLoop(t, act.Auto, policy.Batch{}))
	for len(j.rates()) == 0 {
		j.step(t)
	}
	n := len(j.log)
	j.refuse = errors.New("the job is paused")
	for j.refuse != nil {
		j.step(t)
	}
	if !j.hasWhyNot("was refused: the job is paused") {
		t.Errorf("%v", j.loop.WhyNots())
	}
	for len(j.log) == n {
		j.step(t)
	}

	for _, to := range []setting.Setting{{Batch: 256, Rate: 2.5}, {Batch: 192}} {
		j := newNoisy(t, 200, newLoop(t, act.Auto, policy.Batch{}))
		j.train(t, 500)
		n := len(j.log)
		j.setByPerson(t, to)
		j.train(t, 3000)
		if s := j.state.Setting; s.Rate != to.Rate || s.Batch != to.Batch || len(j.log) != n+2 {
			t.Errorf("a person set %v: %v", to, j.phases()[n:])
		}
		if c := j.log[n+1].Change; to.Batch == 256 &&
			!strings.HasPrefix(c.Why, "the rate changes") {
			t.Errorf("a person's rate ends as %+v", c)
		}
	}
}
