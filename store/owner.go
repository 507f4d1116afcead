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

// Who leads a job, for callers of package store: package record has the same with times in seconds.
// Begin and Find wait for the store; everything else here is a value or pure. Any goroutine may
// call the functions.

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

// Error says who leads the job, and what to do.
func (e *TakenError) Error() string {
	o := e.Owner
	return fmt.Sprintf("the job %q is led by host %s (at %s, run %s) since %s: stop it or "+
		"choose another name; if you know that this host is gone for good, take the name over "+
		"by force",
		o.Job, o.Host, cmp.Or(o.Address, "no address"), o.Run,
		o.Since.UTC().Format("2006-01-02 15:04:05 MST"))
}

// toPublicError turns a TakenError of package record into that of this package, whose times are for
// people; any other error it returns as it is.
func toPublicError(err error) error {
	var taken *record.TakenError
	if errors.As(err, &taken) {
		return &TakenError{ownerFromRecord(taken.Owner)}
	}
	return err
}

// Begin makes o the head of its job before anything of the job has started, by the rules of
// [record.Beginning]: alone says that no other host can reach the store, and takeOver has the name
// taken from whoever leads. It waits for the store. It returns the owner that it has made, and the
// newest generation of the head before if it continues the record of one that has ended; nil = the
// record is new.
func Begin(ctx context.Context, s Store, o Owner, alone, takeOver bool) (Owner, *member.Record,
	error) {
	b := record.Beginning{Owner: o.toRecord(), Alone: alone, TakeOver: takeOver}
	t, err := b.Task()
	if err == nil {
		err = CarryOut(ctx, s, t)
	}
	return ownerFromRecord(b.Owner), b.Resumed, err
}

// Find asks the store who leads a job, or led it last, and waits for the answer: ErrNotFound if the
// store knows no such job.
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
	return ownerFromRecord(o), nil
}

// toRecord returns o in the form of package record.
func (o Owner) toRecord() record.Owner {
	return record.Owner{Job: o.Job, Run: o.Run, Host: o.Host, Address: o.Address,
		Generation: o.Generation, Since: unixSeconds(o.Since), Ended: unixSeconds(o.Ended)}
}

// ownerFromRecord is the inverse of Owner.toRecord.
func ownerFromRecord(o record.Owner) Owner {
	return Owner{Job: o.Job, Run: o.Run, Host: o.Host, Address: o.Address, Generation: o.Generation,
		Since: unixTime(o.Since), Ended: unixTime(o.Ended)}
}

// unixSeconds returns a time in seconds since 1970; 0 for the zero time.
func unixSeconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// unixTime is the inverse of unixSeconds; its times are in UTC.
func unixTime(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}
