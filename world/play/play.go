// Package play plays scenarios: it lets a job in virtual time make its steps, has the loop that
// runs in every job decide for it, and says what came of that and whether it is as expected. It is
// where worlds and those who decide meet; neither knows the other. It is pure.
package play

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/scenario"
)

// PolicyNames returns the names of the policies that a scenario can name, in a new list.
func PolicyNames() []string { return append(policy.Names(), policy.Budget{}.Name()) }

// policiesOf returns the policies that a scenario names.
func policiesOf(s *scenario.Scenario) (list []decide.Policy) {
	known := append(policy.All(), policy.Budget{Epoch: s.Budget, Price: s.Price})
	for _, p := range known {
		if slices.Contains(s.Policies, p.Name()) {
			list = append(list, p)
		}
	}
	return list
}

// Result is what came of a scenario. Its seconds are those of virtual time.
type Result struct {
	Seed     uint64           `json:"seed"`
	Steps    uint64           `json:"steps"`
	Seconds  float64          `json:"seconds"`
	Samples  uint64           `json:"samples"`
	Workers  float64          `json:"worker_seconds"`    // of all workers together
	Progress float64          `json:"progress"`          // in samples at the stated batch
	Target   float64          `json:"target,omitempty"`  // progress to be made; 0 = there is none
	Ended    string           `json:"ended,omitempty"`   // why the job ended early; "" = it did not
	Periods  []Period         `json:"periods"`           // in their order, without a gap
	Entries  []setting.Change `json:"changes,omitempty"` // begins and ends of changes, in order
	WhyNots  []WhyNot         `json:"why_nots,omitempty"`
	Checks   []Check          `json:"expected,omitempty"` // by line
}

// CountChanges returns how many changes were entered.
func (r *Result) CountChanges() int { return r.countPhase(setting.Entered) }

// countPhase returns how many changes have come to a phase.
func (r *Result) countPhase(phase setting.Phase) (n int) {
	for _, c := range r.Entries {
		if c.Phase == phase {
			n++
		}
	}
	return n
}

// Period is a time in which the job trained under the same conditions.
type Period struct {
	From     uint64   `json:"from"`   // committed steps before it
	To       uint64   `json:"to"`     // and at its end
	At       float64  `json:"at"`     // seconds at its begin
	Events   []string `json:"events"` // what began it
	Hosts    int      `json:"hosts"`
	Workers  int      `json:"workers"`
	Batch    uint64   `json:"batch"`
	StepRate float64  `json:"steps_per_second"`
	Rate     float64  `json:"samples_per_second"`
	// Goodput is progress a second, and Best that of the best that the levers allow in these steps:
	// batch, size, way to synchronise and, where somebody decides about them, shares of work.
	Goodput float64 `json:"goodput"`
	Best    float64 `json:"best"`
}

// WhyNot is why a policy has not changed anything in some decisions.
type WhyNot struct {
	Policy string `json:"policy"`
	Why    string `json:"why"`
	First  uint64 `json:"first"` // step of the first of these decisions
	Last   uint64 `json:"last"`
	Times  int    `json:"times"`
}

// Check is an expectation and what came.
type Check struct {
	Line  int    `json:"line"`
	Text  string `json:"text"`
	Value Number `json:"value"` // samples that have not counted exactly once, for samples once
	Holds bool   `json:"holds"`
}

// Number is a number that is null in JSON where it is infinite or there is none.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if x := float64(n); !math.IsNaN(x) && !math.IsInf(x, 0) {
		return json.Marshal(x)
	}
	return []byte("null"), nil
}

// player is a scenario that is being played. One goroutine uses it.
type player struct {
	*scenario.Scenario
	world    *job.World
	deciding act.Config
	loop     *act.Loop
	entry    act.Entry
	waiting  *act.Order // is entered at the end of the next step
	asked    []scenario.Ask
	oracle   oracle
	audit    *audit
	tally    tally
	result   Result
	begun    []string // what begins the next period
	look     func(o sense.Observation) sense.Observation
	looks    float64 // at the job that were due since its start; see isLookDue
}

