package member

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// phase is where a worker is in its life.
type phase int

const (
	starting phase = iota // the process runs and has not asked to take part
	ready                 // the worker asks to take part
	active                // a member
	leaving               // stopped on purpose, or done
)

// worker is a living worker of the job.
type worker struct {
	number topo.WorkerID
	host   string // the host on which it runs
	phase  phase
	// fresh says that a member has not taken part in a step: it may not have the state of the job.
	fresh bool
}

// roster are the living workers of a Machine, by ascending number, so oldest first. After every
// step it is gone through several times, and that costs less than to iterate a map. It belongs to
// the Machine, which one goroutine at a time uses.
type roster []*worker

// search returns the index of a worker, or the one where it belongs and false.
func (r roster) search(w topo.WorkerID) (int, bool) {
	return slices.BinarySearchFunc(r, w, func(s *worker, w topo.WorkerID) int {
		return cmp.Compare(s.number, w)
	})
}

// find returns the entry of a worker, which the roster keeps; nil where there is no such worker.
func (r roster) find(w topo.WorkerID) *worker {
	if i, is := r.search(w); is {
		return r[i]
	}
	return nil
}

// put adds a worker, in the place of one with the same number.
func (r *roster) put(s *worker) {
	i, is := r.search(s.number)
	if is {
		(*r)[i] = s
		return
	}
	*r = slices.Insert(*r, i, s)
}

// remove removes a worker, if it is there.
func (r *roster) remove(w topo.WorkerID) {
	if i, is := r.search(w); is {
		*r = slices.Delete(*r, i, i+1)
	}
}

// inPhases lists the workers in some phases, oldest first; nil if there are none. The list is the
// caller's.
func (r roster) inPhases(phases ...phase) []topo.WorkerID {
	var list []topo.WorkerID
	for _, s := range r {
		if slices.Contains(phases, s.phase) {
			if list == nil {
				list = make([]topo.WorkerID, 0, len(r))
			}
			list = append(list, s.number)
		}
	}
	return list
}

// countIn counts the workers in a phase.
func (r roster) countIn(p phase) (n int) {
	for _, s := range r {
		if s.phase == p {
			n++
		}
	}
	return n
}
