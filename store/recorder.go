package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/member"
)

const (
	// maxWaiting bounds the generations that wait for a store that is away. Beyond it the oldest are left out.
	maxWaiting = 1024
	// A store that does not answer is asked again after a time that doubles from firstPause to lastPause.
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Recorder writes the record of a job in the background: nobody who trains waits for the store. Generations are written in the order in
// which they were decided; of several owners the last. While the store does not answer they wait, and that is reported once.
type Recorder struct {
	store   Store
	journal *Journal
	report  func(line string)
	writer  *group.Group

	mu      sync.Mutex
	owner   *Owner          // to be written, before any generation
	waiting []member.Record // to be written; the first may be under way
	omitted int             // were left out
	work    chan struct{}   // holds one token when there may be something to write
	idle    []chan struct{} // closed when nothing waits

	failures int // of the present outage; the writer's
}

// NewRecorder starts to write the record of a run. It tells report, one line at a time and not from several goroutines at once, what a
// person should know. The caller closes it before the store.
func NewRecorder(s Store, job, run string, report func(line string)) *Recorder {
	r := &Recorder{store: s, journal: NewJournal(s, job, run), report: report, work: make(chan struct{}, 1), writer: group.New(context.Background())}
	r.writer.Go("recorder", r.run)
	return r
}

// Decided tells of a generation. It does not wait.
func (r *Recorder) Decided(g member.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, g)
	if len(r.waiting) > maxWaiting {
		r.waiting = slices.Delete(r.waiting, 1, 2) // the first may be under way, the last is the newest
		r.omitted++
	}
	r.wake()
}

// Leads tells that o leads from now on, by decision of the hosts: a [Claim] without force, that does not wait.
func (r *Recorder) Leads(o Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owner = &o
	r.wake()
}

func (r *Recorder) wake() {
	select {
	case r.work <- struct{}{}:
	default: // the token is there
	}
}

// Flush waits until everything told before is written, or was reported as impossible to write.
func (r *Recorder) Flush(ctx context.Context) error {
	r.mu.Lock()
	if r.owner == nil && len(r.waiting) == 0 {
		r.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	r.idle = append(r.idle, done)
	r.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s are not recorded: %w", r.unwritten(), context.Cause(ctx))
	}
}

// Close waits as Flush does, and then ends the writer. What could not be written is in the error.
func (r *Recorder) Close(ctx context.Context) error {
	err := r.Flush(ctx)
	r.writer.Stop(nil)
	return errors.Join(err, r.writer.Wait())
}

func (r *Recorder) unwritten() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.waiting)
	if r.owner != nil {
		n++
	}
	return fmt.Sprintf("%d membership changes", n)
}

// run is the writer.
func (r *Recorder) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.work:
		}
		for r.next(ctx) {
		}
	}
}

// next writes one thing; false if there is none, or the writer is to end.
func (r *Recorder) next(ctx context.Context) bool {
	r.mu.Lock()
	owner := r.owner
	if owner == nil && len(r.waiting) == 0 {
		for _, done := range r.idle {
			close(done)
		}
		r.idle = nil
		r.mu.Unlock()
		return false
	}
	var g member.Record
	if len(r.waiting) > 0 {
		g = r.waiting[0]
	}
	r.mu.Unlock()

	var err error
	if owner != nil {
		err = Claim(ctx, r.store, *owner, false)
	} else {
		err = r.journal.Write(ctx, g)
	}
	if errors.Is(err, ErrUnavailable) {
		return r.pause(ctx, err)
	}
	r.answered(err)
	r.written(owner)
	return ctx.Err() == nil
}

// written takes away what was written: the owner if it is still that, else the first generation.
func (r *Recorder) written(owner *Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case owner == nil:
		r.waiting = slices.Delete(r.waiting, 0, 1)
	case owner == r.owner:
		r.owner = nil
	}
}

// pause waits before the next attempt; false if the writer is to end.
func (r *Recorder) pause(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	if r.failures == 0 {
		r.report(fmt.Sprintf("the store %s is unreachable: training goes on, membership changes are recorded later (%v)", r.store, err))
	}
	wait := min(firstPause<<min(r.failures, 10), lastPause)
	r.failures++
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// answered reports that an outage is over, and what the store refused.
func (r *Recorder) answered(err error) {
	if r.failures > 0 {
		r.mu.Lock()
		late, omitted := len(r.waiting), r.omitted
		r.omitted = 0
		r.mu.Unlock()
		line := fmt.Sprintf("the store %s answers again: %d membership changes are being recorded", r.store, late)
		if omitted > 0 {
			line += fmt.Sprintf("; %d older ones are not", omitted)
		}
		r.report(line)
		r.failures = 0
	}
	if err != nil {
		r.report(err.Error())
	}
}
