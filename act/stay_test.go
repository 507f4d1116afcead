package act_test

import (
	"errors"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// wantsSync is a policy that wants one way to synchronise, by which the goodput must grow so much
// at least; 0 = as much as by any change.
type wantsSync struct{ least float64 }

// Name implements decide.Policy.
func (wantsSync) Name() string { return "wants" }

// Levers implements decide.Policy.
func (wantsSync) Levers() []string { return []string{"sync", "round"} }

// Decide implements decide.Policy.
func (p wantsSync) Decide(o sense.Observation, _ decide.Twin,
	state []byte) (decide.Decision, []byte) {
	to := decide.Target{Setting: o.Setting}
	to.Setting.Sync, to.Setting.Round = "local", 4
	if o.Setting.Sync == "local" {
		return decide.NoChange("it has it"), state
	}
	return decide.Decision{To: &to, Because: "it wants so", Least: p.least}, state
}

// syncJob is a job whose program leaves to it how workers synchronise, by a loop.
func syncJob(loop *act.Loop) *job {
	j := newJob(loop, 64, batches)
	j.sized = func(int, float64) (seconds, exposed float64) { return 0.05, 0.045 }
	j.scale = func(float64) float64 { return 500 }
	j.state.Levers.Sync, j.state.Levers.Round, j.state.Levers.Auto = setting.Ssgd, 1, true
	j.state.Setting = setting.Setting{Batch: 64, Sync: setting.Ssgd, Round: 1}
	loop.EntryApplied(j.state)
	return j
}

// order has the head enter a person's setting.
func (j *job) order(t *testing.T, to string) {
	t.Helper()
	o, err := j.loop.Propose(mustSetting(j.state.Setting.With(to)), "ada")
	if err != nil {
		t.Fatal(err)
	}
	j.waiting = &o
	j.step(t)
}

// mustSetting returns a setting of which there is no error.
func mustSetting(s setting.Setting, err error) setting.Setting {
	if err != nil {
		panic(err)
	}
	return s
}

// Where the workers do not go over to the way that the setting has, it goes back to theirs, whoever
// has asked for the change, and the reason is theirs.
func TestWorkersThatStay(t *testing.T) {
	j := syncJob(newLoop(t, act.Auto, wantsSync{}))
	for i := 0; j.state.Trial == nil && i < 200; i++ {
		j.step(t)
	}
	for _, who := range []string{"the policy", "a person"} {
		n := j.state.Setting.Number
		j.loop.WorkersStayed(act.Stay{Number: n, Sync: setting.Ssgd,
			Why: "rank 2 has another anchor"})
		j.train(t, 3)
		c := j.log[len(j.log)-1].Change
		if s := j.state.Setting; s.Sync != setting.Ssgd || s.Round != 1 || c.Number != n ||
			c.Phase != setting.Reverted || c.Why != "rank 2 has another anchor" {
			t.Errorf("%s: %v after %+v", who, s, c)
		}
		if who == "the policy" {
			j.order(t, "sync=hybrid,round=2")
		}
	}
	changes := len(j.log)
	j.order(t, "sync=pair,round=2") // workers go over to that
	j.train(t, 60)
	if j.state.Setting.Sync != "pair" {
		t.Errorf("what was said of an earlier change takes a later one back: %v",
			j.phases()[changes:])
	}
}

// Where another change has come in between, a change of its own brings the setting back when that
// one is measured, and is ordered again where the head refuses it.
func TestWorkersThatStayBehindAnotherChange(t *testing.T) {
	j := syncJob(newLoop(t, act.Off))
	j.train(t, 20)
	j.order(t, "sync=hybrid")
	void := j.state.Setting.Number
	j.order(t, "batch=128")
	j.loop.WorkersStayed(act.Stay{Number: void, Sync: setting.Ssgd,
		Why: "rank 2 has another anchor"})
	for range 80 {
		o := j.waiting
		if o != nil && o.Change.Phase == setting.Kept && j.count(setting.Kept) == 0 {
			j.refuse = errors.New("the job is paused")
		}
		j.step(t)
	}
	s := j.state.Setting
	if s.Sync != setting.Ssgd || s.Round != 1 || s.Batch != 128 || s.Number != void+2 ||
		j.refuse != nil {
		t.Fatalf("%v after %v, refuses %v", s, j.phases(), j.refuse)
	}
	c := j.log[len(j.log)-2].Change
	if c.Who != "the workers" || c.Because != "change 1 of how they synchronise is void: rank 2 "+
		"has another anchor" {
		t.Errorf("%+v", c)
	}
}

// A rule that takes whatever comes of its change does not wait until a trial could show what does,
// where steps differ too much; others do.
func TestUnsteadyStepsHoldWhoGoesByTrials(t *testing.T) {
	for least, want := range map[float64]int{0: 0, 1e-3: 1} {
		j := syncJob(newLoop(t, act.Auto, wantsSync{least}))
		j.sized = func(int, float64) (seconds, exposed float64) { return 0.05, 0.04 }
		j.spread = 1.5
		j.train(t, 150)
		if n := j.count(setting.Entered); n != want || j.hasWhyNot("would not show it") == (n > 0) {
			t.Errorf("at least %g: %v, %v", least, j.phases(), j.loop.WhyNots())
		}
	}
}

// That the workers bring the setting back to their way is no wish of a person: a policy may change
// it again later.
func TestWorkersThatStayAreNoPerson(t *testing.T) {
	j := syncJob(newLoop(t, act.Auto, wantsSync{}))
	for i := 0; j.state.Trial == nil && i < 200; i++ {
		j.step(t)
	}
	void := j.state.Setting.Number
	j.order(t, "batch=128")
	j.loop.WorkersStayed(act.Stay{Number: void, Sync: setting.Ssgd, Why: "of another anchor"})
	j.train(t, 1500)
	if last := j.log[len(j.log)-1].Change; last.Policy != "wants" || last.Number < void+3 ||
		j.hasWhyNot("a person has set sync") {
		t.Errorf("%v, %v", j.phases(), j.loop.WhyNots())
	}
}

// With their way comes the length of rounds that they had with it.
func TestWorkersThatStayKeepTheirRounds(t *testing.T) {
	j := syncJob(newLoop(t, act.Off))
	j.state.Setting.Sync, j.state.Setting.Round = "pair", 16
	j.loop.EntryApplied(j.state)
	j.train(t, 20)
	j.order(t, "sync=ssgd,round=1")
	void := j.state.Setting.Number
	j.order(t, "batch=128")
	j.loop.WorkersStayed(act.Stay{Number: void, Sync: "pair", Why: "rank 2 has another anchor"})
	j.train(t, 120)
	if s := j.state.Setting; s.Sync != "pair" || s.Round != 16 || s.Batch != 128 {
		t.Errorf("%v after %v", s, j.phases())
	}
}
