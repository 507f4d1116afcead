package record

import (
	"bytes"

	"github.com/shoal-ml/shoal/member"
)

// The functions of this file do no I/O: who carries out a task asks the store, as package store
// does.

// Write returns the task that adds a generation to the record of a run, and does nothing itself. If
// the same is there already, that is a success; anything else of that generation is a
// [*DivergedError].
func Write(job, run string, r member.Record) (*Task, error) {
	value, err := encodeGeneration(job, run, r)
	if err != nil {
		return nil, err
	}
	key := GenerationKey(job, run, r.View.Generation)
	compare := func(a Answer) (*Task, error) {
		if a.Said != Done || bytes.Equal(a.Value, value) {
			return nil, a.Err
		}
		have, err := DecodeGeneration(key, a.Value)
		if err != nil {
			return nil, err
		}
		return nil, &DivergedError{job, run, have, r}
	}
	return &Task{Call{Op: Create, Key: key, Value: value}, func(a Answer) (*Task, error) {
		if a.Said == Taken {
			return &Task{Call{Op: Get, Key: key}, compare}, nil
		}
		return nil, a.Err
	}}, nil
}

// Claim returns the task that makes o the head of its job, and does nothing itself. The task
// succeeds when
//   - nobody leads a job of this name, or that run of it has ended;
//   - o leads the same run with a later generation: the hosts of the job have decided so;
//   - o is the same host in the same run with the same generation: it has restarted;
//   - it is done by force, because a person said so.
//
// Otherwise it fails with a [*TakenError]. No clock is compared: a head that says nothing for long
// keeps its job.
func Claim(o Owner, force bool) (*Task, error) {
	value, err := o.encode()
	if err != nil {
		return nil, err
	}
	key := OwnerKey(o.Job)
	var look *Task
	write := func(c Call) (*Task, error) { return &Task{c, orLookAgain(&look)}, nil }
	look = &Task{Call{Op: Get, Key: key}, func(a Answer) (*Task, error) {
		if a.Said == Empty {
			return write(Call{Op: Create, Key: key, Value: value})
		}
		if a.Said != Done {
			return nil, a.Err
		}
		have, err := DecodeOwner(key, a.Value)
		switch {
		case force: // which also overrules what cannot be read
		case err != nil:
			return nil, err
		case !o.mayFollow(have):
			return nil, &TakenError{have}
		}
		return write(Call{Op: Update, Key: key, Value: value, Was: a.Revision})
	}}
	return look, nil
}

// orLookAgain returns what follows a write: the task *look if somebody else was faster, or else the
// end. *look may be set after the call, and before an answer.
func orLookAgain(look **Task) func(Answer) (*Task, error) {
	return func(a Answer) (*Task, error) {
		if a.Said == Taken {
			return *look, nil
		}
		return nil, a.Err
	}
}

// mayFollow reports whether o may take the place of the owner have. A run that has ended stays so:
// only another one may follow.
func (o Owner) mayFollow(have Owner) bool {
	switch {
	case o.Run != have.Run:
		return have.Ended != 0
	case have.Ended != 0:
		return false
	case o.Host == have.Host:
		return o.Generation >= have.Generation
	}
	return o.Generation > have.Generation
}

// Release returns the task that records the end of the job of o at the time now, in seconds since
// 1970. It fails with a [*TakenError] if somebody else leads the job by then. An end that is
// recorded already stays.
func Release(o Owner, now int64) *Task {
	key := OwnerKey(o.Job)
	var look *Task
	look = &Task{Call{Op: Get, Key: key}, func(a Answer) (*Task, error) {
		if a.Said != Done {
			return nil, a.Err
		}
		have, err := DecodeOwner(key, a.Value)
		switch {
		case err != nil:
			return nil, err
		case have.Run != o.Run || have.Host != o.Host:
			return nil, &TakenError{have}
		case have.Ended != 0:
			return nil, nil
		}
		have.Ended = now
		value, err := have.encode()
		if err != nil {
			return nil, err
		}
		return &Task{Call{Op: Update, Key: key, Value: value, Was: a.Revision}, orLookAgain(&look)},
			nil
	}}
	return look
}
