package act_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// scripted is a policy that wants what a function says, which gets the batch of now; 0 = it leaves
// it. It has some levers.
type scripted struct {
	name   string
	levers []string
	wants  func(batch uint64) uint64
}

// Name implements decide.Policy.
func (p scripted) Name() string { return p.name }

// Levers implements decide.Policy.
func (p scripted) Levers() []string { return p.levers }

// Decide implements decide.Policy.
func (p scripted) Decide(o sense.Observation, _ decide.Twin,
	state []byte) (decide.Decision, []byte) {
	to := decide.Target{Setting: o.Setting}
	if to.Setting.Batch = p.wants(o.Setting.Batch); to.Setting.Batch == 0 {
		return decide.NoChange("it wants nothing"), state
	}
	return decide.Decision{To: &to, Because: strings.Repeat("“it wants so” ", 40)}, state
}

// train trains by so many steps.
func (j *job) train(t testing.TB, steps int) {
	for range steps {
		j.step(t)
	}
}

// hasWhyNot reports whether the loop has a reason that contains a text.
func (j *job) hasWhyNot(text string) bool {
	for _, w := range j.loop.WhyNots() {
		if strings.Contains(w.Why, text) {
			return true
		}
	}
	return false
}

// To watch is to say what would be done, with its reason and prediction, more and more rarely, and
// to do nothing; and when policies are off, nothing is said either.
func TestModes(t *testing.T) {
	for mode, want := range map[act.Mode]int{act.Off: 0, act.Watch: 4} {
		j := newJob(newLoop(t, mode, policy.Batch{}), 64, batches)
		j.train(t, 400)
		if len(j.log) != 0 || j.batch() != 64 || len(j.said) != want {
			t.Fatalf("mode %d: it says %d times what it would do, and has done %v", mode,
				len(j.said), j.phases())
		}
		for _, o := range j.said {
			c := o.Change
			if c.Because == "" || c.To != "batch=128,rate=1.897" || c.Policy != "batch" ||
				c.Predicted.Mid < 1.1 || c.Step == 0 || len(c.Alternatives) == 0 || c.Rate == 0 {
				t.Errorf("%+v", c)
			}
		}
	}
}

// Where the job is not to decide by itself, work is divided among workers that average in pairs,
// and nothing else is.
func TestOffDividesWorkOfPairs(t *testing.T) {
	for sync, want := range map[string]bool{"": false, "local": false, "pair": true,
		"hybrid": true} {
		j := newJob(newLoop(t, act.Off, policy.Batch{}, greedyShares{}), 64, batches)
		j.state.Setting.Sync = sync
		j.train(t, 400)
		var asked []string
		for _, w := range j.loop.WhyNots() { // each has a reason to change nothing
			asked = append(asked, w.Policy)
		}
		if want != slices.Equal(asked, []string{"greedy"}) || !want && len(asked) > 0 ||
			len(j.log) > 0 {
			t.Errorf("by %q %v were asked: %v", sync, asked, j.phases())
		}
	}
}

// What a policy must not want is left and told, and after three times in a row the policy is off.
// Others go on.
func TestBadPolicies(t *testing.T) {
	for name, want := range map[string]string{
		"panics": "it panics: at the disco", "out of range": "outside of what the program allows",
		"foreign lever": "and its levers are save",
	} {
		bad := scripted{name, []string{"save"}, func(uint64) uint64 { return 96 }}
		switch name {
		case "panics":
			bad.wants = func(uint64) uint64 { panic("at the disco") }
		case "out of range":
			bad.levers, bad.wants = []string{"batch"}, func(uint64) uint64 { return 1 << 40 }
		}
		calm := scripted{"calm", []string{"shares"}, func(uint64) uint64 { return 0 }}
		j := newJob(newLoop(t, act.Auto, bad, calm), 64, batches)
		j.train(t, 100)
		faults := j.loop.PopFaults()
		if len(faults) != 3 || !faults[2].Off || faults[1].Off || len(j.log) != 0 ||
			!strings.Contains(faults[0].Text, want) || !j.hasWhyNot("it wants nothing") {
			t.Errorf("%s: %+v, %v", name, faults, j.phases())
		}
		if again := j.loop.PopFaults(); len(again) != 0 {
			t.Errorf("%s: again %+v", name, again)
		}
	}
	if _, err := act.New(act.Config{Policies: []decide.Policy{policy.Batch{},
		policy.KungFuBatch{}}}); err == nil || !strings.Contains(err.Error(), "batch and kungfu") {
		t.Errorf("two policies for the batch: %v", err)
	}
}

