package spp

import "github.com/shoal-ml/shoal/decide/planner/timeline"

// Schedule returns in which order each stage makes its passes by a list schedule: of all passes and
// transfers that could come next the one that can begin first, and of those one back before one
// forward. A link between two stages carries one micro-batch at a time, in one direction. held says
// of how many micro-batches each stage holds at most what their backward passes need; the numbers
// do not ascend. seconds is when the last stage ends, with its tail, by that schedule.
func Schedule(stages []timeline.Stage, micro int, held []int) (orders [][]bool, seconds float64) {
	n := len(stages)
	s := &schedule{stages: stages, held: held, free: make([]float64, 2*n-1), limit: micro,
		forward: make([][]float64, 2*n-1), back: make([][]float64, 2*n-1)}
	orders = make([][]bool, n)
	for {
		machine, backward, start := s.next()
		if machine < 0 {
			break
		}
		took := s.seconds(machine, backward)
		s.free[machine] = start + took
		if backward {
			s.back[machine] = append(s.back[machine], start+took)
		} else {
			s.forward[machine] = append(s.forward[machine], start+took)
		}
		if machine%2 == 0 {
			orders[machine/2] = append(orders[machine/2], backward)
			seconds = max(seconds, start+took+stages[machine/2].Tail)
		}
	}
	return orders, seconds
}

// A schedule is a list schedule as far as it is made, by one call of Schedule. Machines are the
// stages and the links between them by turns.
type schedule struct {
	stages        []timeline.Stage
	held          []int
	limit         int         // micro-batches
	free          []float64   // by machine, when it can begin the next
	forward, back [][]float64 // by machine, the ends of what it has done
}

// next returns what comes next, and when it begins; machine -1 = all is done.
func (s *schedule) next() (machine int, backward bool, start float64) {
	machine = -1
	for m := len(s.free) - 1; m >= 0; m-- {
		for _, back := range []bool{true, false} {
			ready, is := s.ready(m, back)
			if ready = max(ready, s.free[m]); !is {
				continue
			}
			if machine < 0 || ready < start || ready == start && back && !backward {
				machine, backward, start = m, back, ready
			}
		}
	}
	return machine, backward, start
}

// ready returns when what a machine needs for its next pass is there; false = that is not known, or
// there is no such pass, or the stage holds as many micro-batches as it may.
func (s *schedule) ready(m int, back bool) (at float64, is bool) {
	last := len(s.free) - 1
	if back {
		k := len(s.back[m])
		switch {
		case m == last && k < len(s.forward[m]):
			return s.forward[m][k], true
		case m < last && k < len(s.back[m+1]):
			return s.back[m+1][k], true
		}
		return 0, false
	}
	k := len(s.forward[m])
	switch {
	case k == s.limit || m%2 == 0 && k-len(s.back[m]) >= s.held[m/2]:
		return 0, false
	case m == 0:
		return 0, true
	case k < len(s.forward[m-1]):
		return s.forward[m-1][k], true
	}
	return 0, false
}

// seconds returns how long a machine takes for a micro-batch.
func (s *schedule) seconds(m int, back bool) float64 {
	x := &s.stages[m/2]
	switch {
	case m%2 == 0 && back:
		return x.Backward
	case m%2 == 0:
		return x.Forward
	case back:
		return x.Up
	}
	return x.Down
}
