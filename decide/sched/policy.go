package sched

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// Policy is a way of deciding who gets what. It has an Order or a Share.
type Policy struct {
	Name  string // what people know it by, such as "fifo"
	About string // what it does, in one line

	Order    Order // who comes first, each with the slots that it asks for; nil = Share decides
	Blocks   bool  // whether who must wait for slots lets nobody start who comes after it
	Preempts bool  // whether who comes first takes the slots of who comes after it
	Dated    bool  // whether keys are when jobs must have ended, so that waiting changes none

	// Packs says that jobs move to other hosts so that one that starts, or runs on more hosts than
	// it needs, is on as few as possible.
	Packs bool

	Share Share // decides of all jobs at once; nil = Order decides
}

// Order says who comes first.
type Order interface {
	// Key returns a number that is smaller the sooner a job is to have its slots. That of a job
	// that waits does not depend on now. until is when that of a job that runs jumps by itself,
	// Never if it does not. Key changes nothing.
	Key(j *Job, now int64) (key float64, until int64)
}

// OrderFunc is an Order whose keys do not jump.
type OrderFunc func(j *Job, now int64) float64

// Key implements Order.
func (f OrderFunc) Key(j *Job, now int64) (key float64, until int64) { return f(j, now), Never }

// View is all that a Share may know. It changes nothing of it. It is valid until the next decision.
type View struct {
	Now   int64
	Jobs  []*Job // who waits or runs, but for those apart, in the order of arrival
	Hosts []Host // by name
	Slots int    // slots of all hosts that are not leaving
	Costs Costs
	Age   float64 // that of Config: what a second of waiting takes off a key in slot-seconds
}

// placement returns what is free where jobs are now.
func (v *View) placement() *placement {
	p := &placement{}
	for _, h := range v.Hosts {
		p.hosts = append(p.hosts, spot{h, h.Slots})
	}
	p.recount()
	for _, j := range v.Jobs {
		p.changeTaken(j.Has, 1)
	}
	return p
}

// Share decides of all jobs at once.
type Share interface {
	// Decide returns who is to have how many slots, and what the policy is to remember until the
	// next time. mem is what it returned the last time, nil at first.
	Decide(v *View, mem []byte) (Decision, []byte)
}

// Decision is what a Share decides.
type Decision struct {
	// Want has for each job of the view the slots that it is to have: 0, or a number that it
	// allows. All together are at most the slots of the view.
	Want []int
	// Need has for each job the part of these that the guard is to let pass, whatever it gains: it
	// is at most Want. nil = the guard judges of all changes but starts.
	Need []int
	// Whole says that a job gives up at once all that it is to give up, or nothing: it has no time
	// for two changes.
	Whole bool
	// Because returns why a job of the view, by its index, gets what it gets. It is asked for jobs
	// whose slots change, before the next decision. nil = the policy is named.
	Because func(i int) string
	Reject  []Rejection // jobs that will never get slots
	Again   int64       // when to decide anew though nothing happened; 0 = not
}

// Rejection is that a job will never get slots.
type Rejection struct {
	Job     int    // index in the view
	Because string // why, and what would do
}

// policies are all that have a name, the simplest first.
var policies = []Policy{fifo, fifoSkip, sjf, srsf, las, spjf, spwf, wcs, edf, asrpt, asrptTuned,
	elastic, goodput, deadline}

// Default is the name of the policy that a pool has when nobody chooses one, and which decides in
// place of one that fails.
const Default = "elastic"

// Names returns the names of all policies, the simplest first.
func Names() (names []string) {
	for _, p := range policies {
		names = append(names, p.Name)
	}
	return names
}

// Policies returns all policies, the simplest first.
func Policies() []Policy { return slices.Clone(policies) }

// Named returns the policy of a name, or an error with the names that there are.
func Named(name string) (Policy, error) {
	for _, p := range policies {
		if p.Name == name {
			return p, nil
		}
	}
	return Policy{}, fmt.Errorf("unknown policy %q%s: choose one of %s", name,
		spelling.Meant(name, Names()), strings.Join(Names(), ", "))
}
