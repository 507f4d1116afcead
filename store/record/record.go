// Package record decides what is written of a job into a store, what is made of its answers, and
// when: who leads the job, and the generations that were decided (docs/design/store.md). It has no
// clock, store or goroutine of its own. Package store carries out what it asks for, and
// head/simtest does under faults.
//
// A [Task] is one thing to do with a store, call by call. A [Writer] is what one host of a job has
// to write.
package record

import (
	"fmt"

	"github.com/shoal-ml/shoal/member"
)

// Call is a request to a store.
type Call struct {
	Op    Op
	Key   string
	Value []byte // what Create and Update write
	Was   uint64 // the revision that Update replaces
}

// Op is what a call does.
type Op int

// The calls.
const (
	Get    Op = iota // read what a key holds
	Create           // write a key that holds nothing
	Update           // replace what has a certain revision
	Keys             // list the keys below a prefix
)

// Answer is what a store says to a call.
type Answer struct {
	Said     Said
	Value    []byte // what Get has read
	Revision uint64 // the revision of Value
	Keys     []string
	Err      error // why Said is not Done; nil = it is
}

// Said is what an answer means.
type Said int

// The meanings.
const (
	Done   Said = iota
	Empty       // the key holds nothing
	Taken       // somebody else has written the key
	Silent      // nothing is known: a write may have been done, or may still be
	Denied      // the store will never do that
)

// Task is something to do with a store: a call, and what follows from its answer. All tasks may be
// repeated from their start when nothing is known of one of their calls: every write says what it
// expects to find, and finding what it would have written is a success. One goroutine at a time
// uses a task.
type Task struct {
	Call
	then func(Answer) (*Task, error) // what Answered does; it does no I/O
}

// Answered returns the rest of the task after an answer that is not Silent; nil if it is done. The
// error says why it cannot be done.
func (t *Task) Answered(a Answer) (*Task, error) { return t.then(a) }

// TakenError says that a job of this name has another head.
type TakenError struct{ Owner Owner }

// Error says who leads the job.
func (e *TakenError) Error() string {
	return fmt.Sprintf("the job %q is led by host %s in run %s", e.Owner.Job, e.Owner.Host,
		e.Owner.Run)
}

// DivergedError says that a generation was decided twice, which the agreement of the hosts rules
// out unless a person has forced it.
type DivergedError struct {
	Job, Run    string
	Have, Wants member.Record
}

// Error says which two records there are of the generation, and what to do.
func (e *DivergedError) Error() string {
	return fmt.Sprintf("the job %q (run %s) has two records of one generation: the store has %s "+
		"led by %s, and %s led by %s was to be written; two parts of the job may be training: "+
		"stop the one that you do not want",
		e.Job, e.Run, e.Have.View, e.Have.Head, e.Wants.View, e.Wants.Head)
}