// Play plays a scenario from its start to its end, with policies of users beside those of the
// scenario that change something else. Whoever decides sees at each look, which comes after a step,
// what look returns of the job; nil = all. An error says what cannot be played.
func Play(s *scenario.Scenario, users []decide.Policy,
	look func(o sense.Observation) sense.Observation) (*Result, error) {
	p := &player{Scenario: s, look: look, asked: slices.Clone(s.Asked), begun: []string{"start"}}
	c := s.Job
	if slices.ContainsFunc(s.Expected, func(e scenario.Expectation) bool {
		return e.What == "samples"
	}) {
		p.audit = newAudit(c.Data.Samples)
		c.Audit = p.audit.countSamples
	}
	w, err := job.New(c)
	if err != nil {
		return nil, err
	}
	p.deciding = act.Config{Mode: act.Off, Policies: act.CombinePolicies(users, policiesOf(s))}
	shared := false // somebody decides about the shares of work
	for _, decides := range p.deciding.Policies {
		p.deciding.Mode = act.Auto
		shared = shared || slices.Contains(decides.Levers(), "shares")
	}
	if p.deciding.Mode == act.Off {
		p.deciding.Policies = []decide.Policy{policy.Shares{}}
	}
	p.world, p.oracle = w, newOracle(w, s.Job.Levers, s.Job.Data.Batch, shared)
	p.oracle.pairs = p.deciding.Mode == act.Off
	if err = p.beginRun(0); err != nil {
		return nil, err
	}
	p.result = Result{Seed: c.Seed, Target: s.Progress}
	for on := true; on && !p.isOver(); {
		if on, err = p.step(); err != nil {
			return nil, err
		}
	}
	p.compareExpectations()
	return &p.result, nil
}

// isOver reports whether the scenario has come to its end.
func (p *player) isOver() bool {
	r := &p.result
	return p.Steps > 0 && r.Steps >= p.Steps || p.Seconds > 0 && r.Seconds >= p.Seconds ||
		p.Progress > 0 && r.Progress >= p.Progress
}

// step lets the job make a step, and whoever decides look at it if that is due. It returns false
// when the job cannot go on, and an error where the step takes no time: what ends at a time would
// never end.
func (p *player) step() (on bool, err error) {
	s, on := p.world.Step()
	if !on {
		p.result.Ended = p.whyOver()
		return false, nil
	}
	if !(s.Seconds-s.Pause-s.Changing-s.Saving > 0) {
		return false, fmt.Errorf("step %d takes no time: workers need some to compute, to wait "+
			"for samples, or to exchange gradients", s.Step)
	}
	if s.GoneBack {
		if err := p.goBack(s); err != nil {
			return false, err
		}
	}
	for _, e := range s.Events {
		if e.What == job.Overflow {
			p.loop.WorkerFailed(e.Text)
		}
	}
	p.addStep(s)
	p.enterWaiting(s.Step)
	if p.isLookDue(s) {
		seen := p.world.Observation()
		if p.look != nil {
			seen = p.look(seen)
		}
		for _, o := range p.loop.Observe(seen) {
			p.waiting = &o
		}
		p.orderRequests(s) // whoever decides has seen the job, and what waits is entered first
		p.recordFaults()
	}
	return true, nil
}

// whyOver returns why the job cannot go on.
func (p *player) whyOver() string {
	members, there := p.world.NewRun()
	o := p.world.Observation()
	switch {
	case there > 0:
		return fmt.Sprintf("a new run begins with %s, %d%s there, and no host joins",
			plural.Of(members, "worker"), there, plural.Verb(there, " is", " are"))
	case o.Size > 0:
		return fmt.Sprintf("%s left, fewer than the minimum of %d, and no host joins",
			plural.Of(o.Size, "worker")+plural.Verb(o.Size, " is", " are"), o.Levers.Size.From)
	}
	return "no host is left"
}

// isLookDue reports whether whoever decides looks at the job after a step. As in a running job that
// is each act.LookInterval, of which the end of the step is awaited here, and at once where a
// worker has ended by itself or a person asks for something.
func (p *player) isLookDue(s job.Step) bool {
	before := p.looks
	p.looks = math.Floor(s.At / act.LookInterval.Seconds())
	return p.looks > before ||
		slices.ContainsFunc(s.Events, func(e job.Event) bool { return e.What == job.Overflow }) ||
		slices.ContainsFunc(p.asked, func(a scenario.Ask) bool { return isAskDue(a, s) })
}

// isAskDue reports whether a person asks for a change after a step, or has before.
func isAskDue(a scenario.Ask, s job.Step) bool {
	return a.Timed && a.At <= s.At || !a.Timed && a.Step <= s.Step
}

// beginRun has a run of the job begin after so many steps: nobody knows anything of the one before.
func (p *player) beginRun(step uint64) (err error) {
	p.entry = act.Entry{Step: step, Setting: p.world.Setting(), Levers: p.world.Levers(),
		Leads: true}
	if p.loop, err = act.New(p.deciding); err == nil {
		p.loop.EntryApplied(p.entry)
	}
	return err
}

// goBack has a new run begin before a step, from a checkpoint, since all hosts were lost.
func (p *player) goBack(s job.Step) error {
	if t := p.entry.Trial; t != nil {
		end := *t
		end.Phase, end.Why = setting.Void, "all workers were lost"
		p.recordChange(end)
	}
	p.recordWhyNots()
	p.waiting = nil
	p.begun = append(p.begun, "the newest checkpoint")
	return p.beginRun(s.Step - 1)
}

