package pool

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// In a large pool most jobs wait, and what happens to hosts is not about them. The others are kept
// in a list of their own, so that an event takes no longer when more jobs wait. The methods run
// within those of the Machine that take events, on the goroutine that uses it.

// open returns the jobs that are not over, in the order in which they were submitted. Few events
// are worth a look at all of them: TestCrowd bounds how many that are.
func (m *Machine) open() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, id := range m.order {
			m.visited++
			if !yield(m.jobs[id]) {
				return
			}
		}
	}
}

// isBusy reports whether a job has slots or is to have some, or whether processes of it may be left
// by what this head knows or another one might read.
func (e *entry) isBusy() bool {
	if e.started() || len(e.Want) > 0 || len(e.Held) > 0 || len(e.Parts) > 0 || len(e.sent) > 0 {
		return true
	}
	return slices.ContainsFunc(e.stored, func(w Write) bool { return len(w.held) > 0 })
}

// bySubmission compares jobs by the order in which they were submitted.
func bySubmission(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.ID, b.ID))
}

// addBusy puts a job among the busy ones, unless it is there or is over. Who makes a job busy, as
// isBusy says, calls it.
func (m *Machine) addBusy(e *entry) {
	if i, there := slices.BinarySearchFunc(m.busy, e, bySubmission); !there && !e.State.Over() {
		m.busy = slices.Insert(m.busy, i, e)
	}
}

// dropBusy drops a job from the busy ones.
func (m *Machine) dropBusy(e *entry) {
	if i, there := slices.BinarySearchFunc(m.busy, e, bySubmission); there {
		m.busy = slices.Delete(m.busy, i, i+1)
	}
}

// dropIdle drops the jobs from the busy ones that only wait by now.
func (m *Machine) dropIdle() {
	m.busy = slices.DeleteFunc(m.busy, func(e *entry) bool { return !e.isBusy() })
}

// unfinished returns the jobs that may have processes, those that are over last.
func (m *Machine) unfinished() []*entry {
	list := slices.Clone(m.busy)
	for _, id := range slices.Sorted(maps.Keys(m.ending)) {
		list = append(list, m.jobs[id])
	}
	return list
}

// indexOf returns the index of a job among all that are not over.
func (m *Machine) indexOf(e *entry) (i int, there bool) {
	return slices.BinarySearchFunc(m.order, e, func(id string, e *entry) int {
		return bySubmission(m.jobs[id], e)
	})
}

// checkEnding forgets that a job is ending when the store knows it and no process can be left.
func (m *Machine) checkEnding(e *entry) {
	if e.State.Over() && e.written >= e.version && e.Held.total() == 0 {
		delete(m.ending, e.ID)
	}
}
