package act_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// event is something that happens to a job, and a number that says more.
type event struct {
	Kind   string
	Number int
}

// events are all kinds, each with the numbers that it can have.
var events = []struct {
	kind string
	most int
}{{"steps", 40}, {"lose", 0}, {"join", 0}, {"refuse", 0}, {"other head", 0}, {"same head", 0},
	{"set", 1024}, {"slow", 5}, {"noise", 5000}, {"close", 1}, {"drop", 0}, {"idle", 0},
	{"end by itself", 0}, {"not finite", 1}}

// applyEvent has an event happen to a job. newLoop returns the loop of another head.
func applyEvent(t testing.TB, j *job, e event, newLoop func() *act.Loop) {
	switch e.Kind {
	case "steps":
		for range e.Number {
			j.step(t)
		}
	case "lose", "join":
		if e.Kind == "lose" && j.size > 1 {
			j.size--
		} else if e.Kind == "join" {
			j.size++
		}
		j.members++
	case "refuse":
		j.refuse = errors.New("the job is paused")
	case "other head": // what was ordered and not entered is lost with the one before
		j.waiting, j.loop = nil, newLoop()
		j.loop.EntryApplied(j.state)
	case "same head": // it leads no more, and then again
		j.waiting, j.state.Change, j.state.Leads = nil, nil, false
		j.loop.EntryApplied(j.state)
		j.observe(t)
		j.state.Leads = true
		j.loop.EntryApplied(j.state)
	case "set":
		j.setByPerson(t, setting.Setting{Batch: uint64(e.Number)})
	case "slow":
		j.seconds = func(x float64) float64 { return float64(1+e.Number) * (0.05 + 0.0005*x) }
	case "noise":
		j.scale = func(float64) float64 { return float64(e.Number) }
	case "not finite":
		broken := garbage["gradients"]
		if j.estimate = &broken; e.Number == 0 {
			j.estimate = nil
		}
	case "close":
		j.state.Levers = setting.Levers{}
		if e.Number == 0 {
			j.state.Levers.Batch = batches
		}
		j.loop.EntryApplied(j.state)
	case "drop":
		j.waiting = nil
	case "end by itself":
		j.loop.WorkerFailed("exit status 1")
		j.members++
	case "idle":
		j.observe(t)
	case "full": // nobody joins any more, or again
		j.joins = 1 << 30 * e.Number
	case "resize":
		j.setByPerson(t, setting.Setting{Batch: j.batch(), Size: uint32(max(e.Number, 1))})
	}
}

// setByPerson has a person set the batch and the size, as far as the job allows it; a size of 0
// stays. What a policy has on trial ends. Without People they stay, too.
func (j *job) setByPerson(t testing.TB, next setting.Setting) {
	j.observe(t)
	if next.Size == 0 {
		next.Size = j.state.Setting.Size
	}
	if next.People == nil {
		next.People = j.state.Setting.People
	}
	o, err := j.loop.Propose(next, "ada@h1")
	if err != nil || j.state.Trial != nil && j.state.Trial.Who != "" {
		return
	}
	if j.state.Trial != nil {
		c := *j.state.Trial
		c.Phase, c.Why = setting.Void, "a person has set something"
		j.waiting = &act.Order{Next: j.state.Setting, Change: c}
		j.enterWaiting(t)
	}
	j.waiting = &o
	j.enterWaiting(t)
}

// Whatever happens, every change is kept, reverted or void in the end, never two are under trial,
// the rate changes beside none, no batch is chosen by gradients that are not finite, what a person
// has set is not taken back, and the same events give the same orders.
func TestEveryChangeEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []event
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			kind := events[rapid.IntRange(0, len(events)-1).Draw(t, "kind")]
			list = append(list, event{kind.kind, rapid.IntRange(0, kind.most).Draw(t, "number")})
		}
		seed := rapid.Uint64().Draw(t, "seed")
		first := playEvents(t, list, seed)
		if diff := cmp.Diff(first, playEvents(t, list, seed)); diff != "" {
			t.Errorf("the same again gives (-first +second): %s", diff)
		}
	})
}