// A policy that goes back and forth is stopped for long, and for longer each time.
func TestOscillation(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
	high := true
	j.scale = func(float64) float64 { // the noise itself goes up and down
		if high {
			return 4000
		}
		return 10
	}
	changes := map[bool]int{}
	for i := range 3000 {
		high = i/60%2 == 0
		before := len(j.log)
		j.step(t)
		for _, o := range j.log[before:] {
			if !o.Change.IsAtOnce() { // the rate follows the noise, wherever that goes
				changes[i >= 1500]++
			}
		}
	}
	if !j.hasWhyNot("oscillates") || changes[true] > changes[false]/2 {
		t.Errorf("%v changes in the first and second half: %v", changes, j.phases())
	}
}

// Texts of a change are cut where a letter ends, and what is refused waits, longer each time.
func TestRefused(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, scripted{"greedy", []string{"batch"},
		func(batch uint64) uint64 { return 2 * batch }}), 64, batches)
	j.refuse = errors.New("the job is paused")
	for j.refuse != nil {
		j.step(t)
	}
	begin := j.state.Step
	for j.state.Trial == nil {
		j.step(t)
	}
	if waited := j.state.Step - begin; waited < 20 || waited > 40 {
		t.Errorf("it asks again after %d steps", waited)
	}
	if !j.hasWhyNot("batch=128 was refused: the job is paused") {
		t.Errorf("%v", j.loop.WhyNots())
	}
	if text := j.state.Trial.Because; len(text) > setting.MaxText ||
		!strings.HasSuffix(text, "…") || strings.ContainsRune(text, '�') {
		t.Errorf("because %q", text)
	}
}

// A change that the head does not let be taken back is void in the end, and says why.
func TestRefusedEnd(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
	j.seconds = func(x float64) float64 { return 0.02 + 0.0005*x*x }
	for len(j.log) < 2 {
		if j.state.Trial != nil && j.waiting != nil && j.waiting.Change.Phase == setting.Reverted {
			j.waiting = nil
			j.loop.OrderRefused(errors.New("the job is paused"))
		}
		j.step(t)
	}
	if c := j.log[1].Change; c.Phase != setting.Void || j.log[1].Next.Batch != 128 ||
		c.Why != "it cannot be taken back: the job is paused" {
		t.Errorf("%+v", c)
	}
}

// A batch for which workers have no memory goes back at once, and policies stay below it, also
// those of another head.
func TestOutOfMemory(t *testing.T) {
	other := newLoop(t, act.Auto, policy.Batch{})
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
	j.scale = func(float64) float64 { return 1e5 }
	for i := range 600 {
		if i == 400 { // another one leads
			j.waiting, j.loop = nil, other
		}
		if j.state.Trial != nil && j.batch() > 200 && j.waiting == nil {
			j.loop.WorkerFailed("exit status 1")
			j.members++
		}
		j.step(t)
		e := j.state
		e.Leads = false
		if i < 400 {
			other.EntryApplied(e)
		}
		if j.batch() > 256 {
			t.Fatalf("%v", j.phases())
		}
	}
	c := j.log[3].Change
	if c.Phase != setting.Reverted || j.log[3].Next.Batch != 128 || j.batch() < 128 ||
		c.Why != "a worker ended by itself in the trial: exit status 1" {
		t.Errorf("%+v, then %v", c, j.phases())
	}
}

// Memory is that of a worker: after workers have ended by themselves, nobody gets as many samples
// as they had then, with fewer workers or twice as many, by a larger batch or by a larger share.
func TestOutOfMemoryWithOtherMembers(t *testing.T) {
	for _, size := range []int{3, 8} {
		j := newJob(newLoop(t, act.Auto, policy.Batch{}, greedyShares{}), 32, batches)
		j.scale = func(float64) float64 { return 1e5 }
		for i := range 2000 {
			if j.batch() > 200 && j.size == 4 && j.waiting == nil && j.state.Trial != nil {
				j.loop.WorkerFailed("exit status 1") // 64 samples each
				j.members++
			}
			j.step(t)
			if i == 50 {
				j.size, j.members = size, j.members+1
			}
		}
		share := slices.Max(decide.SamplesOf(j.state.Setting, size))
		b := j.batch()
		if share >= 64 || b <= uint64(45*size) || !j.hasWhyNot("gives a worker up") {
			t.Errorf("%d workers, batch %d, up to %v each: %v %v", size, b, share, j.phases(),
				j.loop.WhyNots())
		}
	}
}

