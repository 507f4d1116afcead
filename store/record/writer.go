package record

import (
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

const (
	// MaxKept bounds the generations that a host remembers in case it must write them for a head
	// that was lost.
	MaxKept = 64
	// maxWaiting bounds those that wait for a store that is away. Beyond it the oldest are left
	// out.
	maxWaiting = 1024
	// A store that does not answer is asked again after a time that doubles from firstPause to
	// lastPause.
	firstPause, lastPause = 50, 5000 // milliseconds
)

// Writer is what one host of a job has to write into its record. It is told what the hosts decide,
// and asks for one call at a time: nobody waits for it. A host that has never led writes nothing,
// and keeps the newest generations: the head before it may not have written them. Once it leads it
// writes who leads, then the generations in the order in which they were decided.
type Writer struct {
	host, address string          // this host, and where its agent listens; "" = not known yet
	job, run      string          // the record that is written; "" = not known yet
	after         topo.Generation // how many generations of ended heads the record has

	owner   Owner           // what this host leads as, or led last as
	leads   bool            // whether this host leads or led, and so writes
	claims  bool            // whether the owner is to be written
	waiting []member.Record // generations to be written; the first may be under way
	omitted int             // generations that were left out
	ends    int64           // the end of the job, to be written behind all else; 0 = there is none

	task, start *Task    // the task under way, and what it was when it began; nil = none
	does        duty     // what the task is for
	pausing     bool     // whether nothing is asked of the store until PauseOver
	failures    int      // calls that have failed in the present outage; 0 = there is none
	told        bool     // whether the present outage was reported
	reports     []Report // reports since the last call of Reports
}

// duty is what a task of a writer is for.
type duty int

const (
	claiming duty = iota // write who leads
	writing              // write the oldest of the waiting generations
	ending               // write that the job has ended
)

// Report is news for a person. The field that is set says which.
type Report struct {
	Unreachable error // why the store does not answer: what comes now is written later
	Back        bool  // whether the store answers again
	Late        int   // with Back: generations that are being written only now
	Omitted     int   // with Back: generations that are not written
	Refused     error // why something is not written, ever
	End         bool  // with Refused: whether that is the end of the job
}

// Is tells where this host is: its name in the job, and where its agent listens.
func (w *Writer) Is(host, address string) { w.host, w.address = host, address }

// Learn tells which record it is, and how many generations of heads that have ended are in it.
func (w *Writer) Learn(job, run string, after topo.Generation, now int64) {
	w.job, w.run, w.after = job, run, after
	w.leading(now)
}

// Claimed tells that this host is the owner already, as which a [Beginning] has made it.
func (w *Writer) Claimed(o Owner) { w.job, w.run, w.after, w.owner = o.Job, o.Run, o.Generation, o }

// Lead makes this host write from now on, and itself as the head of a job that begins.
func (w *Writer) Lead(now int64) { w.lead(0, now) }

// Decided tells of a generation.
func (w *Writer) Decided(g member.Record, now int64) {
	if g.View.Generation == 0 {
		return // the job has not begun
	}
	g.View.Members, g.Hosts = slices.Clone(g.View.Members), slices.Clone(g.Hosts)
	w.waiting = append(w.waiting, g)
	switch n := len(w.waiting); {
	case !w.leads && n > MaxKept:
		w.waiting = slices.Delete(w.waiting, 0, 1)
	case n > maxWaiting:
		// the first may be under way, the last is the newest
		w.waiting = slices.Delete(w.waiting, 1, 2)
		w.omitted++
	}
	w.leading(now)
}

// leading notes that the newest generation has made this host the head.
func (w *Writer) leading(now int64) {
	if w.run == "" || len(w.waiting) == 0 {
		return
	}
	newest := w.waiting[len(w.waiting)-1]
	if newest.Head == w.host && (!w.leads || w.after+newest.Since > w.owner.Generation) {
		w.lead(newest.Since, now)
	}
}

// lead makes this host the owner of the job, as its head since a generation of this run, and has
// that written.
func (w *Writer) lead(since topo.Generation, now int64) {
	w.owner = Owner{Job: w.job, Run: w.run, Host: w.host, Address: w.address,
		Generation: w.after + since, Since: now}
	w.leads, w.claims = true, true
	if w.does == claiming { // of an owner that is not the newest any more
		if w.start = nil; w.pausing {
			w.task = nil
		}
	}
}

// End tells that the job has ended, which this host writes behind all else. Nothing is decided
// afterwards.
func (w *Writer) End(now int64) { w.ends = now }

// Next is the call that the store is to be asked for: the same one until Answered. False if there
// is none now.
func (w *Writer) Next() (c Call, ok bool) {
	for w.task == nil && !w.pausing {
		task, err := w.plan()
		if task == nil && err == nil {
			return c, false
		}
		w.task, w.start = task, task
		if err != nil {
			w.over(err)
		}
	}
	if w.task == nil || w.pausing {
		return c, false
	}
	return w.task.Call, true
}

// plan begins what is to be done next.
func (w *Writer) plan() (*Task, error) {
	switch {
	case w.claims:
		w.does, w.claims = claiming, false
		return Claim(w.owner, false)
	case w.leads && len(w.waiting) > 0:
		w.does = writing
		g := w.waiting[0]
		g.View.Generation += w.after
		g.Since += w.after
		return Write(w.job, w.run, g)
	case w.ends != 0 && w.run != "":
		w.does = ending
		return Release(w.owner, w.ends), nil
	}
	return nil, nil
}

// Answered tells what the store says to the call of Next.
func (w *Writer) Answered(a Answer) {
	if w.task == nil || w.pausing {
		return
	}
	if a.Said == Silent {
		if !w.told && w.does != ending { // whoever waits for the end hears that it is not written
			w.told = true
			w.reports = append(w.reports, Report{Unreachable: a.Err})
		}
		w.task, w.pausing = w.start, true
		w.failures++
		return
	}
	if w.told {
		w.reports = append(w.reports, Report{Back: true, Late: len(w.waiting), Omitted: w.omitted})
		w.told, w.omitted = false, 0
	}
	w.failures = 0
	task, err := w.task.Answered(a)
	if w.task = task; task == nil {
		w.over(err)
	}
}

// over ends a task: it is done, or cannot be.
func (w *Writer) over(err error) {
	switch w.does {
	case writing:
		w.waiting = slices.Delete(w.waiting, 0, 1)
	case ending:
		w.ends = 0
	}
	w.task, w.start = nil, nil
	if err != nil && !w.followed(err) {
		w.reports = append(w.reports, Report{Refused: err, End: w.does == ending})
	}
}

// followed reports whether a claim came too late: another host has led on by decision, or the job
// has ended.
func (w *Writer) followed(err error) bool {
	var taken *TakenError
	if w.does != claiming || !errors.As(err, &taken) || taken.Owner.Run != w.run {
		return false
	}
	return taken.Owner.Ended != 0 || taken.Owner.Generation > w.owner.Generation
}

// PauseMillis returns how many milliseconds are to pass until PauseOver; 0 = no pause.
func (w *Writer) PauseMillis() int {
	if !w.pausing {
		return 0
	}
	return min(firstPause<<min(w.failures-1, 10), lastPause)
}

// PauseOver tells that the pause is over. What was under way is done from its start.
func (w *Writer) PauseOver() { w.pausing = false }

// Reports returns what there was to tell since the last call.
func (w *Writer) Reports() []Report {
	list := w.reports
	w.reports = nil
	return list
}

// Left counts what is not written yet: generations, with who leads, and then the end of the job.
func (w *Writer) Left() (changes int, end bool) {
	if w.leads {
		changes = len(w.waiting)
	}
	if w.claims || w.task != nil && w.does == claiming {
		changes++
	}
	return changes, w.ends != 0 && w.run != ""
}
