// Package act carries changes of a running job out: it asks the policies, lets one of them change
// one thing at a time, measures what came of it, and keeps the change or takes it back. It is pure.
// What it wants done it returns as orders; what has become true it is told, as entries of the job's
// log. Every agent of a job has a Loop and tells it of all entries, so that whichever comes to lead
// goes on.
package act

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// Mode is what policies may do. The zero value is Off.
type Mode int

const (
	// Off asks no policy but that of shares, and that only where workers average in pairs, each
	// of which is to take as many samples as it can. The changes of people are measured.
	Off Mode = iota
	// Watch decides and predicts, and changes nothing.
	Watch
	// Auto changes what policies decide.
	Auto
)

// LookInterval is the time from one look of a Loop at its job to the next, in a running job and in
// virtual time.
const LookInterval = sense.Second / 4

const (
	// interval is the number of optimizer steps from one decision to the next. While nothing
	// changes it doubles up to maxInterval, since to decide takes about a millisecond.
	interval, maxInterval = 10, 80
	// glance is the number of steps from one look to the next at whether the job has suddenly
	// become faster or slower, by suddenFactor at least. Then policies are asked at once.
	glance, suddenFactor = 5, 1.2
	// maxWait is after how many steps an order that has not become an entry is given up.
	maxWait = 512
)

// Config is what a Loop begins with.
type Config struct {
	Mode     Mode
	Policies []decide.Policy // asked in this order
}

// Order is something that should be entered into the log of the job.
type Order struct {
	Next   setting.Setting // how the job trains then; without a number of its own
	Change setting.Change  // in Phase Entered without a number; in an end with that which it has
	Watch  bool            // it is only said, and not entered
}

// Entry is how the job trains after an entry of its log.
type Entry struct {
	Step    uint64 // committed steps
	Setting setting.Setting
	Levers  setting.Levers
	Trial   *setting.Change // the change under measurement; nil = there is none
	Change  *setting.Change // the change that begins or ends with this entry; nil = none does
	Leads   bool            // this agent leads the job
}

// Fault is that a policy did not decide as it must. What it wanted was left.
type Fault struct {
	Step   uint64
	Policy string
	Text   string // what is wrong, in words
	Off    bool   // it is not asked any more, because it was the third fault in a row
}

// Loop senses, decides, acts and checks for one job. Use New. One goroutine uses it at a time, and
// its methods do no I/O.
type Loop struct {
	mode     Mode
	policies []*member
	levers   []*lever
	twin     *twin.Twin
	entry    Entry             // the newest
	now      sense.Observation // the newest
	asked    *asked            // an order that is not an entry yet; nil = there is none
	trial    *trial            // that of entry; nil = there is none, or it has not been looked at
	next     uint64            // step from which on policies are asked again
	pace     uint64            // steps from the newest decision to that, if no policy wants less
	again    uint64            // commits after which a policy wants to be asked again, at most
	speed    speed
	noisy    bool    // the noise was known at the newest decision
	memory   memory  // of the noise
	changed  uint64  // step at which the newest change has begun or ended
	tooLarge float64 // samples of a worker at which some have ended; 0 = none has
	since    uint64  // twin.LastInvalidStep when policies were asked last
	sizes    sizes
	rounds   []rounds   // that the job has trained in, the newest last; none = each of one step
	released uint64     // optimizer steps until the newest release; see releaseLevers
	calm     uint64     // for how many of them after it there is no other one
	spent    []spending // what changes have cost lately, the newest last
	whyNots  []WhyNot   // the newest last; at most maxWhyNots
	faults   []Fault    // that were not taken yet
	stay     staying
}

// sizes are what the loop remembers of the number of members.
type sizes struct {
	asked     int    // when policies were asked last
	tried     int    // when the newest change was entered
	takenBack uint64 // number of the newest change of it that was; 0 = none was
}

// speed is how fast the job was when somebody looked.
type speed struct {
	step uint64  // of the newest look
	rate float64 // samples a second at the newest decision; 0 = not known
}

// asked is a change that was ordered.
type asked struct {
	change     setting.Change
	efficiency float64 // that was predicted
	least      float64 // candidate.least
	learns     bool    // it is made to learn something
	step       uint64  // when it was ordered
}

