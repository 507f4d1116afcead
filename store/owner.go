package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/topo"
)

// Owner says who leads a job, and is where an agent that knows the job's name finds it.
type Owner struct {
	Job     string
	Run     string // one start of the job, from its first head to its end
	Host    string // the host that leads
	Address string // where the agent of that host listens; "" = nowhere
	// Generation is the one with which the head began to lead; 0 = the job begins.
	Generation topo.Generation
	Since      time.Time // when the head began to lead, by its clock, in whole seconds
	Ended      time.Time // when the job ended; zero = it has not
}

// TakenError says that a job of this name has another head.
type TakenError struct{ Owner Owner }

func (e *TakenError) Error() string {
	o := e.Owner
	return fmt.Sprintf("the job %q is led by host %s (at %s, run %s) since %s: stop it or "+
		"choose another name; if you know that this host is gone for good, take the name over "+
		"by force",
		o.Job, o.Host, cmp.Or(o.Address, "no address"), o.Run,
		o.Since.UTC().Format("2006-01-02 15:04:05 MST"))
}

// told is an error with times as people write them.
func told(err error) error {
	var taken *record.TakenError
	if errors.As(err, &taken) {
		return &TakenError{ownerOf(taken.Owner)}
	}
	return err
}

// Begin makes o the head of its job before anything of the job has started, by the rules of
// [record.Beginning]. It returns the owner that it has made, and the newest generation of the head
// before if it goes on with the record of one that has ended.
func Begin(ctx context.Context, s Store, o Owner, alone, takeOver bool) (Owner, *member.Record,
	error) {
	b := record.Beginning{Owner: o.value(), Alone: alone, TakeOver: takeOver}
	t, err := b.Task()
	if err == nil {
		err = Do(ctx, s, t)
	}
	return ownerOf(b.Owner), b.Resumed, err
}

// Find returns who leads a job, or led it last: ErrNotFound if the store knows no such job.
func Find(ctx context.Context, s Store, job string) (Owner, error) {
	if err := record.CheckJob(job); err != nil {
		return Owner{}, err
	}
	key := record.OwnerKey(job)
	e, err := s.Get(ctx, key)
	if err != nil {
		return Owner{}, err
	}
	o, err := record.DecodeOwner(key, e.Value)
	if err != nil {
		return Owner{}, err
	}
	return ownerOf(o), nil
}

// value is o as it stands in the record.
func (o Owner) value() record.Owner {
	return record.Owner{Job: o.Job, Run: o.Run, Host: o.Host, Address: o.Address,
		Generation: o.Generation, Since: seconds(o.Since), Ended: seconds(o.Ended)}
}

// ownerOf is the inverse of Owner.value.
func ownerOf(o record.Owner) Owner {
	return Owner{Job: o.Job, Run: o.Run, Host: o.Host, Address: o.Address, Generation: o.Generation,
		Since: at(o.Since), Ended: at(o.Ended)}
}

// seconds is a time in seconds since 1970; 0 = none.
func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// at is the inverse of seconds; 0 = the zero time.
func at(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}
