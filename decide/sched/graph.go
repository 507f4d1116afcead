package sched

import (
	"fmt"
	"math"
)

// Graph is what the workers of a job send to each other in a step. It holds for a job with as many
// workers as it has here; other sizes are placed as if nothing were known. Methods only read it.
type Graph struct {
	Workers int     // number of workers, who are numbered from 0 on
	Step    float64 // seconds of a step in which no byte leaves a host
	Edges   []Edge
	Link    float64 // bytes a second between two hosts
}

// Edge is what two workers send each other in a step.
type Edge struct {
	From, To int
	Bytes    float64
}

// Check returns an error that says what is wrong with a graph, or nil; nil is a graph of which
// nothing is known.
func (g *Graph) Check() error {
	if g == nil {
		return nil
	}
	if g.Workers < 1 || !(g.Step > 0) || !(g.Link > 0) || math.IsInf(g.Step, 1) {
		return fmt.Errorf("a graph of %d workers with a step of %v s and links of %v bytes a "+
			"second: all take more than 0", g.Workers, g.Step, g.Link)
	}
	for _, e := range g.Edges {
		if min(e.From, e.To) < 0 || max(e.From, e.To) >= g.Workers || e.From == e.To ||
			!(e.Bytes >= 0) || math.IsInf(e.Bytes, 1) {
			return fmt.Errorf("a graph of %d workers has an edge from %d to %d of %v bytes: "+
				"number workers from 0 on, and write bytes from 0 on", g.Workers, e.From, e.To,
				e.Bytes)
		}
	}
	return nil
}

// stretch returns how many times longer a step takes when worker i is on host at[i]: the time of
// the bytes that leave hosts comes on top.
func (g *Graph) stretch(at []int) float64 {
	cut := 0.0
	for _, e := range g.Edges {
		if at[e.From] != at[e.To] {
			cut += e.Bytes
		}
	}
	return 1 + cut/g.Link/g.Step
}
