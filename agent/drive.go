package agent

import (
	"cmp"
	"time"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent/loop"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// What the loop that decides about a job sees of it, and does to it.

// Drive has policies decide about the job, where this agent leads it: those of shoal, and those
// that users starts when this agent leads for the first time; nil = none. It is called once at
// most, and does not wait.
func (a *Agent) Drive(mode act.Mode, users func(g *group.Group) []decide.Policy) {
	a.loop.Drive(mode, users)
	_ = a.engine.runLater(func() { a.engine.signals.decides = mode != act.Off })
}

// NoteFailure tells the policies that a worker has ended by itself, and how, where this agent
// leads: a change that is on trial may be the reason, and the head is then asked to take it back
// before this returns. It waits for the engine's thread and for policies that decide.
func (a *Agent) NoteFailure(how string) { a.loop.Lost(how) }

// WhyNot returns, for each policy, why it left things as they are lately. It waits for policies
// that decide.
func (a *Agent) WhyNot() []act.WhyNot { return a.loop.WhyNots() }

// loopJob is the job of an Agent for its loop.Loop.
type loopJob struct{ *Agent }

// Look implements loop.Job. It waits for the engine's thread.
func (a loopJob) Look() (look loop.Look, ok bool) {
	_ = a.engine.runAndWait(func() { look, ok = a.driver.look() })
	return look, ok
}

// Change implements loop.Job. It waits for the engine's thread.
func (a loopJob) Change(next setting.Setting, c setting.Change) error {
	return a.askHead(func() error { return a.driver.head.Change(next, c) })
}

// Tell implements loop.Job.
func (a loopJob) Tell(line string) {
	_ = a.engine.runLater(func() { // a stopped engine tells nobody
		known := a.driver.head.State()
		e := Event{What: "policy", Generation: a.driver.generationNumber(known.View.Generation),
			Size: known.View.Size(), Step: known.Steps, Because: line}
		a.driver.giveOrder(func(o *Orders) { o.Event(e) })
	})
}

// look returns what the loop is to know; false = nothing can change, or be measured. It runs on the
// engine's thread.
func (d *driver) look() (loop.Look, bool) {
	known, s := d.head.State(), &d.engine.signals
	if known.Data == nil || known.Shape != nil ||
		!s.decides && known.Trial == nil && !known.Levers.Batch.IsOpen() {
		s.changes = nil
		return loop.Look{}, false
	}
	series := s.series // a copy, which is the loop's
	entry := newEntry(known, nil, d.head.Leads())
	o := sense.Observation{Step: known.Steps, Epoch: known.Data.Epoch, Size: known.View.Size(),
		Now: sense.Duration(time.Since(d.began)), Setting: entry.Setting, First: known.First,
		Levers: known.Levers, Steps: &series, Noise: s.job.Noise(),
		Split: s.job.Split(sense.DealOf(known.Data.Shares))}
	for _, m := range known.View.Members {
		o.Hosts = append(o.Hosts, m.Host)
	}
	look := loop.Look{Entries: append(s.changes, entry), Observation: o}
	s.changes = nil
	return look, true
}

// keepChange keeps an entry of the log that begins or ends a change, for the loop. It runs on the
// engine's thread.
func (d *driver) keepChange(a *head.Apply) {
	s := &d.engine.signals
	s.changes = append(s.changes, newEntry(a.State, a.Change, d.head.Leads()))
}

// newEntry returns how the job trains in a state, for package act. change is what begins or ends
// with it; nil = none does.
func newEntry(s head.State, change *setting.Change, leads bool) act.Entry {
	now := s.Setting
	now.Batch = cmp.Or(now.Batch, s.First)
	return act.Entry{Step: s.Steps, Setting: now, Levers: s.Levers, Trial: s.Trial, Change: change,
		Leads: leads}
}
