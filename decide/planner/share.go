package planner

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// How micro-batches are dealt among replicas that are not equally fast. The methods run on the
// goroutine of the problem, which belongs to one call of Solve or Judge; share sets the shares of
// the candidate that it is given.

// mostExact is up to how many micro-batches of a step shares are dealt by timelines, and not by
// what the slowest stage takes.
const mostExact = 12

// share deals the micro-batches of a step among unlike replicas so that the one that ends last ends
// as early as can be: one after the other to the replica that would end first with it. It reports
// whether each has some. A plan whose replicas are alike stays as it is, and counts as dealt.
func (p *problem) share(c *candidate) bool {
	total := p.batch / c.sample
	if !c.byReplica || total < c.replicas {
		return !c.byReplica
	}
	members := make([][]int, len(c.laid.classes)) // replicas of each class
	for r, k := range c.laid.classOf {
		members[k] = append(members[k], r)
	}
	ends := make([]func(micro int) float64, len(members))
	for k := range ends {
		if ends[k] = p.endsBySlowest(c, k); total <= mostExact {
			ends[k] = p.endsByTimeline(c, k)
		}
	}
	c.shares = make([]int, c.replicas)
	c.most = make([]int, len(members)) // in a class, one after the other gets one more
	given := make([]int, len(members))
	for range total {
		first, at := 0, math.Inf(1)
		for k, list := range members {
			if end := ends[k](given[k]/len(list) + 1); end < at {
				first, at = k, end
			}
		}
		list := members[first]
		c.shares[list[given[first]%len(list)]]++
		given[first]++
		c.most[first] = (given[first] + len(list) - 1) / len(list)
	}
	return !slices.Contains(c.shares, 0)
}

// endsBySlowest returns a function that says after about how many seconds a replica of a class ends
// with so many micro-batches: the slowest stage works all the time after the first one has come.
func (p *problem) endsBySlowest(c *candidate, class int) func(micro int) float64 {
	slowest, sum := 0.0, 0.0
	for _, x := range p.stagesOf(c, &c.laid.classes[class]) {
		busy := x.Forward + x.Backward
		if x.Transfer == timeline.Blocking {
			busy += 2 * (x.Down + x.Up)
		}
		slowest, sum = max(slowest, busy, x.Down), sum+x.Forward+x.Backward+x.Down+x.Up
	}
	return func(micro int) float64 { return sum + float64(float64(micro-1)*slowest) }
}

// endsByTimeline returns a function that says after how many seconds a replica of a class has ended
// its passes and the tails behind them with so many micro-batches, exactly.
func (p *problem) endsByTimeline(c *candidate, class int) func(micro int) float64 {
	stages := p.stagesOf(c, &c.laid.classes[class])
	for s := range stages {
		allReduce, update := p.tailOf(c, s)
		stages[s].Tail = allReduce + update
	}
	known := map[int]float64{}
	return func(micro int) float64 {
		if _, is := known[micro]; !is {
			known[micro] = p.player.Seconds(stages, micro, math.Inf(1))
		}
		return known[micro]
	}
}