// recordWhyNots records in the result why policies have left things as they were in this run.
func (p *player) recordWhyNots() {
	for _, w := range p.loop.WhyNots() {
		p.result.WhyNots = append(p.result.WhyNots, WhyNot{w.Policy, w.Why, w.First, w.Last,
			w.Times})
	}
}

// enterWaiting enters what waits into the log of the job, at the end of a step.
func (p *player) enterWaiting(step uint64) {
	p.entry.Step, p.entry.Change, p.entry.Levers = step, nil, p.world.Levers()
	now := p.world.Setting() // a loss has changed the shares and the size
	p.entry.Setting.Shares, p.entry.Setting.Size = now.Shares, now.Size
	if o := p.waiting; o != nil {
		p.waiting = nil
		p.enterOrder(o, step)
	}
	p.loop.EntryApplied(p.entry)
}

// enterOrder enters an order as the head of a job does.
func (p *player) enterOrder(o *act.Order, step uint64) {
	c, next := o.Change, o.Next
	if !c.Phase.IsEnd() {
		c.Number, c.Step = p.entry.Setting.Number+1, step
		if c.IsAtOnce() {
			c.Phase = setting.Kept
		}
	} else if p.entry.Trial == nil || p.entry.Trial.Number != c.Number {
		return // it has ended meanwhile
	}
	// The end of a trial that stays changes nothing. Members that are lost meanwhile take their
	// shares along, and make the job smaller.
	now, stays := p.world.Setting(), c.Phase == setting.Kept || c.Phase == setting.Void
	if stays || !c.HasPart("shares") {
		next.Shares = now.Shares
	}
	if stays || !c.HasPart("size") {
		next.Size = now.Size
	} else if c.Phase == setting.Entered && p.restate(&c, next) {
		return
	}
	next = next.EnteredBy(c, p.entry.Setting)
	if err := p.world.Change(next); err != nil {
		p.loop.OrderRefused(err)
		return
	}
	if t := p.entry.Trial; t != nil && t.Number != c.Number { // a person's change replaces a trial
		end := *t
		end.Phase, end.Why = setting.Void, "another change was asked for"
		p.recordChange(end)
		p.entry.Change = &end
		p.entry.Trial = nil
		p.loop.EntryApplied(p.entry)
	}
	p.entry.Setting, p.entry.Trial, p.entry.Change = next, nil, &c
	if !c.Phase.IsEnd() {
		p.entry.Trial = &c
	}
	p.recordChange(c)
}

// restate has change c say what it changes in the job as it is now, and reports whether that is
// nothing: the job has come to the size by itself.
func (p *player) restate(c *setting.Change, next setting.Setting) bool {
	now := p.world.Setting().WithStated(p.Job.Data.Batch, p.Job.Levers)
	now.People = p.entry.Setting.People
	if c.From, c.To = now.Diff(next); c.IsRequest() {
		c.From, c.To = now.DiffRequested(next)
	}
	if c.IsAtOnce() { // only who may change it is another
		c.Phase, c.Predicted, c.Rate = setting.Kept, setting.Band{}, 0
	}
	return c.From == "" && c.To == ""
}

// recordChange records in the result that a change begins or ends.
func (p *player) recordChange(c setting.Change) {
	p.result.Entries = append(p.result.Entries, c)
	switch c.Phase {
	case setting.Entered:
		p.begun = append(p.begun, fmt.Sprintf("change %d: %s", c.Number, c.To))
	case setting.Reverted:
		p.begun = append(p.begun, fmt.Sprintf("change %d is taken back", c.Number))
	}
}

// orderRequests orders what a person asks for after this step.
func (p *player) orderRequests(s job.Step) {
	for i, a := range p.asked {
		if !isAskDue(a, s) || p.waiting != nil {
			continue
		}
		p.asked = slices.Delete(p.asked, i, i+1)
		next, err := p.world.Observation().Setting.WithRequested(a.To)
		if err == nil {
			var o act.Order
			if o, err = p.loop.Propose(next, "scenario"); err == nil {
				o.Change.Why = "" // which is for who only asks what would come of it
				p.waiting = &o
				return
			}
		}
		p.result.WhyNots = append(p.result.WhyNots, WhyNot{Policy: "scenario", Why: err.Error(),
			First: s.Step, Last: s.Step, Times: 1})
		return
	}
}

// recordFaults records in the result what policies did wrong.
func (p *player) recordFaults() {
	for _, f := range p.loop.PopFaults() {
		p.result.WhyNots = append(p.result.WhyNots, WhyNot{Policy: f.Policy, Why: f.Text,
			First: f.Step, Last: f.Step, Times: 1})
	}
}
