package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What else people are told of the best plan: what would make it faster, and what takes memory. The
// methods of problem play the plan again with a change, on the goroutine of the problem, which
// belongs to one call of Solve or Judge.

// Memory is what takes the memory of a worker at most, in bytes.
type Memory struct {
	State int64 // stays between steps: parameters, gradients, the optimizer's
	Kept  int64 // from the forward to the backward passes of the micro-batches that it holds
	Sent  int64 // two micro-batches and two gradients, on their way in and out
}

// Sum returns the bytes of all of it.
func (m Memory) Sum() int64 { return m.State + m.Kept + m.Sent }

// String says for people what it is for.
func (m Memory) String() string {
	return fmt.Sprintf("state %s, kept for backward %s, transfers %s", plural.Bytes(m.State),
		plural.Bytes(m.Kept), plural.Bytes(m.Sent))
}

// A Help is a change that would let more samples through, as the timeline plays the same plan with
// that change.
type Help struct {
	What string // for people
	// Gain is how many more samples a second there would be, as a part.
	Gain float64
}

const (
	// speedup is by which part a layer becomes faster, to see what that brings.
	speedup = 0.1
	// leastGain is the gain below which a change is not told.
	leastGain = 1e-3
	// mostStages bounds the stages of which a layer becomes faster.
	mostStages = 4
)

// change is what becomes faster; the zero value is nothing.
type change struct {
	layer int     // that takes a part less, where speed is not 0
	stage int     // of that layer
	speed float64 // the part
	links float64 // by which part links become faster, of their latency too
}

// apply changes s, what the stage of a number takes in a step, to what it takes with the change;
// took is what its layers take.
func (x change) apply(s *timeline.Stage, took *costs, stage int) {
	if x.speed > 0 && x.stage == stage {
		forward, backward := took.passes(x.layer, x.layer+1)
		s.Forward -= float64(x.speed * forward)
		s.Backward -= float64(x.speed * backward)
	}
	s.Down, s.Up, s.Latency = s.Down/(1+x.links), s.Up/(1+x.links), s.Latency/(1+x.links)
}

// helps lists changes to a plan that would help, the one that helps most first: the layer that
// binds, links, more micro-batches, memory.
func (p *problem) helps(best *solved) (list []Help) {
	// add plays a plan with a change, and adds it if it helps; it is for so many times the batch.
	add := func(what string, c *candidate, x change, batch float64) {
		if gain := batch*best.seconds/p.seconds(c, x, math.Inf(1)) - 1; gain >= leastGain {
			list = append(list, Help{what, gain})
		}
	}
	same := &best.candidate
	for _, s := range best.busiest(mostStages) {
		layer := p.heaviest(best, s)
		add(fmt.Sprintf("layer %s 10 %% faster", p.model.Layers[layer].ID), same,
			change{layer: layer, stage: s, speed: speedup}, 1)
	}
	slices.SortStableFunc(list, func(a, b Help) int { return cmp.Compare(b.Gain, a.Gain) })
	list = list[:min(1, len(list))] // of all layers the one that helps most
	add("links twice as fast", same, change{links: 1}, 1)
	twice := *same
	twice.micro *= 2
	twice.most = slices.Clone(same.most)
	for i := range twice.most {
		twice.most[i] *= 2
	}
	add("twice the batch", &twice, change{}, 2)
	roomy := *same
	roomy.ahead = nil
	for s, held := range same.ahead {
		roomy.ahead = append(roomy.ahead, min(2*max(held, same.stages-s), same.mostHeld()))
	}
	if m := p.missing(&roomy); m.bytes > 0 {
		add(fmt.Sprintf("%s of memory in place of %s", plural.Bytes(m.has+m.bytes),
			plural.Bytes(m.has)), &roomy, change{}, 1)
	}
	slices.SortStableFunc(list, func(a, b Help) int { return cmp.Compare(b.Gain, a.Gain) })
	return list
}

// helpsFewer adds to what helps that fewer workers are faster, as where their number divides the
// batch or the layers better. It makes plans by estimates for that, on one kind of device.
func (p *problem) helpsFewer(r *Result) {
	found := p.estimated(0)
	if len(found) == 0 {
		return
	}
	fewer := found[0].replicas * found[0].stages * found[0].tp
	if gain := r.Best.Predicted.Seconds/found[0].seconds - 1; gain >= leastGain {
		r.Helps = append(r.Helps, Help{fmt.Sprintf("fewer workers (--workers %d)", fewer), gain})
		slices.SortStableFunc(r.Helps, func(a, b Help) int { return cmp.Compare(b.Gain, a.Gain) })
	}
}

// heaviest returns the number of the layer of a stage whose passes take longest.
func (p *problem) heaviest(best *solved, stage int) int {
	from, to := p.layersOf(&best.candidate, stage)
	took := best.laid.classes[0].costs[stage]
	heaviest, most := from, -1.0
	for i := from; i < to; i++ {
		if seconds := took.seconds(i, i+1); seconds > most {
			heaviest, most = i, seconds
		}
	}
	return heaviest
}

// busiest lists the stages that compute longest, at most so many, the longest first.
func (s *solved) busiest(most int) []int {
	list := make([]int, s.stages)
	for i := range list {
		list[i] = i
	}
	slices.SortStableFunc(list, func(a, b int) int {
		return cmp.Compare(s.timeline.Busy[b], s.timeline.Busy[a])
	})
	return list[:min(most, len(list))]
}

// memories returns what takes the memory of a worker of each stage, of the replicas that have least
// left.
func (p *problem) memories(c *candidate) []Memory {
	list := make([]Memory, c.stages)
	for stage := range list {
		least := int64(math.MaxInt64)
		for i, k := range c.laid.classes {
			m := p.memoryOf(c, i, stage)
			if left := k.costs[stage].limit - m.Sum(); left < least {
				least, list[stage] = left, m
			}
		}
	}
	return list
}

// rows returns, for each stage of a plan, what a trace shows beside its passes.
func (p *problem) rows(s *solved) (list []timeline.Row) {
	for stage := range s.stages {
		row := timeline.Row{Name: p.layerNames(s, stage)}
		row.AllReduce, row.Update = p.tailOf(&s.candidate, stage)
		list = append(list, row)
	}
	return list
}
