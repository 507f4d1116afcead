package record

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Beginning makes a host the head of the job of a name, before anything of the job has started. One
// goroutine uses it and carries out its tasks, which change it; the methods do no I/O.
type Beginning struct {
	// Owner is what the host leads as. Its run and generation are those of a head that has ended,
	// if the host goes on with the record of that head.
	Owner Owner
	// Alone says that no other host can reach the store: whoever led the job from here has ended.
	Alone bool
	// TakeOver gives the job the name even if the store says that somebody leads it.
	TakeOver bool
	// Resumed is the newest generation of a head that has ended, or its zero value where that has
	// written none; nil = the record is new.
	Resumed *member.Record
}

// ElsewhereError says that a job whose head has ended may be led from another host by now, of which
// the store cannot know. Nobody changes it.
type ElsewhereError struct {
	Job    string
	Newest member.Record
	Hosts  []string // hosts that are enough to go on without this one
}

// Error says where the job may be led, and what to do.
func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("the job %q may go on without this host: when its head ended, in "+
		"generation %d or later, %s could go on by themselves: look there with shoal ps; if you "+
		"know that they are gone for good, take the name over by force",
		e.Job, e.Newest.View.Generation, strings.Join(e.Hosts, ", "))
}

// Task returns the task that makes b.Owner the head of its job, and sets b.Owner and b.Resumed
// while it is carried out. The task fails with a [*TakenError] or an [*ElsewhereError].
func (b *Beginning) Task() (*Task, error) {
	if b.TakeOver {
		return b.claim()
	}
	if _, err := b.Owner.encode(); err != nil {
		return nil, err
	}
	key := OwnerKey(b.Owner.Job)
	return &Task{Call{Op: Get, Key: key}, func(a Answer) (*Task, error) {
		if a.Said == Empty {
			return b.claim()
		}
		if a.Said != Done {
			return nil, a.Err
		}
		have, err := DecodeOwner(key, a.Value)
		if err != nil {
			return nil, err
		}
		if b.Alone && have.Ended == 0 && have.Host == b.Owner.Host {
			return &Task{Call{Op: Keys, Key: GenerationPrefix(have.Job, have.Run)},
				func(a Answer) (*Task, error) {
					if a.Said != Done {
						return nil, a.Err
					}
					all, err := ParseGenerations(have.Job, have.Run, a.Keys)
					if err != nil {
						return nil, err
					}
					return b.readNewest(have, all)
				}}, nil
		}
		return b.claim()
	}}, nil
}

// claim returns the task that claims the name for b.Owner.
func (b *Beginning) claim() (*Task, error) { return Claim(b.Owner, b.TakeOver) }

// readNewest returns the task that reads the newest of the listed generations of a head that has
// ended, and then resumes its record. A person may have deleted the value of one that is listed;
// then it is the one before.
func (b *Beginning) readNewest(have Owner, all []topo.Generation) (*Task, error) {
	if len(all) == 0 {
		return b.resume(have, member.Record{})
	}
	last := len(all) - 1
	key := GenerationKey(have.Job, have.Run, all[last])
	return &Task{Call{Op: Get, Key: key}, func(a Answer) (*Task, error) {
		if a.Said == Empty {
			return b.readNewest(have, all[:last])
		}
		if a.Said != Done {
			return nil, a.Err
		}
		newest, err := DecodeGeneration(key, a.Value)
		if err != nil {
			return nil, err
		}
		return b.resume(have, newest)
	}}, nil
}

// resume sets b.Owner and b.Resumed so that the record of a head that has ended is continued, and
// returns the task that claims the name. It fails if the other hosts of the newest generation can
// continue the job.
func (b *Beginning) resume(have Owner, newest member.Record) (*Task, error) {
	var others []string
	for _, h := range newest.Hosts {
		if h.Name != have.Host {
			others = append(others, h.Name)
		}
	}
	if newest.Head != "" && newest.IsQuorum(others) {
		return nil, &ElsewhereError{have.Job, newest, others}
	}
	b.Resumed = &newest
	b.Owner.Run, b.Owner.Generation = have.Run, max(have.Generation, newest.View.Generation)
	return b.claim()
}
