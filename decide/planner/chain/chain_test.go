package chain_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/decide/planner/chain"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// draw draws a problem of few layers, in which stages with many layers may hold little.
func draw(random *rand.Rand) *chain.Problem {
	layers := 3 + random.IntN(4)
	took := make([]timeline.Stage, layers)
	for i := range took {
		took[i] = timeline.Stage{Forward: 0.1 + random.Float64(),
			Backward: 0.1 + 2*random.Float64(), Tail: random.Float64(),
			Down: 2 * random.Float64(), Up: 2 * random.Float64(), Latency: random.Float64()}
	}
	room := layers + random.IntN(8)
	p := &chain.Problem{Layers: layers, Stages: 2 + random.IntN(2), Micro: 1 + random.IntN(4)}
	p.Stage = func(_, i, j int) *chain.Stage {
		x := &chain.Stage{Most: min(p.Micro, room/(j-i)-1)}
		x.Down, x.Up, x.Latency = took[j-1].Down, took[j-1].Up, took[j-1].Latency
		for _, l := range took[i:j] {
			x.Forward, x.Backward = x.Forward+l.Forward, x.Backward+l.Backward
			x.Tail += l.Tail
		}
		return x
	}
	return p
}

// seconds returns what a step of a plan takes: each pass, and each transfer, ends at the longest
// way to it. +Inf where it does not fit, or waits for itself.
func seconds(p *chain.Problem, starts, ahead []int) (last float64) {
	stages := make([]*chain.Stage, p.Stages)
	for s := range stages {
		to := p.Layers
		if s+1 < p.Stages {
			to = starts[s+1]
		}
		if stages[s] = p.Stage(s, starts[s], to); ahead[s] > stages[s].Most {
			return math.Inf(1)
		}
	}
	type pass struct {
		s, k int
		back bool
	}
	ends, deep := map[pass]float64{}, 0
	var end func(x pass) float64
	// sent returns when what a pass has made has come over a link, which takes so long.
	var sent func(x pass, seconds, latency float64) float64
	sent = func(x pass, seconds, latency float64) float64 {
		if x.k < 0 {
			return math.Inf(-1)
		}
		if deep++; deep > 1000 {
			return math.Inf(1)
		}
		defer func() { deep-- }()
		free := sent(pass{x.s, x.k - 1, x.back}, seconds, latency) - min(latency, seconds)
		return max(end(x), free) + seconds
	}
	end = func(x pass) float64 {
		if known, is := ends[x]; is || x.k < 0 {
			return known
		}
		if deep++; deep > 1000 {
			return math.Inf(1)
		}
		defer func() { deep-- }()
		c, n, a := stages[x.s], len(stages), ahead[x.s]
		var before pass // on the same stage
		begin, length := 0.0, c.Forward
		switch {
		case x.back:
			length = c.Backward
			if before = (pass{x.s, x.k + a - 1, false}); x.k+a > p.Micro {
				before = pass{x.s, x.k - 1, true}
			}
			if begin = end(pass{x.s, x.k, false}); x.s+1 < n {
				begin = sent(pass{x.s + 1, x.k, true}, c.Up, c.Latency)
			}
		default:
			if before = (pass{x.s, x.k - 1, false}); x.k >= a {
				before = pass{x.s, x.k - a, true}
			}
			if x.s > 0 {
				c := stages[x.s-1]
				begin = sent(pass{x.s - 1, x.k, false}, c.Down, c.Latency)
			}
		}
		ends[x] = max(begin, end(before)) + length
		return ends[x]
	}
	for s := range stages {
		last = max(last, end(pass{s, p.Micro - 1, true})+stages[s].Tail)
	}
	return last
}

// best returns the seconds of the best of all plans.
func best(p *chain.Problem) float64 {
	least := math.Inf(1)
	var walk func(starts, ahead []int)
	walk = func(starts, ahead []int) {
		s := len(starts)
		if s == p.Stages {
			least = min(least, seconds(p, starts, ahead))
			return
		}
		from, to, most := 0, 1, p.Micro
		if s > 0 {
			from, to, most = starts[s-1]+1, p.Layers-(p.Stages-1-s), ahead[s-1]
		}
		for i := from; i < to; i++ {
			for held := 1; held <= most; held++ {
				walk(append(starts[:s:s], i), append(ahead[:s:s], held))
			}
		}
	}
	walk(nil, nil)
	return least
}

// TestBest compares what is found with the best of all plans of small problems: where the plan that
// the search begins with fits, it finds it, says what it takes, and finds the same once more.
func TestBest(t *testing.T) {
	const seed = 1
	random, began := rand.New(rand.NewPCG(seed, 2)), 0
	for range 100 {
		p := draw(random)
		var found [2]chain.Plan
		for i := range found {
			s := chain.NewSearch(p, seed)
			starts := make([]int, p.Stages)
			for j := range starts {
				starts[j] = j * p.Layers / p.Stages
			}
			s.Anneal(s.Start(starts), 30_000, 0.1)
			found[i] = s.Best
		}
		if d := cmp.Diff(found[0], found[1]); d != "" {
			t.Error(d)
		}
		got, want := found[0], best(p)
		if math.IsInf(got.Seconds, 1) {
			continue // the search has no plan to begin with
		}
		began++
		if x := seconds(p, got.Starts, got.Ahead); math.Abs(got.Seconds-x) > 1e-9*x {
			t.Errorf("seed %d: %v takes %v", seed, got, x)
		}
		if math.Abs(got.Seconds-want) > 1e-9*want {
			t.Errorf("seed %d: %v, and the best of all takes %v", seed, got, want)
		}
	}
	if began < 50 {
		t.Errorf("%d problems of 100 have a plan to begin with", began)
	}
}
