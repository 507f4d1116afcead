package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// What of a job outlives a Machine, so that another one goes on where it was: a pool keeps it in
// its store. The methods of Machine are for the goroutine that uses it.

// History is what a machine knows of a job by what it has decided before. A machine that starts
// again and is given it with the job decides as the one before it would have. All else is derived:
// what is left and how fast a job is comes from its reports, and what a host has free from the jobs
// on it. That a change must not be undone holds until something happens, and a machine that starts
// again is told of its hosts before it decides.
type History struct {
	Started  int64   `json:"started"`   // when the job first got slots; -1 = not yet
	Waited   int64   `json:"waited"`    // milliseconds that it has waited, until Since if it waits
	Since    int64   `json:"since"`     // since when it waits; what it is while it runs has no use
	Counted  int64   `json:"counted"`   // until when Attained is counted
	Attained float64 `json:"attained"`  // slot-seconds that it had had then
	Moves    int     `json:"moves"`     // as of Job
	MovedAt  int64   `json:"moved_at"`  // when its slots last changed
	RunsFrom int64   `json:"runs_from"` // when the last change is over, or was
	Turn     uint64  `json:"turn"`      // larger than that of all others when it got slots
}

// Check returns an error if no machine can have written a history.
func (h History) Check() error {
	for _, x := range []int64{h.Waited, h.Since, h.Counted, int64(h.Moves), h.MovedAt, h.RunsFrom,
		h.Started + 1} {
		if x < 0 || x > math.MaxInt64/4 {
			return fmt.Errorf("a history has %d, which is no time and no number", x)
		}
	}
	if !(h.Attained >= 0) || math.IsInf(h.Attained, 1) || h.Turn > math.MaxUint64/2 {
		return fmt.Errorf("a history has the turn %d and %v slot-seconds", h.Turn, h.Attained)
	}
	return nil
}

// History returns the history of a job that waits or runs.
func (m *Machine) History(id JobID) (h History, there bool) {
	e := m.jobs[id]
	if e == nil {
		return History{}, false
	}
	h = History{Started: e.job.Started, Waited: e.waitedBefore, Since: e.waitsSince,
		Counted: e.countedAt, Attained: e.attained, Moves: e.job.Moves, MovedAt: e.job.MovedAt,
		RunsFrom: e.runsFrom, Turn: e.turn}
	if h.Started == Never {
		h.Started = -1
	}
	return h, true
}

// Restore is Submit for a job of a machine that is gone, with the history that it had there. Jobs
// are restored in the order in which they were submitted.
func (m *Machine) Restore(j Job, h History) error {
	if err := h.Check(); err != nil {
		return fmt.Errorf("job %s: %w", j.ID, err)
	}
	if err := m.Submit(j); err != nil {
		return err
	}
	e := m.jobs[j.ID]
	e.waitedBefore, e.waitsSince = h.Waited, min(h.Since, m.now)
	e.countedAt, e.attained, e.job.Attained = min(h.Counted, m.now), h.Attained, h.Attained
	e.job.Started, e.job.Moves, e.job.MovedAt = h.Started, h.Moves, min(h.MovedAt, m.now)
	if e.runsFrom, e.turn = h.RunsFrom, h.Turn; h.Started < 0 {
		e.job.Started = Never
	}
	slices.SortStableFunc(m.running, func(a, b *entry) int { return cmp.Compare(a.turn, b.turn) })
	return nil
}

// Update says what a job is by now. It keeps its history and its place among the others, and the
// policy what it remembers of it. Where the places are others than it has, it has those from now
// on, as with Undo. The policy is asked anew, unless nothing has changed, or, of a job that runs,
// only how far it is.
func (m *Machine) Update(j Job) error {
	e, err := m.find(j.ID)
	if err == nil {
		err = j.Check()
	}
	if err != nil {
		return err
	}
	places := inOrder(slices.Clone(j.Has))
	if !samePlaces(places, e.job.Has) {
		if err := m.Undo(j.ID, places, false); err != nil {
			return err
		}
	}
	old := e.job
	e.rebase(m.now)
	j.Has, j.Started, j.Moves, j.MovedAt, j.Attained = old.Has, old.Started, old.Moves, old.MovedAt,
		e.job.Attained
	j.Predicted = j.Done + j.Left.Mean
	alike := j.alike(&old)
	rekeyed := e.slots == 0 && (j.Left != old.Left || j.Done != old.Done || !alike)
	if rekeyed {
		m.dequeue(e)
	}
	if e.slots == 0 && j.held() != old.held() {
		e.waitedBefore, e.waitsSince = e.waited(m.now), m.now
	}
	e.job, e.left, e.done = j, j.Left.Mean, j.Done
	switch {
	case rekeyed:
		m.enqueue(e)
	case e.slots > 0:
		m.setRate(e)
		m.short = m.short || e.slots < j.Asked
	}
	if !alike {
		m.markChanged()
	}
	return nil
}

// alike reports whether two states of a job differ in nothing but how far it is.
func (j *Job) alike(old *Job) bool {
	return slices.Equal(j.Speed, old.Speed) && slices.Equal(j.Sizes, old.Sizes) &&
		j.Min == old.Min && j.Max == old.Max && j.Asked == old.Asked && j.Park == old.Park &&
		j.Priority == old.Priority && j.Deadline == old.Deadline && j.Value == old.Value &&
		j.Budget == old.Budget && j.Spread == old.Spread && j.Graph == old.Graph &&
		j.Arrived == old.Arrived && j.Kind == old.Kind && j.Tenant == old.Tenant
}