// Whatever a policy has on trial goes back at once where a worker ends by itself, as the launcher
// takes it: a change of shares too, and one of the size. Policies then stay below the samples that
// a worker had more, and below nothing where it had fewer. With other members shares become equal.
func TestWorkerEndsInAnyTrial(t *testing.T) {
	for _, x := range []struct {
		name     string
		from, to string
		lost     int // members
		back     string
		tooLarge bool
	}{
		{"shares", "", "shares=1:1:1:3", 0, "batch=128", true},
		{"shares of others", "shares=1:1:1:2", "shares=1:1:1:3", 1, "batch=128", true},
		{"fairer shares", "shares=1:1:1:3", "shares=1:1:1:2", 0, "batch=128,shares=1:1:1:3", false},
		{"more members", "size=2", "size=4", 0, "batch=128,size=2", false},
		{"fewer members", "size=8", "size=4", 0, "batch=128,size=8", true},
		{"a smaller batch", "batch=256", "batch=128", 0, "batch=256", false},
	} {
		j := newJob(newLoop(t, act.Auto, greedyShares{}), 128, batches)
		now, err := (setting.Setting{Batch: 128, Number: 1}).With("batch=128," + x.to)
		if err != nil {
			t.Fatal(err)
		}
		j.step(t)
		c := setting.Change{Number: 1, Phase: setting.Entered, Policy: "greedy", From: x.from,
			To: x.to, Step: j.state.Step, Rate: 1000}
		j.state.Setting, j.state.Trial, j.state.Change = now, &c, &c
		j.loop.EntryApplied(j.state)
		j.state.Change = nil
		j.step(t)
		j.size -= x.lost
		j.observe(t)
		j.waiting = nil
		j.loop.WorkerFailed("exit status 1")
		j.observe(t)
		o := j.waiting
		if o == nil || o.Change.Phase != setting.Reverted || o.Next.String() != x.back {
			t.Errorf("%s: %+v", x.name, o)
			continue
		}
		j.enterWaiting(t)
		for range 300 {
			j.step(t)
		}
		if got := j.hasWhyNot("have ended by themselves at"); got != x.tooLarge {
			t.Errorf("%s: policies stay below what a worker had: %v", x.name, got)
		}
	}
}

// greedyShares is a policy that wants rank 0 to do nearly all the work.
type greedyShares struct{ decide.Policy }

// Name implements decide.Policy.
func (greedyShares) Name() string { return "greedy" }

// Levers implements decide.Policy.
func (greedyShares) Levers() []string { return []string{"shares"} }

// Decide implements decide.Policy.
func (greedyShares) Decide(o sense.Observation, _ decide.Twin, _ []byte) (decide.Decision, []byte) {
	to := decide.Target{Setting: o.Setting}
	to.Setting.Shares = append([]uint16{1000}, make([]uint16, o.Size-1)...)
	return decide.Decision{To: &to, Because: "it is greedy"}, nil
}

// Another head, which has seen the steps and not led, measures the change under trial anew; and one
// that has not even seen them believes the rate that is in the log.
func TestOtherHead(t *testing.T) {
	for _, seen := range []bool{true, false} {
		j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
		for j.state.Trial == nil {
			j.step(t)
		}
		j.waiting, j.loop = nil, newLoop(t, act.Auto, policy.Batch{})
		if !seen {
			j.steps = sense.StepSeries{}
		}
		j.state.Change = nil
		j.loop.EntryApplied(j.state)
		j.train(t, 30)
		c := j.log[1].Change
		if c.Phase != setting.Kept || c.Number != 1 || c.Measured < 1.5 || c.Measured > 1.9 {
			t.Errorf("steps seen: %v; %+v", seen, c)
		}
	}
}

// A loss during a trial has it measured again once, when as many members are there as before; then
// the change is void, and its setting stays.
func TestLossInTrial(t *testing.T) {
	for losses, want := range []setting.Phase{setting.Kept, setting.Kept, setting.Void} {
		j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
		for j.state.Trial == nil {
			j.step(t)
		}
		for range losses {
			j.train(t, 5)
			j.members++ // another one has taken the place
		}
		j.train(t, 30)
		if c := j.log[1].Change; c.Phase != want || j.log[1].Next.Batch != 128 ||
			(c.Why != "") != (want == setting.Void) {
			t.Errorf("%d losses: %+v", losses, c)
		}
	}
}

