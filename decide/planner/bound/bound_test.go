package bound_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/bound"
)

// TestBruteForce compares the bound with the best of all cuts and all orders of some small chains:
// it is never above it, and it is what the three terms say for some cut.
func TestBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var gap, worst float64
	const cases = 150
	for range cases {
		layers, stages, micro := 2+random.IntN(4), 1+random.IntN(3), 1+random.IntN(3)
		stages = min(stages, layers)
		c := bound.Chain{}
		tails := make([]float64, layers+1)
		for i := range layers {
			c.Forward = append(c.Forward, 0.1+random.Float64())
			c.Backward = append(c.Backward, 0.1+2*random.Float64())
			tails[i+1] = tails[i] + random.Float64()
		}
		c.Tail = func(i, j int) float64 { return tails[j] - tails[i] }
		least, starts := bound.Cuts(c, stages, micro)
		if len(starts) != stages-1 {
			t.Fatalf("%d cuts for %d stages", len(starts), stages)
		}
		best := math.Inf(1)
		eachCut(layers, stages, func(cuts []int) {
			best = min(best, bestOrder(c, cuts, micro))
		})
		if least > best*(1+1e-9) {
			t.Errorf("%+v, %d stages, %d micro-batches: the bound is %v, a plan takes %v", c,
				stages, micro, least, best)
		}
		gap, worst = gap+best/least-1, max(worst, best/least-1)
	}
	t.Logf("the best plan is %.2f %% above the bound, and %.2f %% at most", 100*gap/cases,
		100*worst)
	if gap/cases > 0.1 {
		t.Errorf("the bound says little: it is %v of the best below it in the mean", gap/cases)
	}
}

// TestTooFewLayers has no bound for more stages than layers.
func TestTooFewLayers(t *testing.T) {
	c := bound.Chain{Forward: []float64{1}, Backward: []float64{1}}
	if seconds, _ := bound.Cuts(c, 2, 1); !math.IsInf(seconds, 1) {
		t.Errorf("two stages of one layer take %v s", seconds)
	}
}

// eachCut calls yield with the bounds of each way to cut layers into stages that all have some: the
// first of each stage, and the number of layers.
func eachCut(layers, stages int, yield func([]int)) {
	var walk func(cuts []int)
	walk = func(cuts []int) {
		switch last := cuts[len(cuts)-1]; {
		case len(cuts) == stages:
			yield(append(cuts[:stages:stages], layers))
		default:
			for next := last + 1; next < layers; next++ {
				walk(append(cuts[:len(cuts):len(cuts)], next))
			}
		}
	}
	walk([]int{0})
}

// words are the orders of so many forward passes, each before its backward pass: true = back.
func words(micro int) (list [][]bool) {
	var walk func(word []bool, forward, back int)
	walk = func(word []bool, forward, back int) {
		if back == micro {
			list = append(list, word)
			return
		}
		if forward < micro {
			walk(append(word[:len(word):len(word)], false), forward+1, back)
		}
		if back < forward {
			walk(append(word[:len(word):len(word)], true), forward, back+1)
		}
	}
	walk(nil, 0, 0)
	return list
}

// bestOrder returns the seconds of the best of all orders of the stages of one cut; orders in which
// stages wait for each other for ever are none.
func bestOrder(c bound.Chain, cuts []int, micro int) float64 {
	stages, all := len(cuts)-1, words(micro)
	best, chosen := math.Inf(1), make([][]bool, stages)
	var walk func(s int)
	walk = func(s int) {
		if s == stages {
			best = min(best, play(c, cuts, micro, chosen))
			return
		}
		for _, word := range all {
			chosen[s] = word
			walk(s + 1)
		}
	}
	walk(0)
	return best
}

// play returns the seconds of a step in which each stage goes by its word; +Inf where they wait for
// each other for ever.
func play(c bound.Chain, cuts []int, micro int, words [][]bool) float64 {
	stages := len(cuts) - 1
	done := map[string]float64{}
	at, free, counts := make([]int, stages), make([]float64, stages), make([][2]int, stages)
	key := func(s, k int, back bool) string { return fmt.Sprint(s, k, back) }
	for moved := true; moved; {
		moved = false
		for s := range stages {
			for at[s] < 2*micro {
				back := words[s][at[s]]
				direction := 0
				if back {
					direction = 1
				}
				k := counts[s][direction]
				need, is := 0.0, true
				switch {
				case back && s == stages-1:
					need, is = done[key(s, k, false)]
				case back:
					need, is = done[key(s+1, k, true)]
				case s > 0:
					need, is = done[key(s-1, k, false)]
				}
				if _, there := done[key(s, k, false)]; back && !there || !is {
					break
				}
				seconds := 0.0
				for l := cuts[s]; l < cuts[s+1]; l++ {
					if back {
						seconds += c.Backward[l]
					} else {
						seconds += c.Forward[l]
					}
				}
				free[s] = max(free[s], need) + seconds
				done[key(s, k, back)] = free[s]
				counts[s][direction]++
				at[s]++
				moved = true
			}
		}
	}
	last := 0.0
	for s := range stages {
		if at[s] < 2*micro {
			return math.Inf(1)
		}
		last = max(last, free[s]+c.Tail(cuts[s], cuts[s+1]))
	}
	return last
}
