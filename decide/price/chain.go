package price

import (
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
)

// A Stage is one of a chain through which all requests go: how many of them a replica takes, and
// what replicas cost.
type Stage struct {
	Name  string
	Share float64 // requests at this stage for one that enters the chain
	Each  float64 // requests that a replica takes in a slot of time; above 0
	Room  float64 // what a replica takes of the capacity of the hosts; above 0
	Run   float64 // money that a replica costs in a slot of time; above 0
	Start float64 // money that it costs to start one; above 0
}

// Need returns how many replicas a stage needs for the requests that enter the chain in a slot of
// time.
func (s Stage) Need(requests float64) int {
	return int(math.Ceil(requests*s.Share/s.Each - 1e-9))
}

// cost returns the money that a stage costs in a slot of time that has `after` replicas, where
// there were `before`: to run them, and to start those that are new.
func (s Stage) cost(before, after int) float64 {
	return float64(s.Run*float64(after)) + float64(s.Start*float64(max(0, after-before)))
}

// A Scaler chooses how many replicas the stages of a chain have, in each slot of time by what it is
// told that they need, and knows nothing of later ones.
type Scaler interface {
	// Step returns how many replicas each stage has in the next slot of time, where it needs so
	// many at least; an error if there is no room for these.
	Step(need []int) ([]int, error)
}

// Chain is the scaling of a chain online (Luo and Wu, ToN 2020; the step is that of Jia, Wu and
// others, ToN 2018): in each slot of time it solves
//
//	min Σ run · x + start/η · Σ ((x+ε) · ln((x+ε) / (x'+ε)) - x)
//	x ≥ need,  Σ room · x ≤ capacity
//
// where x' is the last solution and η = ln(1 + 1/ε). So replicas that are not needed any more are
// not stopped at once, but fewer and fewer of them run on. The solution is in parts of replicas. It
// is rounded by adding the same number all the time, from 0 to 1, and leaving out what is not
// whole. With a number by chance as many are started and run as the solution says, on average, and
// never fewer than are needed. So with one of a few numbers between 0 and 1 no more, and for each
// stage the one counts with which it would have cost least so far. One goroutine uses it at a time.
type Chain struct {
	Stages   []Stage
	Capacity float64 // of all hosts; 0 = no bound

	parts    []float64  // the last solution
	roundups []roundups // by stage
}

// offsets is how many numbers are tried for rounding.
const offsets = 8

// roundups is what rounding the solution for a stage with each of the numbers would have come to.
type roundups struct {
	whole [offsets]int     // replicas in the last slot of time
	cost  [offsets]float64 // money so far
	used  int              // which of them counts
}

// epsilon is ε of the step: what is added to the replicas of a stage in the logarithm, so that it
// exists where the stage has none.
const epsilon = 0.1

// NewChain returns the scaling of a chain that has no replicas yet; capacity is as in Chain.
func NewChain(stages []Stage, capacity float64) (*Chain, error) {
	for _, s := range stages {
		if !(s.Each > 0 && s.Share >= 0 && s.Room > 0 && s.Run > 0 && s.Start > 0) {
			return nil, fmt.Errorf("stage %q: what a replica takes, its room, and what it costs "+
				"to run and to start one must be above 0, and its share at least 0", s.Name)
		}
	}
	return &Chain{Stages: stages, Capacity: capacity, parts: make([]float64, len(stages)),
		roundups: make([]roundups, len(stages))}, nil
}

// Step implements Scaler.
func (c *Chain) Step(need []int) ([]int, error) {
	least := 0.0
	for i, s := range c.Stages {
		least += float64(s.Room * float64(need[i]))
	}
	if c.Capacity > 0 && least > c.Capacity*(1+1e-9) {
		return nil, fmt.Errorf("the stages need room for %.6g, and the hosts have %.6g: add "+
			"hosts, or refuse requests", least, c.Capacity)
	}
	c.parts = c.solve(need)
	return c.roundParts(need), nil
}

// solve returns the solution of the step for what the stages need, in parts of replicas. Capacity
// has one multiplier, which is looked for by bisection: with a greater one, less runs on.
func (c *Chain) solve(need []int) []float64 {
	parts := make([]float64, len(c.Stages))
	// room sets the solution for a multiplier, and returns the room that it takes.
	room := func(multiplier float64) (sum float64) {
		for i, s := range c.Stages {
			eta := portable.Log(1 + 1/epsilon)
			run := s.Run + float64(multiplier*s.Room)
			left := float64((c.parts[i]+epsilon)*portable.Exp(-eta*run/s.Start)) - epsilon
			parts[i] = max(float64(need[i]), left)
			sum += float64(s.Room * parts[i])
		}
		return sum
	}
	if room(0) <= c.Capacity || c.Capacity <= 0 {
		return parts
	}
	low, high := 0.0, 1.0
	for range 60 {
		if room(high) <= c.Capacity {
			break
		}
		low, high = high, 2*high
	}
	for range 60 {
		if middle := (low + high) / 2; room(middle) > c.Capacity {
			low = middle
		} else {
			high = middle
		}
	}
	room(high)
	return parts
}

// roundParts returns the solution, c.parts, in whole replicas, at least what is needed. Where these
// need more room than there is, the stages whose parts were rounded up most give way.
func (c *Chain) roundParts(need []int) []int {
	whole, room := make([]int, len(c.Stages)), 0.0
	for i, s := range c.Stages {
		whole[i] = c.roundups[i].nextWhole(s, c.parts[i], need[i])
		room += float64(s.Room * float64(whole[i]))
	}
	for c.Capacity > 0 && room > c.Capacity*(1+1e-9) {
		first, most := -1, 0.0
		for i := range whole {
			up := float64(whole[i]) - c.parts[i]
			if whole[i] > need[i] && (first < 0 || up > most) {
				first, most = i, up
			}
		}
		if first < 0 {
			break
		}
		whole[first]--
		room -= c.Stages[first].Room
	}
	return whole
}

// nextWhole rounds the next parts with each of the numbers, and returns what the one that counts
// gives. Another one counts when it would have cost less by more than a start.
func (r *roundups) nextWhole(s Stage, parts float64, need int) int {
	best := r.used
	for i := range r.whole {
		number := float64((float64(i) + 0.5) / offsets)
		whole := max(need, int(math.Floor(parts+number)))
		r.cost[i] += float64(s.cost(r.whole[i], whole))
		r.whole[i] = whole
		if r.cost[i] < r.cost[best] {
			best = i
		}
	}
	if r.cost[best] < r.cost[r.used]-s.Start {
		r.used = best
	}
	return r.whole[r.used]
}

// Parts returns the last solution, in parts of replicas.
func (c *Chain) Parts() []float64 { return c.parts }