// New returns a loop that has seen nothing. An error says which policies cannot go together.
func New(c Config) (*Loop, error) {
	l := &Loop{mode: c.Mode, twin: &twin.Twin{}, next: interval, pace: interval}
	owner := map[string]string{}
	for _, p := range c.Policies {
		for _, name := range p.Levers() {
			if other, taken := owner[name]; taken {
				return nil, fmt.Errorf("the policies %s and %s both change %s: leave one out",
					other, p.Name(), name)
			}
			owner[name] = p.Name()
		}
		l.policies = append(l.policies, &member{Policy: p})
	}
	return l, nil
}

// Observe looks at the job, and returns what should be done now; on agents that do not lead,
// nothing. It may be called as often as steps commit, and less often.
func (l *Loop) Observe(o sense.Observation) []Order {
	l.memory.restoreNoise(&o, l.countSteps(o.Step))
	o.TakenBack = l.sizes.takenBack
	l.now = o
	if !l.entry.Leads {
		return nil
	}
	if orders := l.orderSyncOfWorkers(); orders != nil {
		return orders
	}
	switch {
	case l.entry.Trial != nil:
		return l.measureTrial()
	case l.asked != nil && o.Step > l.asked.step+maxWait:
		l.recordWhyNot(l.asked.change.Policy, fmt.Sprintf(
			"%s was ordered %d steps ago and has not begun",
			l.asked.change.To, o.Step-l.asked.step))
		l.asked = nil
	case l.asked != nil, !slices.ContainsFunc(l.policies, l.mayAsk),
		o.Step < l.next && !l.hasSpeedJumped() && !l.isResized():
	default:
		orders := l.orderBestDecision()
		if len(orders) > 0 && orders[0].Change.IsAtOnce() && l.asked != nil {
			l.next = o.Step // the others decide right after it
			return orders
		}
		if l.pace = min(2*l.pace, maxInterval); len(orders) > 0 || o.Noise.Known != l.noisy {
			l.pace = interval
		}
		l.next = o.Step + min(commitsForSteps(l.pace, o.Setting.Round), l.again)
		l.noisy = o.Noise.Known
		l.speed.step, l.speed.rate = o.Step, l.twin.SamplesPerSecond().Mid
		return orders
	}
	return nil
}

// hasSpeedJumped reports whether the job has become much faster or slower since the newest
// decision. It looks every few steps.
func (l *Loop) hasSpeedJumped() bool {
	if l.speed.rate == 0 || l.now.Step < l.speed.step+glance {
		return false
	}
	rate, n := sense.Rate(l.now.Steps.Between(max(l.changed, l.now.Step-glance), l.now.Step))
	l.speed.step = l.now.Step
	if n < glance-1 || math.Abs(portable.Log(rate.Mid/l.speed.rate)) < portable.Log(suddenFactor) {
		return false
	}
	l.pace = interval
	return true
}

// isResized reports whether there are other members than when policies were asked last, of whom
// enough steps were made to decide by.
func (l *Loop) isResized() bool {
	newest, _ := l.now.Steps.Newest()
	return l.sizes.asked != 0 && l.now.Size != l.sizes.asked && newest.Size == l.now.Size &&
		len(l.now.Steps.Between(l.now.Step-min(l.now.Step, interval), l.now.Step)) >= minMeasure
}

// EntryApplied tells the loop of an entry of the log, also of those that change no setting.
func (l *Loop) EntryApplied(e Entry) {
	if e.Leads && !l.entry.Leads {
		l.next, l.pace = e.Step+commitsForSteps(interval, e.Setting.Round), interval
	}
	if roundOf(e) != roundOf(l.entry) {
		r := rounds{step: e.Step, made: l.countSteps(e.Step), each: roundOf(e)}
		l.rounds = sense.AppendNewest(l.rounds, r, maxRounds)
	}
	l.entry = e
	l.forgetStay(e)
	if e.Change != nil && e.Change.IsRequest() && e.Change.IsAtOnce() {
		l.next = min(l.next, e.Step+commitsForSteps(interval, e.Setting.Round))
	} else if e.Change != nil && e.Change.IsAtOnce() {
		v := l.findOrAddLever("rate")
		l.asked, v.until, v.why = nil, l.momentAfter(maxInterval), "it was changed lately"
	} else if e.Change != nil {
		l.changed, l.pace = e.Step, interval
		l.next = min(l.next, e.Step+commitsForSteps(interval, e.Setting.Round))
		l.learnChange(*e.Change)
	}
	if !e.Leads {
		l.asked, l.trial = nil, nil
		return
	}
	if e.Trial == nil {
		l.trial = nil
	} else if l.trial == nil || l.trial.change.Number != e.Trial.Number {
		l.trial = &trial{change: *e.Trial}
		if a := l.asked; a != nil && a.change.From == e.Trial.From && a.change.To == e.Trial.To {
			l.trial.efficiency, l.trial.least = a.efficiency, a.least
			if v := l.findOrAddLever(mainPart(a.change)); a.learns && v.name != "size" {
				v.learnt = setting.PartOf(a.change.To, v.name)
			}
		}
		l.asked = nil
	}
}

