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
// carries out what a [record.Writer] decides, which has the rules; the methods that are not
// explained here are as there.
type Recorder struct {
	report func(line string) // tells a person; called by the goroutine that writes

	mu      sync.Mutex      // guards the fields below; not held while the store is asked
	writer  record.Writer   // decides what is written, and in which order
	store   Store           // nil before Learn or Claimed
	away    error           // why the store did not answer the last call; nil = it did
	refused error           // why the end of the job is not written; nil = it can be
	work    chan struct{}   // holds one token when there may be something to write
	idle    []chan struct{} // one for each Flush that waits, closed when nothing is left
	run     *group.Group    // the goroutine that writes; nil before there is something to write
}

// NewRecorder returns the recorder of a host. It starts to write when it has something to write,
// and tells report, one line at a time and not from several goroutines at once, what a person
// should know. The caller closes it before the store.
func NewRecorder(report func(line string)) *Recorder {
	return &Recorder{report: report, work: make(chan struct{}, 1)}
}

// tell gives the writer news, and wakes the goroutine if there is something to do.
func (r *Recorder) tell(news func(w *record.Writer)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	news(&r.writer)
	if changes, end := r.writer.Left(); r.store == nil || changes == 0 && !end {
		return
	}
	if r.run == nil {
		r.run = group.New(context.Background())
		r.run.Go("recorder", r.write)
	}
	select {
	case r.work <- struct{}{}:
	default: // the token is there
	}
}

// Is tells where this host is.
func (r *Recorder) Is(host, address string) {
	r.tell(func(w *record.Writer) { w.Is(host, address) })
}

// Learn tells which record it is, and in which store.
func (r *Recorder) Learn(s Store, job, run string, after topo.Generation) {
	r.tell(func(w *record.Writer) {
		r.store = s
		w.Learn(job, run, after, time.Now().Unix())
	})
}

// Claimed tells that this host leads by [Begin].
func (r *Recorder) Claimed(s Store, o Owner) {
	r.tell(func(w *record.Writer) {
		r.store = s
		w.Claimed(o.value())
	})
}

// Lead makes this host write, as the head of a job that begins.
func (r *Recorder) Lead() {
	r.tell(func(w *record.Writer) { w.Lead(time.Now().Unix()) })
}

// Decided tells of a generation. It does not wait.
func (r *Recorder) Decided(g member.Record) {
	r.tell(func(w *record.Writer) { w.Decided(g, time.Now().Unix()) })
}

// Flush waits until everything told before is written, or was reported as impossible to write.
func (r *Recorder) Flush(ctx context.Context) error {
	r.mu.Lock()
	if changes, end := r.writer.Left(); r.store == nil || changes == 0 && !end {
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
		return r.unwritten(context.Cause(ctx))
	}
}

// Close waits as Flush does, and then ends the writing. With ended it has the end of the job
// written first, behind all else. What could not be written is in the error.
func (r *Recorder) Close(ctx context.Context, ended bool) error {
	if ended {
		r.tell(func(w *record.Writer) { w.End(time.Now().Unix()) })
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

// unwritten is the error of a Flush that ends before everything is written.
func (r *Recorder) unwritten(why error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		why = fmt.Errorf("%w (%w)", r.away, why)
	}
	if changes, _ := r.writer.Left(); changes > 0 {
		return fmt.Errorf("%d membership changes are not recorded: %w", changes, why)
	}
	return fmt.Errorf("the end of the job is not recorded: %w", why)
}

// write is the goroutine that writes: it makes one call after the other, and waits for work.
func (r *Recorder) write(ctx context.Context) error {
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

// next makes one call; false if there is none to make, or the writing is to end.
func (r *Recorder) next(ctx context.Context) bool {
	r.mu.Lock()
	c, ok := r.writer.Next()
	store, reports := r.store, r.writer.Reports()
	r.mu.Unlock()
	r.say(store, reports)
	if !ok {
		r.rest()
		return false
	}
	a := call(ctx, store, c)
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
	r.say(store, reports)
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

// rest ends the wait of every Flush, unless there is more to write by now.
func (r *Recorder) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if changes, end := r.writer.Left(); changes > 0 || end {
		return
	}
	for _, done := range r.idle {
		close(done)
	}
	r.idle = nil
}

// say puts reports into words.
func (r *Recorder) say(s Store, reports []record.Report) {
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
			r.refused = told(report.Refused)
		default:
			r.report(told(report.Refused).Error())
		}
	}
}
