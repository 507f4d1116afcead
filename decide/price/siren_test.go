package price_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/price"
)

// drawEpochs draws epochs that all have the same ways: more slots are faster, and larger batches
// the later.
func drawEpochs(rng *rand.Rand, n, ways int) (epochs [][]price.Way) {
	for i := range n {
		var list []price.Way
		for k := range ways {
			slots, batch := 1<<(k%3), 8*math.Pow(4, float64(k/3))
			seconds := (10 + 10*rng.Float64()) / math.Pow(float64(slots), 0.8) *
				(0.3 + batch/8/float64(1+i*3))
			list = append(list, price.Way{Slots: slots, Batch: batch, Seconds: seconds,
				Cost: seconds * float64(slots)})
		}
		epochs = append(epochs, list)
	}
	return epochs
}

// soonest returns the least time within a budget by trying every choice; +Inf if there is none.
func soonest(epochs [][]price.Way, budget float64) float64 {
	if budget < 0 {
		return math.Inf(1)
	}
	if len(epochs) == 0 {
		return 0
	}
	best := math.Inf(1)
	for _, w := range epochs[0] {
		best = min(best, w.Seconds+soonest(epochs[1:], budget-w.Cost))
	}
	return best
}

// On small jobs the plan is between the optimum and the best ways that stay, and the bound is never
// above the optimum.
func TestPlanAgainstAllChoices(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	lost := 0.0
	for range 300 {
		epochs := drawEpochs(rng, 1+rng.IntN(4), 6)
		cheap, err := price.WithinBudget(epochs, 0)
		if err == nil || !strings.Contains(err.Error(), "the cheapest ways cost") {
			t.Fatalf("for nothing: %v", err)
		}
		budget := cheap.Cost * (1 + 2*rng.Float64())
		plan, err := price.WithinBudget(epochs, budget)
		if err != nil {
			t.Fatal(err)
		}
		seconds, cost := 0.0, 0.0
		for _, w := range plan.Ways {
			seconds, cost = seconds+w.Seconds, cost+w.Cost
		}
		best := soonest(epochs, budget*(1+1e-12))
		if math.Abs(seconds-plan.Seconds) > 1e-9 || math.Abs(cost-plan.Cost) > 1e-9 ||
			cost > budget*(1+1e-12) || len(plan.Ways) != len(epochs) {
			t.Fatalf("the sums of %+v within %v are %v and %v", plan, budget, seconds, cost)
		}
		if plan.Bound > best*(1+1e-9) || plan.Seconds < best*(1-1e-9) {
			t.Fatalf("%v is not from the bound %v to the plan %v", best, plan.Bound, plan.Seconds)
		}
		if fixed, ok := price.Fixed(epochs, budget); ok && fixed.Seconds < plan.Seconds-1e-9 {
			t.Fatalf("the fixed way takes %v, the plan %v", fixed.Seconds, plan.Seconds)
		}
		lost += plan.Seconds/best - 1
	}
	if lost /= 300; lost > 0.02 {
		t.Errorf("plans of at most four epochs are %.3g above the optimum in the mean", lost)
	}
}

// With many epochs the plan is at most a hundredth above its own bound.
func TestPlanOfManyEpochs(t *testing.T) {
	epochs := drawEpochs(rand.New(rand.NewPCG(3, 4)), 100, 9)
	cheap, _ := price.WithinBudget(epochs, 0)
	for _, budget := range []float64{1, 1.1, 1.5, 2, 100} {
		plan, err := price.WithinBudget(epochs, budget*cheap.Cost)
		if err != nil || plan.Seconds > 1.01*plan.Bound {
			t.Errorf("%v times the least: %v above %v, %v", budget, plan.Seconds, plan.Bound, err)
		}
	}
	if _, err := price.WithinBudget([][]price.Way{{}}, 1); err == nil {
		t.Error("an epoch without ways can be run")
	}
}

// The policy learns: it comes nearer to the twin than before. Behind its gate it is never more than
// 2 % worse than the twin in runs that it has not seen, whether it acts or not.
func TestSirenLearns(t *testing.T) {
	epochs := drawEpochs(rand.New(rand.NewPCG(5, 6)), 12, 9)
	cheap, _ := price.WithinBudget(epochs, 0)
	b := &price.Budgeted{Epochs: epochs, Noise: make([]float64, 12), Budget: 1.5 * cheap.Cost,
		Off: 0.1, OffEpoch: 0.05}
	before, after := price.TrainSiren(b, 0, 1), price.TrainSiren(b, 400, 1)
	t.Logf("alone: %.3g times the twin untrained, %.3g trained; guarded %.3g and %.3g",
		before.Alone, after.Alone, before.Worst, after.Worst)
	if after.Alone > 0.7*before.Alone {
		t.Errorf("training brings it from %v only to %v", before.Alone, after.Alone)
	}
	for i, s := range []*price.Siren{before, after} {
		if s.Acts != (s.Worst <= 1.02) {
			t.Errorf("%d acts: %v, at %v in the worst run", i, s.Acts, s.Worst)
		}
		for seed := range uint64(20) {
			x := b.Score(b.Play(s.Policy(), 1000+seed)) / b.Score(b.Play(price.ByTwin, 1000+seed))
			if x > 1.02 {
				t.Errorf("run %d: %v times the twin", seed, x)
			}
		}
	}
}
