package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
)

// killWithin is how long a job trains at most before the next worker is killed: many steps, so that
// the moment is any.
const killWithin = 20 * time.Millisecond

// change is what a worker reported of a change of the members: when it had made the first step
// after it, and how long that step, the next and a usual one took. Durations are of this worker. It
// is a value.
type change struct {
	generation       uint64        // the one that the change has made
	at               time.Time     // end of the first step of it
	took, next, pace time.Duration // of that step, of the next, and of a usual one before
	began            time.Time     // when this worker, which is new, began that step
	first            bool          // this worker is new: it is its first step
}

// newChange returns the change that the metrics of a report describe. It is pure.
func newChange(m map[string]float64) change {
	us := func(name string) time.Duration { return time.Duration(m[name]) * time.Microsecond }
	return change{generation: uint64(m["generation"]), at: time.UnixMicro(int64(m["at_us"])),
		took: us("took_us"), next: us("next_us"), pace: us("pace_us"),
		began: time.UnixMicro(int64(m["began_us"])), first: m["began_us"] > 0}
}

// pause returns how much longer than usual two steps were for a worker that was there before and
// after; 0 for a new one.
func (c change) pause() time.Duration {
	if c.first {
		return 0
	}
	return max(c.took-c.pace, 0) + max(c.next-c.pace, 0)
}

// beganAfter returns how long after start a new worker began to train; 0 for any other.
func (c change) beganAfter(start time.Time) time.Duration {
	if !c.first {
		return 0
	}
	return c.began.Sub(start)
}

// longest returns the longest duration that measure gives for a change. It is pure.
func longest(changes []change, measure func(change) time.Duration) (most time.Duration) {
	for _, c := range changes {
		most = max(most, measure(c))
	}
	return most
}

// recoveryJob is a job whose members change, seen from outside. The goroutine of the command calls
// run; the other methods are for the goroutine on which run calls play, and what takes a context
// blocks until the job has got there. Goroutines of the launcher put into the two channels.
type recoveryJob struct {
	worker          program
	workers, spares int            // numbers
	gradient, state int64          // bytes
	job             *control.Job   // set by run before play
	generation      uint64         // the newest that was waited for
	reports         chan change    // what the workers have reported
	events          chan time.Time // when the membership decided
	event           time.Time      // the newest that was taken from events
}

// newRecoveryJob returns a job that is not started yet. gradient and state are sizes in bytes.
func newRecoveryJob(worker program, workers, spares int, gradient, state int64) *recoveryJob {
	return &recoveryJob{worker: worker, workers: workers, spares: spares, gradient: gradient,
		state: state, reports: make(chan change, 1024), events: make(chan time.Time, 1024)}
}

// newRow returns an empty row of the result with this title.
func (b *recoveryJob) newRow(what string) *recoveryRow {
	return &recoveryRow{What: what, State: b.state}
}

// run runs the job, and meanwhile play on a goroutine of its own, which changes the members; after
// play it stops the job. It returns the rows of play. It blocks until the job has ended.
func (b *recoveryJob) run(ctx context.Context, stderr io.Writer,
	play func(context.Context) ([]*recoveryRow, error)) (rows []*recoveryRow, err error) {
	dir, err := os.MkdirTemp("", "shoal-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	command := append(slices.Clone(b.worker.command), strconv.FormatInt(b.gradient/4, 10),
		strconv.FormatInt(b.state, 10))
	tool := group.New(ctx)
	_, err = launcher.Run(tool.Context(), launcher.RunConfig{
		Spec: job.Spec{Name: "bench", Workers: b.workers, Spares: b.spares, Command: command,
			Env: b.worker.env},
		Dir: dir, Stdout: stderr, Stderr: withoutNotes{stderr}, Kill: cli.SecondSignal(ctx),
		OnReport: func(_ int, m map[string]float64) { b.reports <- newChange(m) },
		OnEvent: func(e agent.Event) {
			if e.What == "generation" && e.Generation > 1 {
				b.events <- time.Now()
			}
		},
		OnStart: func(_, dir string) {
			tool.Go("the measurement", func(ctx context.Context) (err error) {
				if b.job, err = control.Find(ctx, dir); err != nil {
					return err
				}
				if _, err = b.awaitChange(ctx, b.workers); err == nil {
					rows, err = play(ctx)
				}
				return errors.Join(err,
					b.job.Stop(context.WithoutCancel(ctx), err != nil, "shoal bench"))
			})
		},
	})
	tool.Stop(nil)
	return rows, errors.Join(tool.Wait(), err)
}

// killMember waits for a random time, kills a random member, and returns when that was.
func (b *recoveryJob) killMember(ctx context.Context) (time.Time, error) {
	select {
	case <-time.After(rand.N(killWithin)):
	case <-ctx.Done():
	}
	if err := b.job.Refresh(ctx); err != nil {
		return time.Time{}, err
	}
	members := slices.DeleteFunc(b.job.Workers, func(w api.Worker) bool {
		return !w.Running || w.Rank < 0
	})
	if len(members) == 0 {
		return time.Time{}, errors.New("the job has no members left")
	}
	w := members[rand.IntN(len(members))]
	now := time.Now()
	if err := syscall.Kill(w.PID, syscall.SIGKILL); err != nil {
		return now, fmt.Errorf("killing worker %d: %w", w.Worker, err)
	}
	return now, nil
}

// pollInterval is how often the job is asked whether a spare waits.
const pollInterval = 50 * time.Millisecond

// waitForSpares polls the job until all members train and all spares wait.
func (b *recoveryJob) waitForSpares(ctx context.Context) error {
	for {
		if err := b.job.Refresh(ctx); err != nil {
			return err
		}
		if b.job.Size == b.workers && b.job.Waiting() >= b.spares {
			return nil
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// awaitChange waits until so many workers have reported the next generation, and returns what they
// have reported. workers is the number of members then; it adds one to b.generation.
func (b *recoveryJob) awaitChange(ctx context.Context, workers int) ([]change, error) {
	b.generation++
	var changes []change
	for len(changes) < workers {
		select {
		case c := <-b.reports:
			if c.generation == b.generation {
				changes = append(changes, c)
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return changes, nil
}

// lastDecision returns when the membership last decided something; it does not wait.
func (b *recoveryJob) lastDecision() time.Time {
	for len(b.events) > 0 {
		b.event = <-b.events
	}
	return b.event
}

// resize orders another size and waits until all members of it train. order is when it was ordered.
func (b *recoveryJob) resize(ctx context.Context, n int) (order time.Time, changes []change,
	err error) {
	order = time.Now()
	if err = b.job.Resize(ctx, n, "shoal bench"); err == nil {
		changes, err = b.awaitChange(ctx, n)
	}
	return order, changes, err
}

// withoutNotes passes on all but what the launcher notes of the job, a line of which comes with
// every change. The launcher writes a line at a time.
type withoutNotes struct{ to io.Writer }

// Write implements io.Writer; it takes one line.
func (q withoutNotes) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("shoal: ")) {
		return len(line), nil
	}
	return q.to.Write(line)
}
