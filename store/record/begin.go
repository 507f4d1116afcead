package record

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Beginning makes a host the head of the job of a name, before anything of the job has started.
type Beginning struct {
	// Owner is what the host leads as. Its run and generation are those of a head that has ended,
	// if the host goes on with the record of that head.
	Owner Owner
	// Alone says that no other host can reach the store: whoever led the job from here has ended.
	Alone bool
	// TakeOver gives the job the name even if the store says that somebody leads it.
	TakeOver bool
	// Resumed is the newest generation of a head that has ended; nil = the record is new.
	Resumed *member.Record
}

// ElsewhereError says that a job whose head has ended may be led from another host by now, of which
// the store cannot know.
type ElsewhereError struct {
	Job    string
	Newest member.Record
	Hosts  []string // hosts that are enough to go on without this one
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("the job %q may go on without this host: when its head ended, in "+
		"generation %d or later, %s could go on by themselves: look there with shoal ps; if you "+
		"know that they are gone for good, take the name over by force",
		e.Job, e.Newest.View.Generation, strings.Join(e.Hosts, ", "))
}

// Task claims the name, or fails with a [*TakenError] or an [*ElsewhereError].
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
			return &Task{Call{Op: Keys, Key: Prefix(have.Job, have.Run)},
				func(a Answer) (*Task, error) {
					if a.Said != Done {
						return nil, a.Err
					}
					all, err := Generations(have.Job, have.Run, a.Keys)
					if err != nil {
						return nil, err
					}
					return b.newest(have, all)
				}}, nil
		}
		return b.claim()
	}}, nil
}

func (b *Beginning) claim() (*Task, error) { return Claim(b.Owner, b.TakeOver) }

// newest looks for the newest generation of a head that has ended, among those that are listed. One
// that a person took out may be.
func (b *Beginning) newest(have Owner, all []topo.Generation) (*Task, error) {
	if len(all) == 0 {
		return b.resume(have, member.Record{})
	}
	last := len(all) - 1
	key := Key(have.Job, have.Run, all[last])
	return &Task{Call{Op: Get, Key: key}, func(a Answer) (*Task, error) {
		if a.Said == Empty {
			return b.newest(have, all[:last])
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

// resume goes on with the record, unless other hosts of the newest generation can go on with the
// job.
func (b *Beginning) resume(have Owner, newest member.Record) (*Task, error) {
	var others []string
	for _, h := range newest.Hosts {
		if h.Name != have.Host {
			others = append(others, h.Name)
		}
	}
	if newest.Head != "" && newest.Quorum(others) {
		return nil, &ElsewhereError{have.Job, newest, others}
	}
	b.Resumed = &newest
	b.Owner.Run, b.Owner.Generation = have.Run, max(have.Generation, newest.View.Generation)
	return b.claim()
}
