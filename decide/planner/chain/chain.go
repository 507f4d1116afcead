// Package chain finds good plans of layers in a row: where stages begin, and how many micro-batches
// each of them holds. It is pure, and a seed says what it tries.
package chain

import (
	"math"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// A Stage is what a stage takes, and how many micro-batches it may hold at most, 0 = it does not
// fit. Of how many it holds, and in which order, it says nothing.
type Stage struct {
	timeline.Stage
	Most int
}

// A Problem is a chain of layers, and how many stages and micro-batches there are.
type Problem struct {
	Layers, Stages, Micro int
	// Stage returns what stage s takes if it has the layers from i to j, without j. Nobody changes
	// it.
	Stage func(s, i, j int) *Stage
}

// A Plan is where stages begin, how many micro-batches each holds, and what a step takes.
type Plan struct {
	Starts, Ahead []int
	Seconds       float64 // +Inf = it does not fit into memory, or stages wait for ever
}

// A player plays steps of a problem. It keeps its working space, so one goroutine uses it at a
// time: that of its Search.
type player struct {
	timeline.Player
	p      *Problem
	stages []timeline.Stage
}

// newPlayer returns a player of a problem.
func newPlayer(p *Problem) *player {
	return &player{p: p, stages: make([]timeline.Stage, p.Stages)}
}

// play returns the seconds that a step of a plan takes, whose stages begin at the layers starts and
// hold ahead micro-batches each; +Inf where it does not fit into memory, or is known to take more
// than limit.
func (y *player) play(starts, ahead []int, limit float64) float64 {
	for s := range y.stages {
		to := y.p.Layers
		if s+1 < len(starts) {
			to = starts[s+1]
		}
		x := y.p.Stage(s, starts[s], to)
		if ahead[s] > x.Most {
			return math.Inf(1)
		}
		y.stages[s] = x.Stage
		y.stages[s].Ahead = ahead[s]
	}
	return y.Seconds(y.stages, y.p.Micro, limit)
}
