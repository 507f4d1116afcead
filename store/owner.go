package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-ml/shoal/topo"
)

// Owner says who leads a job, and is where an agent that knows the job's name finds it.
type Owner struct {
	Job        string
	Run        string          // one start of the job, from its first head to its end
	Host       string          // of the head
	Address    string          // where its agent listens; "" = nowhere
	Generation topo.Generation // with which the head began to lead; 0 = the job begins
	Since      time.Time       // when that was, by the head's clock, in whole seconds
	Ended      time.Time       // when the job ended; zero = it has not
}

// TakenError says that a job of this name has another head.
type TakenError struct{ Owner Owner }

func (e *TakenError) Error() string {
	o := e.Owner
	return fmt.Sprintf("the job %q is led by host %s (at %s, run %s) since %s: stop it or choose another name; if you know that this host is gone for good, take the name over by force",
		o.Job, o.Host, cmp.Or(o.Address, "no address"), o.Run, o.Since.UTC().Format("2006-01-02 15:04:05 MST"))
}

// Claim makes o the head of its job, which succeeds when
//   - nobody leads a job of this name, or that job has ended;
//   - o leads the same run with a later generation: the hosts of the job have decided so;
//   - o is the same host in the same run with the same generation: it has restarted;
//   - it is done by force, because a person said so.
//
// Otherwise it fails with a [*TakenError]. No clock is compared: a head that says nothing for long keeps its job.
func Claim(ctx context.Context, s Store, o Owner, force bool) error {
	value, err := o.encode()
	if err != nil {
		return err
	}
	for {
		have, revision, err := readOwner(ctx, s, o.Job)
		switch {
		case errors.Is(err, ErrNotFound):
			_, err = s.Create(ctx, ownerKey(o.Job), value)
		case err != nil && (revision == 0 || !force): // force also overrules what cannot be read
			return err
		case err == nil && !force && !o.mayFollow(have):
			return &TakenError{have}
		default:
			_, err = s.Update(ctx, ownerKey(o.Job), value, revision)
		}
		if !errors.Is(err, ErrExists) && !errors.Is(err, ErrConflict) { // else somebody was faster: look who
			return err
		}
	}
}

func (o Owner) mayFollow(have Owner) bool {
	switch {
	case !have.Ended.IsZero():
		return true
	case o.Run != have.Run:
		return false
	case o.Host == have.Host:
		return o.Generation >= have.Generation
	}
	return o.Generation > have.Generation
}

// Release tells that the job of o has ended. It fails with a [*TakenError] if somebody else leads it by now.
func Release(ctx context.Context, s Store, o Owner, now time.Time) error {
	for {
		have, revision, err := readOwner(ctx, s, o.Job)
		if err != nil {
			return err
		}
		if have.Run != o.Run || have.Host != o.Host {
			return &TakenError{have}
		}
		if !have.Ended.IsZero() {
			return nil
		}
		have.Ended = now
		value, err := have.encode()
		if err != nil {
			return err
		}
		if _, err = s.Update(ctx, ownerKey(o.Job), value, revision); !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// Find returns who leads a job, or led it last: ErrNotFound if the store knows no such job.
func Find(ctx context.Context, s Store, job string) (Owner, error) {
	o, _, err := readOwner(ctx, s, job)
	return o, err
}

func (o Owner) encode() ([]byte, error) {
	return encode(&ownerValue{header{kindOwner, version}, o.Job, o.Run, o.Host, o.Address, o.Generation, seconds(o.Since), seconds(o.Ended)})
}

func decodeOwner(key string, data []byte) (Owner, error) {
	var v ownerValue
	if err := decode(key, kindOwner, data, &v); err != nil {
		return Owner{}, err
	}
	return Owner{v.Job, v.Run, v.Host, v.Address, v.Generation, at(v.Since), at(v.Ended)}, nil
}

// readOwner returns the revision also of a value that it cannot read.
func readOwner(ctx context.Context, s Store, job string) (Owner, Revision, error) {
	if err := checkName("job", job); err != nil {
		return Owner{}, 0, err
	}
	e, err := s.Get(ctx, ownerKey(job))
	if err != nil {
		return Owner{}, 0, err
	}
	o, err := decodeOwner(ownerKey(job), e.Value)
	return o, e.Revision, err
}
