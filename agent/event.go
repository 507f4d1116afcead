package agent

import (
	"fmt"
	"math"
	"time"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// What an agent tells its launcher. The methods of driver in this file run on the engine's thread;
// everything else changes nothing, and may be called on any goroutine.

// Orders is what the job wants of the launcher of a host. The functions but Row run on the engine's
// thread: they must not wait for the agent. Status tells them what their order follows from. A nil
// function is one that does nothing.
type Orders struct {
	// Start starts more workers on this host.
	Start func(o StartOrder)
	// Stop ends a worker of this host that is no member, and calls TurnAway then; nil = the latter.
	Stop func(worker int, why string)
	// Event tells of what a person may want to know, on the head; of changes of the setting on all
	// hosts.
	Event func(e Event)
	// End tells that the job is over; ok = it has ended well.
	End func(ok bool, why string)
	// Leave tells that this host is no part of the job any more; drained = its workers have been
	// let go.
	Leave func(why string, drained bool)
	// Lead tells which host leads the job now.
	Lead func(host string)
	// Gone tells that another host is lost, or has left, with all its workers.
	Gone func(host, how string)
	// Message takes what the launcher of another host says; an error ends the link.
	Message func(from string, b []byte) error
	// Row takes what is kept of some steps, on the head, at the time at which that was known. It
	// runs on a goroutine of its own, and may wait.
	Row func(r history.Row, now time.Time)
	// Decided takes a generation that is decided; before Gone and Lead, which may follow from it.
	Decided func(r member.Record)
}

// StartOrder asks for workers; First and those after it are their numbers.
type StartOrder struct{ First, Count int }

// withDefaults returns o with functions in place of those that are nil: Stop is a.TurnAway, and the
// others do nothing.
func (o Orders) withDefaults(a *Agent) Orders {
	if o.Stop == nil {
		o.Stop = func(worker int, _ string) { a.TurnAway(worker) }
	}
	if o.Start == nil {
		o.Start = func(StartOrder) {}
	}
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	if o.End == nil {
		o.End = func(bool, string) {}
	}
	if o.Leave == nil {
		o.Leave = func(string, bool) {}
	}
	if o.Lead == nil {
		o.Lead = func(string) {}
	}
	if o.Gone == nil {
		o.Gone = func(string, string) {}
	}
	if o.Message == nil {
		o.Message = func(string, []byte) error { return nil }
	}
	if o.Row == nil {
		o.Row = func(history.Row, time.Time) {}
	}
	if o.Decided == nil {
		o.Decided = func(member.Record) {}
	}
	return o
}

// Event is a change of the membership, of the mesh, of the setting, or of the way of collectives,
// an unusual wait for workers, or the end of one, or what policies have to say. Lists of workers
// have their numbers.
type Event struct {
	// What is "generation", "pause", "resume", "stop", "park", "route", "mesh", "kept", "wait",
	// "waited", "change" or "policy".
	What       string `json:"what"`
	Generation uint64 `json:"generation"`
	Size       int    `json:"size"` // number of members
	Joined     []int  `json:"joined,omitempty"`
	Lost       []int  `json:"lost,omitempty"`
	Finished   []int  `json:"finished,omitempty"`
	Released   []int  `json:"released,omitempty"`
	// LostSamples is of how many samples, about, the effect went with the replicas of workers that
	// are lost or released, where workers keep replicas of their own (sync=sma, sync=pair).
	LostSamples uint64 `json:"lost_samples,omitempty"`
	// Again are the workers that did not get the state of the job, and come back.
	Again []int `json:"again,omitempty"`
	// Awaited are the workers that others wait for.
	Awaited []int `json:"awaited,omitempty"`
	// Step counts the steps that were committed before.
	Step uint64 `json:"step"`
	// OptimizerSteps counts the optimizer steps before, those before a checkpoint too; 0 = as many
	// as commits.
	OptimizerSteps uint64 `json:"optimizer_steps,omitempty"`
	Because        string `json:"because"`
	// Change is a change of the setting, or of a route, that was entered or has ended, which nobody
	// alters; nil = the event is about something else.
	Change *setting.Change `json:"change,omitempty"`
	// Elsewhere says that another host leads the job, and tells people.
	Elsewhere bool `json:"-"`
	// First says that the job is in its first generation since this start, or before it.
	First bool `json:"-"`
}

// String writes the event as a line for a person.
func (e Event) String() string {
	switch {
	case e.Change != nil:
		return e.Change.String()
	case e.Step == 0 && len(e.Awaited) > 0: // perhaps of a job that takes no steps
		return e.What + ": " + e.Because
	case e.What != "generation":
		return fmt.Sprintf("%s at %s: %s", e.What, setting.MomentText(e.Step, e.OptimizerSteps),
			e.Because)
	}
	text := fmt.Sprintf("generation %d at %s: %s: %s", e.Generation,
		setting.MomentText(e.Step, e.OptimizerSteps), plural.Of(e.Size, "worker"), e.Because)
	if e.LostSamples > 0 {
		text += fmt.Sprintf("; the effect of about %d samples went with replicas", e.LostSamples)
	}
	return text
}

// lostSamples is Event.LostSamples where so many members of a job in a state go; size is how many
// there were with them.
func lostSamples(known *head.State, gone, size int) uint64 {
	if gone == 0 || known.Data == nil {
		return 0
	}
	s := known.Setting.WithStated(known.First, known.Levers)
	return uint64(math.Round(float64(gone) * s.ReplicaSamples(size, known.Data.Step)))
}

// reportDecision gives the launcher an event about a decision of the membership, unless the job is
// about to end. It runs on the engine's thread.
func (d *driver) reportDecision(decision member.Action) {
	known := d.head.State()
	e := Event{What: "generation", Step: known.Steps, OptimizerSteps: known.OptimizerSteps()}
	view := d.head.Record().View
	switch m := decision.(type) {
	case member.Activate:
		view, e.Because = m.View, string(m.Because)
		e.Joined, e.Lost, e.Finished, e.Released, e.Again = workerIDs(m.Joined), workerIDs(m.Lost),
			workerIDs(m.Finished), workerIDs(m.Released), workerIDs(m.Again)
	case member.Pause:
		e.What, e.Because = "pause", string(m.Because)
	case member.Resume:
		e.What, e.Because = "resume", string(m.Because)
	}
	gone := len(e.Lost) + len(e.Released)
	e.LostSamples = lostSamples(&known, gone, view.Size()-len(e.Joined)+gone)
	e.Generation, e.Size, e.First = d.generationNumber(view.Generation), view.Size(),
		view.Generation <= 1
	if d.allReleased || !known.Elastic && !e.First {
		return // the job is about to end; its launcher says why
	}
	d.giveOrder(func(o *Orders) { o.Event(e) })
}

// reportChange gives the launcher an event about a change that is no decision of the membership. It
// runs on the engine's thread.
func (d *driver) reportChange(what string, why member.Because) {
	known := d.head.State()
	e := Event{What: what, Generation: d.generationNumber(known.View.Generation),
		Size: known.View.Size(), Step: known.Steps, OptimizerSteps: known.OptimizerSteps(),
		Because: string(why)}
	d.giveOrder(func(o *Orders) { o.Event(e) })
}

// workerIDs returns the numbers of workers as a new list of ints; nil for none.
func workerIDs(ws []topo.WorkerID) (list []int) {
	for _, w := range ws {
		list = append(list, int(w))
	}
	return list
}
