package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/topo"
)

// Recorder writes the record of a job in the background: nobody who trains waits for the store. It
// carries out what a [record.Writer] decides, which has the rules. Any goroutine may call its
// methods; only Flush and Close wait.
type Recorder struct {
	report func(line string) // tells a person; called by the goroutine that writes
	work   chan struct{}     // holds one token when there may be something to write
	// refused is why the end of the job is not written; nil = it can be. The goroutine that writes
	// sets it, and Close reads it when that has ended.
	refused error

	mu     sync.Mutex      // guards the fields below; not held while the store is asked
	writer record.Writer   // decides what is written, and in which order
	store  Store           // nil before SetRecord or SetOwner
	away   error           // why the store did not answer the last call; nil = it did
	idle   []chan struct{} // one for each Flush that waits, closed when nothing is left
	run    *group.Group    // the goroutine that writes; nil before there is something to write
}

// NewRecorder returns the recorder of a host. The recorder starts a goroutine when it has something
// to write, which calls report with each line that a person should know. The caller closes the
// recorder before the store.
func NewRecorder(report func(line string)) *Recorder {
	return &Recorder{report: report, work: make(chan struct{}, 1)}
}

// updateWriter calls update with the writer, under r.mu, and wakes the goroutine that writes if
// there is something to write; the first time it starts that goroutine.
func (r *Recorder) updateWriter(update func(w *record.Writer)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	update(&r.writer)
	if changes, end := r.writer.Unwritten(); r.store == nil || changes == 0 && !end {
		return
	}
	if r.run == nil {
		r.run = group.New(context.Background())
		r.run.Go("recorder", r.writeUntilEnd)
	}
	select {
	case r.work <- struct{}{}:
	default: // the token is there
	}
}

// SetHost sets this host's name in the job, and the address at which its agent listens.
func (r *Recorder) SetHost(host, address string) {
	r.updateWriter(func(w *record.Writer) { w.SetHost(host, address) })
}

// SetRecord sets the run whose record this host writes, the store that keeps it, and the number of
// generations that the record has of heads that have ended.
func (r *Recorder) SetRecord(s Store, job, run string, after topo.Generation) {
	r.updateWriter(func(w *record.Writer) {
		r.store = s
		w.SetRecord(job, run, after, time.Now().Unix())
	})
}

// SetOwner sets the store, and the owner that this host is in it already because [Begin] has made
// it so.
func (r *Recorder) SetOwner(s Store, o Owner) {
	r.updateWriter(func(w *record.Writer) {
		r.store = s
		w.SetOwner(o.toRecord())
	})
}

// Lead makes this host write from now on, as the head of a job that begins.
func (r *Recorder) Lead() {
	r.updateWriter(func(w *record.Writer) { w.Lead(time.Now().Unix()) })
}

// AddGeneration adds a generation that the hosts have decided to what is to be written. It copies
// what it keeps of g.
func (r *Recorder) AddGeneration(g member.Record) {
	r.updateWriter(func(w *record.Writer) { w.AddGeneration(g, time.Now().Unix()) })
}

// Flush waits until everything added before is written, or was reported as impossible to write, or
// until ctx ends, which is an error. A host that has not led yet, or has no store yet, has nothing
// to write: it does not wait there.
func (r *Recorder) Flush(ctx context.Context) error {
	r.mu.Lock()
	if changes, end := r.writer.Unwritten(); r.store == nil || changes == 0 && !end {
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
		return r.unwrittenError(context.Cause(ctx))
	}
}

// Close waits as Flush does, and then ends the goroutine that writes. With ended it has the end of
// the job written after everything else. What could not be written is in the error. The store stays
// open.
func (r *Recorder) Close(ctx context.Context, ended bool) error {
	if ended {
		r.updateWriter(func(w *record.Writer) { w.End(time.Now().Unix()) })
	}
	err := r.Flush(ctx)
	r.mu.Lock()
	run := r.run
	r.mu.Unlock()
	if run != nil {
		run.Stop(nil)
		err = errors.Join(err, run.Wait())
	}
	return errors.Join(err, r.refused)
}

// unwrittenError returns the error of a Flush that ends because of why, before everything is
// written.
func (r *Recorder) unwrittenError(why error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		why = fmt.Errorf("%w (%w)", r.away, why)
	}
	if changes, _ := r.writer.Unwritten(); changes > 0 {
		return fmt.Errorf("%d membership changes are not recorded: %w", changes, why)
	}
	return fmt.Errorf("the end of the job is not recorded: %w", why)
}

// writeUntilEnd is the goroutine that writes: it makes one call after the other, and waits for
// work, until ctx ends.
func (r *Recorder) writeUntilEnd(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.work:
		}
		for r.makeCall(ctx) {
		}
	}
}

// makeCall asks the store what the writer asks for next, gives the writer the answer, and sleeps
// for the pause that the writer wants. It returns false if there is nothing to ask, or ctx has
// ended. The goroutine that writes calls it, without r.mu.
func (r *Recorder) makeCall(ctx context.Context) bool {
	r.mu.Lock()
	c, ok := r.writer.Next()
	store, reports := r.store, r.writer.Reports()
	r.mu.Unlock()
	r.forwardReports(store, reports)
	if !ok {
		r.endFlushes()
		return false
	}
	a := callStore(ctx, store, c)
	if ctx.Err() != nil && a.Said == record.Silent {
		return false
	}
	r.mu.Lock()
	r.away = nil
	if a.Said == record.Silent {
		r.away = a.Err
	}
	r.writer.Answered(a)
	pause, reports := r.writer.PauseMillis(), r.writer.Reports()
	r.mu.Unlock()
	r.forwardReports(store, reports)
	if pause == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(time.Duration(pause) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writer.PauseOver()
	return true
}

// endFlushes lets every Flush return that waits, unless there is more to write by now. The
// goroutine that writes calls it.
func (r *Recorder) endFlushes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if changes, end := r.writer.Unwritten(); changes > 0 || end {
		return
	}
	for _, done := range r.idle {
		close(done)
	}
	r.idle = nil
}

// forwardReports turns reports into lines, and calls r.report with each; that the end of the job
// cannot be written it keeps in r.refused for Close instead. The goroutine that writes calls it,
// without r.mu.
func (r *Recorder) forwardReports(s Store, reports []record.Report) {
	for _, report := range reports {
		switch {
		case report.Unreachable != nil:
			r.report(fmt.Sprintf("the store %s is unreachable: training goes on, membership "+
				"changes are recorded later (%v)", s, report.Unreachable))
		case report.Back:
			line := fmt.Sprintf(
				"the store %s answers again: %d membership changes are being recorded", s,
				report.Late)
			if report.Omitted > 0 {
				line += fmt.Sprintf("; %d older ones are not", report.Omitted)
			}
			r.report(line)
		case report.End:
			r.refused = toPublicError(report.Refused)
		default:
			r.report(toPublicError(report.Refused).Error())
		}
	}
}