// Changes cost a fiftieth of the time at most.
func TestCostIsBounded(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 32, batches)
	j.scale = func(float64) float64 { return 1e5 }
	number, since := uint64(0), 0
	j.seconds = func(x float64) float64 {
		if n := j.state.Setting.Number; n != number { // what is loaded ahead is loaded anew
			number, since = n, 0
		}
		if since++; since == 1 && number > 0 {
			return 9
		}
		return 0.1 + 0.0005*x
	}
	for j.now < 500 {
		j.step(t)
	}
	if n := j.state.Setting.Number; n > 2 || !j.hasWhyNot("12 s are allowed") {
		t.Errorf("%d changes: %v %s", n, j.phases(), fmt.Sprint(j.loop.WhyNots()))
	}
}

// A change whose prediction is a loss, and that is made because nothing like it was measured, says
// so, and is made once.
func TestLearning(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
	j.seconds = func(x float64) float64 { return 1e-4 * x * x } // no other batch is better
	j.scale = func(float64) float64 { return 40 }
	j.train(t, 2000)
	learns := 0
	for _, o := range j.log {
		if c := o.Change; c.Phase == setting.Entered && c.Predicted.Mid < decide.MinGain {
			learns++
			if !strings.HasPrefix(c.Because, "to learn what a sample takes: only steps of 64 "+
				"samples were measured") {
				t.Errorf("%+v", c)
			}
		}
	}
	if learns != 1 || len(j.log) > 4 {
		t.Errorf("%d changes to learn something: %v", learns, j.phases())
	}
}

// Shares that are taken back are those of the ranks before the change: where another member has
// taken the place of one meanwhile, nobody knows here whose they were, and all get equal ones.
func TestSharesOfOtherMembersAreNotTakenBack(t *testing.T) {
	for replaced, want := range map[bool][]uint16{false: {1, 1, 1, 2}, true: nil} {
		j := newJob(newLoop(t, act.Auto, greedyShares{}), 128, batches)
		j.state.Setting = setting.Setting{Batch: 128, Shares: []uint16{1, 1, 1, 2}}
		j.train(t, 30)
		c := setting.Change{Number: 1, Phase: setting.Entered, Policy: "greedy", Step: j.state.Step,
			From: "shares=1:1:1:2", To: "shares=1:1:1:3", Rate: 1000}
		j.state.Setting.Number, j.state.Setting.Shares = 1, []uint16{1, 1, 1, 3}
		j.state.Trial, j.state.Change = &c, &c
		j.loop.EntryApplied(j.state)
		j.waiting, j.seconds = nil, func(float64) float64 { return 0.2 }
		j.train(t, 2)
		if replaced { // rank 0 is lost, and who takes its place is the last
			j.members++
			j.state.Setting.Shares = []uint16{1, 1, 3, 2}
		}
		for j.state.Trial != nil {
			j.step(t)
		}
		end := j.log[len(j.log)-1]
		if end.Change.Phase != setting.Reverted || !slices.Equal(end.Next.Shares, want) {
			t.Errorf("another member: %v; %+v", replaced, end)
		}
	}
}

// Steps that workers have made in another way to synchronise are none from before a change, though
// rounds were as long.
func TestOtherWayIsNotBefore(t *testing.T) {
	j := syncJob(newLoop(t, act.Off))
	j.spread = 0.1
	j.sized = func(int, float64) (seconds, exposed float64) {
		if j.state.Setting.Sync == "sma" {
			return 0.1, 0.05 // so meetings are predicted to cost much, and few steps show that
		}
		return 0.05, 0.02
	}
	j.state.Setting.Sync = "sma"
	j.train(t, 120)
	j.order(t, "sync=pair")
	for j.state.Trial != nil {
		j.step(t)
	}
	j.train(t, 12)
	j.order(t, "shares=2:1:1:1")
	for j.state.Trial != nil {
		j.step(t)
	}
	if c := j.log[len(j.log)-1].Change; c.Measured < 0.8 || c.Measured > 1.2 {
		t.Errorf("%+v: %v", c, j.phases())
	}
}
