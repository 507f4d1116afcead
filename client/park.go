package client

import (
	"context"
	"errors"
	"fmt"
	"math"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
)

// How a worker takes part when its job is parked. The Trainer's goroutine, that of the loop, calls
// these functions, between two steps.

// ErrParked means that the job was parked: its checkpoint is whole, and a run that is started again
// goes on there with the next sample. The program ends without what it does after its loop.
var ErrParked = errors.New("client: the job is parked: it goes on from its checkpoint when it is " +
	"started again")

// parkIfAsked makes the checkpoint of a job that is to be parked here, between two steps, with all
// workers, tells the agent what came of it, and blocks until this process is ended. It returns nil
// where the job is not to be parked, or there is no whole checkpoint, so that training goes on; and
// ErrParked where ctx ends first, as in a program that catches SIGTERM, or the agent does.
func (t *Trainer) parkIfAsked(ctx context.Context) error {
	if !t.parks || t.released {
		return nil
	}
	t.parks = false
	r := &api.ParkRequest{Step: t.cursor.Step}
	if t.checkpoints == nil {
		r.Problem = "the job makes no checkpoints: call Trainer.Checkpoint before the loop, on " +
			"every worker, and it goes on from there"
	} else if whole, err := t.checkpoints.makeParked(ctx, t); err != nil {
		return err
	} else if !whole {
		r.Problem = fmt.Sprintf("the checkpoint of step %d in %s is not whole; what the workers "+
			"print says why", t.cursor.Step, t.checkpoints.folder.Root)
	}
	if err := t.job.sendWithoutReply(r); err != nil || r.Problem != "" {
		return err
	}
	return fmt.Errorf("%w (%w)", ErrParked, t.job.calls.awaitEnd(ctx))
}

// awaitEnd blocks until ctx ends, the job is closed or the agent is gone, and returns which.
func (k *calls) awaitEnd(ctx context.Context) error {
	if err := k.beginUse(); err != nil {
		return err
	}
	defer k.endUse()
	return k.await(ctx, &Handle{calls: k, ticket: math.MaxUint64}) // no call gets that number
}

// makeParked makes the checkpoint of a job that is parked, between two steps, and reports whether
// it is whole, on which all workers agree. It waits for them.
func (c *checkpoints) makeParked(ctx context.Context, t *Trainer) (bool, error) {
	if err := c.makeAlone(ctx, t, t.job.size); err != nil {
		return false, err
	}
	// What is not written when all have come here will not be.
	if err := AllReduce(ctx, t.job, []int64{0}, collective.Sum); err != nil {
		return false, err
	}
	// Where rank 0 is lost before it has looked, there is no checkpoint, on all others.
	said := []int64{-1, int64(drawSeed())}
	if t.job.rank == 0 {
		switch newest, found, err := t.job.newSource(c.folder).newest(0); {
		case err != nil:
			c.folder.Log(err.Error())
		case found:
			said[0] = int64(newest.Step)
		}
	}
	if err := AllReduce(ctx, t.job, said, collective.Max); err != nil {
		return false, err
	}
	c.shared = uint64(said[1])
	return said[0] == int64(t.cursor.Step), nil
}
