package launcher

import "slices"

// A long job may lose and replace workers without end. What the launcher knows of them does not
// grow with that: of those that have ended it keeps the last, and counts the others.

// forgotten is what a registry keeps of the workers that it has forgotten. The registry's lock
// guards it. The zero value is that of no workers.
type forgotten struct {
	numbers numberSet
	ended   int  // how many they are
	well    int  // how many of them ended well
	joined  bool // some of them had joined the job
	peak    int  // most workers that have run at once, of those that are forgotten or not
}

// forgetOldWorkers forgets the workers that ended first, but for as many as have ever run at once
// and mostEnded more: with these result.json has all workers of a job that ends. It keeps those
// whose end can be the fault of the job, and forgets nobody once the launcher ends the workers.
// r.mu is held.
func (r *registry) forgetOldWorkers() {
	excess := len(r.endings) - max(r.old.peak, r.initial) - mostEnded
	if excess <= 0 || r.stopping >= 0 {
		return
	}
	r.endings = slices.DeleteFunc(r.endings, func(e ending) bool {
		joined := r.hasJoined(e.worker)
		if excess <= 0 || !e.survived && !(e.exit.OK() && joined) {
			return false
		}
		excess--
		r.old.numbers.add(e.worker)
		r.old.ended++
		if !e.survived {
			r.old.well++
		}
		r.old.joined = r.old.joined || joined
		delete(r.workers, e.worker)
		r.shutdown.dismissed = slices.DeleteFunc(r.shutdown.dismissed, func(worker int) bool {
			return worker == e.worker
		})
		return true
	})
}

// numberSet is a set of numbers of workers, as ranges without a gap, in ascending order. Most
// workers of a long job are in it, so the ranges are hardly more than the workers that are not. It
// is for one goroutine at a time.
type numberSet []numberRange

// numberRange is the numbers from first to last.
type numberRange struct{ first, last int }

// find returns the index of the range that has a number, and whether there is one; without one, the
// index at which it would be.
func (s numberSet) find(n int) (i int, has bool) {
	return slices.BinarySearchFunc(s, n, func(r numberRange, n int) int {
		switch {
		case r.last < n:
			return -1
		case r.first > n:
			return 1
		}
		return 0
	})
}

// has reports whether a number is in the set.
func (s numberSet) has(n int) bool {
	_, has := s.find(n)
	return has
}

// add puts a number into the set.
func (s *numberSet) add(n int) {
	i, has := s.find(n)
	if has {
		return
	}
	list := slices.Insert(*s, i, numberRange{n, n})
	if i+1 < len(list) && list[i+1].first == n+1 {
		list[i].last = list[i+1].last
		list = slices.Delete(list, i+1, i+2)
	}
	if i > 0 && list[i-1].last == n-1 {
		list[i-1].last = list[i].last
		list = slices.Delete(list, i, i+1)
	}
	*s = list
}