// OrderRefused tells the loop that the order before was not accepted, and why.
func (l *Loop) OrderRefused(why error) {
	if l.asked == nil { // an end was refused: it is ordered again a few steps later
		if l.trial != nil {
			l.trial.refused, l.trial.refusals = why, l.trial.refusals+1
		}
		return
	}
	c := l.asked.change
	l.asked = nil
	l.recordWhyNot(c.Policy, fmt.Sprintf("%s was refused: %v", c.To, why))
	l.delayLever(l.findOrAddLever(mainPart(c)))
}

// OrderDropped tells the loop that no change waits to be entered: an order that was accepted and is
// no entry yet is none any more, since the job has come to that size by itself, or somebody has
// asked for another one. The policies are asked again. Without such an order it does nothing.
func (l *Loop) OrderDropped() {
	if l.asked == nil {
		return
	}
	c := l.asked.change
	l.asked = nil
	l.recordWhyNot(c.Policy, fmt.Sprintf("%s was ordered, and the job has come to another size "+
		"before it could begin", c.To))
}

// WorkerFailed tells the loop that a worker has ended by itself, and how, in words: not that it was
// killed or its host was lost. If a change of a policy is on trial, that may have been the reason:
// it goes back at once. Where the change has given a worker more samples, policies stay below as
// many, as the memory of workers is bounded.
func (l *Loop) WorkerFailed(how string) {
	if t := l.trial; t != nil && t.change.Policy != "" && t.ended == "" {
		t.ended = how
	}
}

// learnChange learns of a change that has begun or ended, which all agents of the job do.
func (l *Loop) learnChange(c setting.Change) {
	if c.Phase.IsEnd() {
		l.twin.Learn(c)
	}
	v := l.findOrAddLever(mainPart(c))
	switch c.Phase {
	case setting.Entered:
		if l.sizes.tried = l.now.Size; c.HasPart("sync") {
			l.stay.switched = c
		}
	case setting.Reverted, setting.Void:
		if v.name != "size" || c.Phase == setting.Void || c.Steps == 0 {
			v.patience = max(v.patience, leastFrozen)
			l.delayLever(v)
		} // else a search goes on: each trial says more of all other sizes
		if c.Phase == setting.Reverted {
			l.recordTakenBack(v, c)
			if v.name == "size" {
				l.sizes.takenBack = c.Number
			}
		}
		// see WorkerFailed
		most := l.samplesOfBusiestWorkers(c)
		if c.Phase == setting.Reverted && strings.Contains(c.Why, workerEnded) &&
			most[1] > most[0] {
			l.tooLarge = most[1]
		}
	case setting.Kept:
		if l.recordKept(v, c) {
			l.recordWhyNot(c.Policy, v.why)
		}
	}
}

// PopFaults returns the faults of policies since it was called last. Each is worth a line.
func (l *Loop) PopFaults() []Fault {
	list := l.faults
	l.faults = nil
	return list
}

// Propose returns the order by which a person changes the setting of the job, with what the twin
// predicts of it, or in Why the reason why nothing can be. An error says why the job does not go
// there.
func (l *Loop) Propose(next setting.Setting, who string) (Order, error) {
	if err := l.entry.Levers.CheckChange(l.now.Setting, next); err != nil {
		return Order{}, err
	}
	request := setting.Change{Phase: setting.Entered, Step: l.now.Step, Who: setting.CutText(who)}
	now := l.now.Setting
	now.People = l.entry.Setting.People
	request.From, request.To = now.DiffRequested(next)
	switch {
	case request.From == "" && request.To == "":
		return Order{}, fmt.Errorf("the job trains by %s already", next)
	case request.IsAtOnce():
		return Order{Next: next, Change: request}, nil
	}
	l.twin.Observe(l.now)
	p := l.twin.Predict(decide.Target{Setting: next})
	c := l.predictedChange(decide.Scored{Target: decide.Target{Setting: next}, Prediction: p},
		p.Efficiency.Mid)
	c.Who, c.From, c.To = request.Who, request.From, request.To
	if !c.Predicted.IsKnown() {
		c.Why = setting.CutText(p.Guess)
	}
	return Order{Next: next, Change: c}, nil
}
