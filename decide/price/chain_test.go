package price_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/decide/price"
)

// stage returns a stage of which starting a replica costs so much, and running one 1.
func stage(start float64) price.Stage {
	return price.Stage{Name: "s", Share: 1, Each: 2, Room: 1, Run: 1, Start: start}
}

// drawNeeds draws what a stage needs, with quiet times between.
func drawNeeds(rng *rand.Rand, n, most int) (needs [][]int) {
	for len(needs) < n {
		need := rng.IntN(most + 1)
		for range 1 + rng.IntN(6) {
			needs = append(needs, []int{need})
		}
		if rng.IntN(3) == 0 {
			for range rng.IntN(15) {
				needs = append(needs, []int{0})
			}
		}
	}
	return needs[:n]
}

// best returns what a stage costs at the least, by trying every number of replicas in each slot of
// time.
func best(s price.Stage, needs [][]int, most int) float64 {
	costs := make([]float64, most+1)
	for i := range costs {
		costs[i] = math.Inf(1)
	}
	costs[0] = 0
	for _, need := range needs {
		next := make([]float64, most+1)
		for after := range next {
			next[after] = math.Inf(1)
			if after < need[0] {
				continue
			}
			for before, cost := range costs {
				next[after] = min(next[after], cost+s.Run*float64(after)+
					s.Start*float64(max(0, after-before)))
			}
		}
		costs = next
	}
	return slices.Min(costs)
}

// What is said to be cheapest is what trying everything finds. Keep costs at most twice that on
// whatever comes, the regularised step little more on average, and the guarded learner at most 2 %
// more than the step. None has fewer replicas than are needed.
func TestChainAgainstOptimum(t *testing.T) {
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		s := stage(1 + 30*rng.Float64())
		stages, needs := []price.Stage{s}, drawNeeds(rng, 150, 4)
		optimum := best(s, needs, 4)
		if c := price.Cheapest(stages, needs); math.Abs(c-optimum) > 1e-6*optimum {
			t.Fatalf("start %v: cheapest %v, optimum %v: %v", s.Start, c, optimum, needs)
		}
		safe, _ := price.NewChain(stages, 0)
		stepCost, _, err := price.Cost(stages, safe, needs)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := price.NewChain(stages, 0)
		learned := price.NewLearned(stages, rng.Uint64())
		guard := &price.Guard{Stages: stages, Safe: again, Bold: learned.Propose, Part: 0.02}
		for name, c := range map[string]struct {
			scaler price.Scaler
			most   float64
		}{"keep": {&price.Keep{Stages: stages}, 2 * optimum},
			"guard": {guard, 1.02 * stepCost}} {
			cost, chosen, err := price.Cost(stages, c.scaler, needs)
			if err != nil || cost > c.most*(1+1e-9) {
				t.Fatalf("%s: %v of at most %v, start %v: %v, %v", name, cost, c.most, s.Start,
					needs, err)
			}
			for i, whole := range chosen {
				if whole[0] < needs[i][0] {
					t.Fatalf("%s has %d of %d replicas", name, whole[0], needs[i][0])
				}
			}
		}
		if stepCost < optimum*(1-1e-9) || stepCost > 3*optimum {
			t.Fatalf("the step costs %v, the optimum %v", stepCost, optimum)
		}
	}
}

// A guard stays within its bound also with the worst of proposals.
func TestGuardOfNonsense(t *testing.T) {
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		stages, needs := []price.Stage{stage(10)}, drawNeeds(rng, 300, 5)
		safe, _ := price.NewChain(stages, 0)
		alone, _, _ := price.Cost(stages, safe, needs)
		safe, _ = price.NewChain(stages, 0)
		guard := &price.Guard{Stages: stages, Safe: safe, Part: 0.02,
			Bold: func(need, _ []int) []int { return []int{need[0] + rng.IntN(9)} }}
		if cost, _, _ := price.Cost(stages, guard, needs); cost > 1.02*alone*(1+1e-9) {
			t.Fatalf("%v, and %v without proposals", cost, alone)
		}
	}
}

// A guard follows no proposal that the hosts have no room for, however little it costs.
func TestGuardCapacity(t *testing.T) {
	const room = 4
	stages := []price.Stage{stage(10)}
	safe, err := price.NewChain(stages, room)
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []int{room, 1} {
		guard := &price.Guard{Stages: stages, Capacity: room, Safe: safe, Part: 100,
			Bold: func(need, _ []int) []int { return []int{need[0] + more} }}
		for need := range room {
			whole, err := guard.Step([]int{need})
			if err != nil || whole[0] > room {
				t.Fatalf("%d more than %d: %v, %v", more, need, whole, err)
			}
		}
		if n := guard.Followed(); (more == 1) != (n == room) {
			t.Errorf("%d of %d proposals of %d more were followed", n, room, more)
		}
	}
}

// Alone, a stage has the solution in closed form. With too little room replicas that are not needed
// are stopped, so that the rest is shared; what is needed and has no room is an error.
func TestChainCapacity(t *testing.T) {
	stages := []price.Stage{stage(20), stage(5)}
	c, err := price.NewChain(stages, 10)
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := c.Step([]int{6, 4}); err != nil || !slices.Equal(whole, []int{6, 4}) {
		t.Fatal(whole, err)
	}
	if whole, err := c.Step([]int{1, 1}); err != nil || whole[0] < whole[1] {
		t.Fatal(whole, err)
	}
	for i, start := range []float64{20, 5} {
		before := []float64{6, 4}[i]
		want := (before+0.1)*math.Exp(-math.Log(11)/start) - 0.1
		if got := c.Parts()[i]; math.Abs(got-want) > 1e-9 {
			t.Errorf("stage %d: %v parts, not %v", i, got, want)
		}
	}
	if whole, err := c.Step([]int{1, 8}); err != nil || whole[0]+whole[1] > 10 || whole[1] < 8 {
		t.Fatal(whole, err)
	}
	if room := c.Parts()[0] + c.Parts()[1]; math.Abs(room-10) > 1e-6 {
		t.Errorf("the solution takes %v of 10", room)
	}
	if _, err := c.Step([]int{6, 5}); err == nil {
		t.Error("11 replicas in 10")
	}
	if _, err := price.NewChain([]price.Stage{{}}, 0); err == nil {
		t.Error("a stage of nothing")
	}
	if got := (price.Stage{Share: 0.5, Each: 10}).Need(41); got != 3 {
		t.Error(got)
	}
}