// fataler is a rapid.T as what the job of a test takes.
type fataler struct {
	testing.TB
	t *rapid.T
}

// Fatalf fails the case.
func (f fataler) Fatalf(format string, values ...any) { f.t.Fatalf(format, values...) }

// Fatal fails the case.
func (f fataler) Fatal(values ...any) { f.t.Fatal(values...) }

// playEvents has events happen to a new job, and then nothing until its last change has ended. It
// returns all that was ordered.
func playEvents(r *rapid.T, list []event, seed uint64) string {
	t := fataler{t: r}
	hostile := &hostile{random: seed}
	// loop returns the loop of a head.
	loop := func() *act.Loop {
		return newLoop(t, act.Auto, policy.Batch{}, policy.Size{}, hostile)
	}
	j := newJob(loop(), 64, batches)
	j.spread = 0.1
	if seed%2 == 0 { // the size is open
		j.state.Levers.Size, j.joins = setting.Range{From: 1, To: 8}, 3
		j.state.Setting = setting.Setting{Batch: 64, Size: 4}
		j.loop.EntryApplied(j.state)
		j.sized = func(n int, x float64) (took, exposed float64) {
			exposed = 0.004 * float64(n)
			return j.seconds(x) + exposed, exposed
		}
	}
	for _, e := range list {
		applyEvent(t, j, e, loop)
	}
	for i := 0; j.state.Trial != nil || j.waiting != nil; i++ {
		if i > 5000 {
			r.Fatalf("after %d steps there is still %+v", i, j.state.Trial)
		}
		j.step(t)
		if j.state.Trial == nil && i > 1500 { // policies go on for ever
			break
		}
	}
	open := uint64(0)
	for i, o := range j.log {
		c := o.Change
		switch {
		case c.IsAtOnce():
			if open != 0 || c.Phase != setting.Kept || c.Predicted.IsKnown() || c.Steps != 0 {
				r.Fatalf("change %+v of the rate while %d is open", c, open)
			}
		case !c.Phase.IsEnd() && (open != 0 || c.Number == 0):
			r.Fatalf("change %d begins while %d is open", c.Number, open)
		case !c.Phase.IsEnd():
			open = c.Number
		case c.Number != open:
			r.Fatalf("change %d ends, and %d is open", c.Number, open)
		case c.Who != "" && c.Phase == setting.Reverted:
			r.Fatalf("what a person has set is taken back: %+v", c)
		case c.Phase == setting.Reverted:
			began := j.log[i-1].Change
			from, _ := setting.Setting{}.With(began.From)
			if o.Next.Batch != from.Batch && from.Batch > 0 ||
				o.Next.Size != from.Size && from.Size > 0 {
				r.Fatalf("%+v is not what was before %+v", o.Next, began)
			}
			open = 0
		default:
			open = 0
		}
	}
	return bytesOf(t, j.log) + bytesOf(t, j.said) + fmt.Sprint(j.loop.WhyNots())
}

// hostile is a policy that does all that a policy must not, and now and then what it may.
type hostile struct{ random uint64 }

// Name implements decide.Policy.
func (*hostile) Name() string { return "hostile" }

// Levers implements decide.Policy.
func (*hostile) Levers() []string { return []string{"save"} }

// Decide implements decide.Policy.
func (h *hostile) Decide(o sense.Observation, twin decide.Twin,
	state []byte) (decide.Decision, []byte) {
	h.random = h.random*6364136223846793005 + 1442695040888963407
	to := decide.Target{Setting: o.Setting}
	switch h.random >> 60 {
	case 0:
		panic("at the disco")
	case 1:
		to.Setting.Rate = math.NaN()
	case 2:
		to.Setting.Batch *= 2
	case 3:
		to.Setting.Size = 1e9
	case 4:
		to.Setting.Save = 1 << 63
	case 5:
		return decide.NoChange("it has no mind"), make([]byte, 1<<20)
	case 6:
		to.Setting.Save = 100
	default:
		return decide.NoChange("it is tired"), state
	}
	return decide.Decision{To: &to, Because: "it can"}, state
}
