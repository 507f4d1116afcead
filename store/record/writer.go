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
// and asks for one call to the store at a time: nobody waits for it. A host that has never led
// writes nothing, and keeps the newest generations: the head before it may not have written them.
// Once it leads it writes who leads, then the generations in the order in which they were decided.
// One goroutine at a time may use it; its methods do no I/O. Times are in seconds since 1970.
type Writer struct {
	host, address string          // this host, and where its agent listens; "" = not known yet
	job, run      string          // the record that is written; "" = not known yet
	after         topo.Generation // how many generations of ended heads the record has

	owner   Owner           // what this host leads as, or led last as
	leads   bool            // whether this host leads or led, and so writes
	claims  bool            // whether the owner is to be written
	waiting []member.Record // generations to be written; the first may be under way
	omitted int             // generations that were left out
	ends    int64           // the end of the job, to be written after all else; 0 = there is none

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

// SetHost sets this host's name in the job, and the address at which its agent listens.
func (w *Writer) SetHost(host, address string) { w.host, w.address = host, address }

// SetRecord sets the run whose record this host writes, and after, the number of generations that
// the record has of heads that have ended.
func (w *Writer) SetRecord(job, run string, after topo.Generation, now int64) {
	w.job, w.run, w.after = job, run, after
	w.leadIfDecided(now)
}

// SetOwner sets the owner that this host is already, because a [Beginning] has made it so.
func (w *Writer) SetOwner(o Owner) {
	w.job, w.run, w.after, w.owner = o.Job, o.Run, o.Generation, o
}

// Lead makes this host write from now on, as the head of a job that begins.
func (w *Writer) Lead(now int64) { w.becomeOwner(0, now) }

// AddGeneration adds a generation that the hosts have decided to what is to be written. If it names
// this host as the head, this host writes from now on. It copies what it keeps of g.
func (w *Writer) AddGeneration(g member.Record, now int64) {
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
	w.leadIfDecided(now)
}

// leadIfDecided makes this host the owner if the newest generation has made it the head.
func (w *Writer) leadIfDecided(now int64) {
	if w.run == "" || len(w.waiting) == 0 {
		return
	}
	newest := w.waiting[len(w.waiting)-1]
	if newest.Head == w.host && (!w.leads || w.after+newest.Since > w.owner.Generation) {
		w.becomeOwner(newest.Since, now)
	}
}

// becomeOwner makes this host the owner of the job, as its head since a generation of this run, and
// has that written.
func (w *Writer) becomeOwner(since topo.Generation, now int64) {
	w.owner = Owner{Job: w.job, Run: w.run, Host: w.host, Address: w.address,
		Generation: w.after + since, Since: now}
	w.leads, w.claims = true, true
	if w.does == claiming { // of an owner that is not the newest any more
		if w.start = nil; w.pausing {
			w.task = nil
		}
	}
}

// End has the end of the job written, after everything else. No generation is added afterwards.
func (w *Writer) End(now int64) { w.ends = now }

// Next returns the call that the store is to be asked for: the same one until Answered. ok is false
// if there is none now.
func (w *Writer) Next() (c Call, ok bool) {
	for w.task == nil && !w.pausing {
		task, err := w.nextTask()
		if task == nil && err == nil {
			return c, false
		}
		w.task, w.start = task, task
		if err != nil {
			w.endTask(err)
		}
	}
	if w.task == nil || w.pausing {
		return c, false
	}
	return w.task.Call, true
}

// nextTask returns the task for what is to be written next, and sets w.does; nil if there is
// nothing.
func (w *Writer) nextTask() (*Task, error) {
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

// Answered takes the store's answer to the call of Next. During a pause it is ignored.
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
		w.endTask(err)
	}
}

// endTask ends the task under way: it is done, or cannot be done because of err.
func (w *Writer) endTask(err error) {
	switch w.does {
	case writing:
		w.waiting = slices.Delete(w.waiting, 0, 1)
	case ending:
		w.ends = 0
	}
	w.task, w.start = nil, nil
	if err != nil && !w.isOvertaken(err) {
		w.reports = append(w.reports, Report{Refused: err, End: w.does == ending})
	}
}

// isOvertaken reports whether err says that a claim came too late: another host has become the head
// by decision, or the job has ended.
func (w *Writer) isOvertaken(err error) bool {
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

// PauseOver ends the pause. The task that was under way begins anew.
func (w *Writer) PauseOver() { w.pausing = false }

// Reports returns the reports since the last call; they belong to the caller.
func (w *Writer) Reports() []Report {
	list := w.reports
	w.reports = nil
	return list
}

// Unwritten returns the number of changes that are not written yet (generations, and who leads),
// and whether the end of the job is not.
func (w *Writer) Unwritten() (changes int, end bool) {
	if w.leads {
		changes = len(w.waiting)
	}
	if w.claims || w.task != nil && w.does == claiming {
		changes++
	}
	return changes, w.ends != 0 && w.run != ""
}
