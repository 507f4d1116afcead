// Package chain finds good plans of layers in a row: where stages begin, and how many micro-batches
// each of them holds. What it finds is a proposal, which timeline judges. It is pure, and a seed
// says what it tries.
package chain

import "math"

// A Stage is what a stage takes: seconds of a micro-batch forward and back, those behind its last
// backward pass, those that a micro-batch is on its way to the next stage and back from there, and
// how many micro-batches it may hold at most, 0 = it does not fit.
type Stage struct {
	Forward, Backward, Tail, Down, Up float64
	Most                              int
}

// A Problem is a chain of layers, and how many stages and micro-batches there are.
type Problem struct {
	Layers, Stages, Micro int
	// Stage returns what stage s takes if it has the layers from i to j, without j.
	Stage func(s, i, j int) Stage
}

// A Plan is where stages begin, how many micro-batches each holds, and what a step takes.
type Plan struct {
	Starts, Ahead []int
	Seconds       float64 // +Inf = it does not fit into memory, or stages wait for ever
}

// A player plays steps. It keeps its working space.
type player struct {
	p       *Problem
	stages  []Stage
	at      []int // passes that each stage has made
	forward []int // how many of them went forward
	free    []float64
	ends    [2][]float64 // of passes forward and back, by stage and micro-batch
	left    []float64    // seconds that a stage still has to work, at least
	played  int          // passes, over all calls
}

// newPlayer returns a player of a problem.
func newPlayer(p *Problem) *player {
	n := p.Stages
	return &player{p: p, stages: make([]Stage, n), at: make([]int, n), forward: make([]int, n),
		free: make([]float64, n), left: make([]float64, n),
		ends: [2][]float64{make([]float64, n*p.Micro), make([]float64, n*p.Micro)}}
}

// play returns what a step of a plan takes; more than limit where it is known to be more, and +Inf
// where it does not fit into memory.
func (y *player) play(starts, ahead []int, limit float64) float64 {
	n, m := y.p.Stages, y.p.Micro
	for s := range n {
		to := y.p.Layers
		if s+1 < n {
			to = starts[s+1]
		}
		x := y.p.Stage(s, starts[s], to)
		if ahead[s] > x.Most {
			return math.Inf(1)
		}
		y.stages[s] = x
		y.at[s], y.forward[s], y.free[s] = 0, 0, 0
		y.left[s] = float64(float64(m)*(x.Forward+x.Backward)) + x.Tail
	}
	for moved := true; moved; {
		moved = false
		for s := range n {
			before := y.at[s]
			if !y.advance(s, min(ahead[s], m), limit) {
				return math.Inf(1)
			}
			moved = moved || y.at[s] != before
		}
	}
	last := 0.0
	for s := range n {
		if y.at[s] < 2*m {
			return math.Inf(1)
		}
		last = max(last, y.free[s]+y.stages[s].Tail)
	}
	return last
}

// advance makes the passes of a stage for which what they need is there. It reports false where the
// step is known to take more than limit.
func (y *player) advance(s, ahead int, limit float64) bool {
	n, m := y.p.Stages, y.p.Micro
	x := &y.stages[s]
	free, i, gone, left := y.free[s], y.at[s], y.forward[s], y.left[s]
	forward, back := y.ends[0][s*m:(s+1)*m], y.ends[1][s*m:(s+1)*m]
	for ; i < 2*m; i++ {
		if i >= ahead && (i >= 2*m-ahead || (i-ahead)%2 == 0) {
			k := i - gone
			if s == n-1 {
				free = max(free, forward[k])
			} else {
				if y.at[s+1]-y.forward[s+1] <= k {
					break
				}
				free = max(free, y.ends[1][(s+1)*m+k]+x.Up)
			}
			free += x.Backward
			left -= x.Backward
			back[k] = free
		} else {
			if s > 0 {
				if y.forward[s-1] <= gone {
					break
				}
				free = max(free, y.ends[0][(s-1)*m+gone]+y.stages[s-1].Down)
			}
			free += x.Forward
			left -= x.Forward
			forward[gone] = free
			gone++
		}
		y.played++
	}
	y.free[s], y.at[s], y.forward[s], y.left[s] = free, i, gone, left
	return free+left <= limit
}
