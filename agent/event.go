package agent

import (
	"fmt"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Orders is what the job wants of the launcher of a host. The functions run on the engine's thread:
// they must not wait for the agent. Status tells them what their order follows from.
type Orders struct {
	Start func(o StartOrder) // start more workers on this host
	// end a worker of this host that is no member, then TurnAway; nil = only that
	Stop  func(seat int, why string)
	Event func(e Event)                  // something that a person may want to know; on the head
	End   func(ok bool, why string)      // the job is over
	Leave func(why string, drained bool) // this host is no part of the job any more
	Lead  func(host string)              // who leads the job now
	// another host is lost, or has left, with all its workers
	Gone func(host, how string)
	// what another host's launcher says; an error ends the link
	Note func(from string, b []byte) error

	// a generation is decided; before Gone and Lead, which may follow from it
	Decided func(r member.Record)
}

// StartOrder asks for workers; First and those after it are their seats.
type StartOrder struct{ First, Count int }

// withDefaults fills in functions that do nothing, but for what the agent itself must do.
func (o Orders) withDefaults(a *Agent) Orders {
	if o.Stop == nil {
		o.Stop = func(seat int, _ string) { a.TurnAway(seat) }
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
	if o.Note == nil {
		o.Note = func(string, []byte) error { return nil }
	}
	if o.Decided == nil {
		o.Decided = func(member.Record) {}
	}
	return o
}

// Event is a change of the membership, of the mesh, or of the way of collectives, or an unusual
// wait for workers, or the end of one.
type Event struct {
	// "generation", "pause", "resume", "stop", "route", "mesh", "kept", "wait", "waited"
	What       string `json:"what"`
	Generation uint64 `json:"generation"`
	Size       int    `json:"size"`
	Joined     []int  `json:"joined,omitempty"` // seats
	Lost       []int  `json:"lost,omitempty"`
	Finished   []int  `json:"finished,omitempty"`
	Released   []int  `json:"released,omitempty"`
	Again      []int  `json:"again,omitempty"`   // did not get the state of the job, and come back
	Awaited    []int  `json:"awaited,omitempty"` // others wait for them
	Step       uint64 `json:"step"`              // committed before it
	Because    string `json:"because"`

	First bool `json:"-"` // the job is in its first generation since this start, or before it
}

// String writes the event as a line for a person.
func (e Event) String() string {
	switch {
	case e.Step == 0 && len(e.Awaited) > 0: // perhaps of a job that takes no steps
		return e.What + ": " + e.Because
	case e.What != "generation":
		return fmt.Sprintf("%s at step %d: %s", e.What, e.Step, e.Because)
	}
	return fmt.Sprintf("generation %d at step %d: %s: %s", e.Generation, e.Step,
		plural.Of(e.Size, "worker"), e.Because)
}

// tellNews tells the launcher of a decision of the membership.
func (c *crew) tellNews(d member.Action) {
	known := c.agent.Known()
	e, view := Event{What: "generation", Step: known.Steps}, c.agent.Record().View
	switch d := d.(type) {
	case member.Activate:
		view, e.Because = d.View, string(d.Because)
		e.Joined, e.Lost, e.Finished, e.Released, e.Again = seats(d.Joined), seats(d.Lost),
			seats(d.Finished), seats(d.Released), seats(d.Again)
	case member.Pause:
		e.What, e.Because = "pause", string(d.Because)
	case member.Resume:
		e.What, e.Because = "resume", string(d.Because)
	}
	e.Generation, e.Size, e.First = c.number(view.Generation), view.Size(), view.Generation <= 1
	if c.parted || !known.Elastic && !e.First {
		return // the job is about to end; its launcher says why
	}
	c.order(func(o *Orders) { o.Event(e) })
}

// mention tells the launcher of something that is no decision of the membership.
func (c *crew) mention(what string, why member.Because) {
	known := c.agent.Known()
	e := Event{What: what, Generation: c.number(known.View.Generation),
		Size: known.View.Size(), Step: known.Steps, Because: string(why)}
	c.order(func(o *Orders) { o.Event(e) })
}

func seats(ws []topo.WorkerID) (list []int) {
	for _, w := range ws {
		list = append(list, int(w))
	}
	return list
}
