package spp_test

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/spp"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// cases returns how many random cases a test has: a few, or as many as make plan-oracles asks for.
func cases(t *testing.T, few int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("PLAN_CASES"))
	if err != nil {
		return few
	}
	return n
}

// rates draws the links between some devices, symmetric.
func rates(random *rand.Rand, n int) func(a, b int) float64 {
	rate := make([][]float64, n)
	for i := range rate {
		rate[i] = make([]float64, n)
		for j := range i {
			rate[i][j] = float64(1 + random.IntN(20))
			rate[j][i] = rate[i][j]
		}
	}
	return func(a, b int) float64 { return rate[a][b] }
}

// crossing returns the sum of the rates between the devices of a mask and the others.
func crossing(n, mask int, rate func(a, b int) float64) (sum float64) {
	for a := range n {
		for b := range n {
			if mask>>a&1 == 1 && mask>>b&1 == 0 {
				sum += rate(a, b)
			}
		}
	}
	return sum
}

// TestMinCut compares the cuts of random graphs with the best of all.
func TestMinCut(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range cases(t, 300) {
		n := 2 + random.IntN(6)
		rate, all := rates(random, n), make([]int, n)
		for i := range all {
			all[i] = i
		}
		best := math.Inf(1)
		for mask := 1; mask < 1<<n-1; mask++ {
			best = min(best, crossing(n, mask, rate))
		}
		first, second, least := spp.MinCut(all, rate)
		mask := 0
		for _, d := range first {
			mask |= 1 << d
		}
		if least != best || crossing(n, mask, rate) != best || len(first)+len(second) != n {
			t.Errorf("%v and %v: %v, said %v; the least is %v", first, second,
				crossing(n, mask, rate), least, best)
		}
	}
}

// TestOrder puts devices of racks, whose links are slow between the racks, into a row in which a
// rack is together.
func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for range 50 {
		racks, each := 2+random.IntN(2), 2+random.IntN(3)
		rack := make([]int, racks*each)
		for i := range rack {
			rack[i] = i % racks
		}
		random.Shuffle(len(rack), func(i, j int) { rack[i], rack[j] = rack[j], rack[i] })
		row := spp.Order(len(rack), func(a, b int) float64 {
			if rack[a] == rack[b] {
				return 100
			}
			return 1
		})
		changes := 0
		for i := 1; i < len(row); i++ {
			if rack[row[i]] != rack[row[i-1]] {
				changes++
			}
		}
		if sorted := slices.Sorted(slices.Values(row)); changes != racks-1 ||
			len(slices.Compact(sorted)) != len(rack) {
			t.Errorf("racks %v: the row %v goes %d times to another", rack, row, changes)
		}
	}
}

// problem draws layers, devices and links. A third have no layer whose tail is long, a third no
// transfers.
func problem(random *rand.Rand, layers, devices int) *spp.Problem {
	p := &spp.Problem{Devices: devices, Micro: 1 + random.IntN(6)}
	out, params := make([]float64, layers), make([]float64, layers+1)
	slow, heavy := float64(random.IntN(3)), float64(random.IntN(3))
	for i := range layers {
		p.Seconds = append(p.Seconds, float64(random.IntN(12)))
		out[i] = slow * random.Float64()
		params[i+1] = params[i] + float64(heavy*random.Float64()*10)
	}
	link := make([]float64, devices)
	for i := range link {
		link[i] = 1 + float64(random.IntN(4))
	}
	most := 2 + random.IntN(layers) // layers of a stage that fit into memory
	p.Transfer = func(layer, a, b, c int) float64 {
		return out[layer-1] * slices.Max(link[a:c]) / float64(min(b-a, c-b))
	}
	p.Tail = func(i, j, a, b int) float64 {
		if j-i > most {
			return math.Inf(1)
		}
		r := float64(b - a)
		return (params[j] - params[i]) * slices.Max(link[a:b]) * (r - 1) / r
	}
	return p
}

// eachPlan calls yield with all plans of a problem.
func eachPlan(p *spp.Problem, yield func(starts, places []int)) {
	var walk func(starts, places []int)
	walk = func(starts, places []int) {
		yield(starts, places)
		for l := starts[len(starts)-1] + 1; l < len(p.Seconds); l++ {
			for d := places[len(places)-1] + 1; d < p.Devices; d++ {
				walk(append(slices.Clone(starts), l), append(slices.Clone(places), d))
			}
		}
	}
	walk([]int{0}, []int{0})
}

// judged returns the slowest of a plan's stages and transfers, and the longest tail.
func judged(p *spp.Problem, starts, places []int) (slowest, tail float64) {
	for s := range starts {
		to, end := len(p.Seconds), p.Devices
		if s+1 < len(starts) {
			to, end = starts[s+1], places[s+1]
		}
		sum := 0.0
		for _, x := range p.Seconds[starts[s]:to] {
			sum += x
		}
		slowest = max(slowest, sum/float64(end-places[s]))
		if s > 0 {
			slowest = max(slowest, p.Transfer(starts[s], places[s-1], places[s], end))
		}
		tail = max(tail, p.Tail(starts[s], to, places[s], end))
	}
	return slowest, tail
}

// TestPartition compares plans with the best of all, for each number of stages: all cuts, and all
// numbers of replicas.
func TestPartition(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	for i := range cases(t, 400) {
		p := problem(random, 1+random.IntN(6), 1+random.IntN(6))
		best := map[int]float64{}
		eachPlan(p, func(starts, places []int) {
			slowest, tail := judged(p, starts, places)
			plan := spp.Plan{Starts: starts, Slowest: slowest, Tail: tail}
			if g := plan.Guarantee(p.Micro); !math.IsInf(g, 1) {
				if old, is := best[len(starts)]; !is || g < old {
					best[len(starts)] = g
				}
			}
		})
		for stages := 1; stages <= 7; stages++ {
			got := spp.Partition(p, stages, math.Inf(1))
			want, is := best[stages]
			if (got != nil) != is {
				t.Fatalf("case %d: %d stages: %+v, and the best has %v", i, stages, got, want)
			}
			if !is {
				continue
			}
			if below := spp.Partition(p, stages, got.Slowest); below != nil &&
				below.Slowest >= got.Slowest {
				t.Errorf("case %d: %+v is not below %v", i, below, got.Slowest)
			}
			slowest, tail := judged(p, got.Starts, got.Places)
			if math.Abs(slowest-got.Slowest) > 1e-9 || math.Abs(tail-got.Tail) > 1e-9 {
				t.Errorf("case %d: %+v takes %v and %v", i, got, slowest, tail)
			}
			if g := got.Guarantee(p.Micro); math.Abs(g-want) > 1e-9*want {
				t.Errorf("case %d: %d stages, %d micro-batches: %+v guarantees %v, the best of "+
					"all %v", i, stages, p.Micro, got, g, want)
			}
		}
	}
}

// orders calls yield with all orders of stages that take so many micro-batches.
func orders(stages, micro int, yield func([][]bool)) {
	var words [][]bool
	var word func(order []bool, forward, back int)
	word = func(order []bool, forward, back int) {
		if back == micro {
			words = append(words, order)
			return
		}
		if forward < micro {
			word(append(slices.Clone(order), false), forward+1, back)
		}
		if back < forward {
			word(append(slices.Clone(order), true), forward, back+1)
		}
	}
	word(nil, 0, 0)
	var walk func(list [][]bool)
	walk = func(list [][]bool) {
		if len(list) == stages {
			yield(list)
			return
		}
		for _, w := range words {
			walk(append(slices.Clone(list), w))
		}
	}
	walk(nil)
}

// TestSchedule compares list schedules with the best of all orders, which none beats, and the
// cyclic order with the time that it guarantees.
func TestSchedule(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	optimal, all := 0, 0
	for i := range cases(t, 200) {
		n, micro := 1+random.IntN(3), 1+random.IntN(3)
		stages, held := make([]timeline.Stage, n), make([]int, n)
		plan := spp.Plan{Starts: make([]int, n)}
		for s := range stages {
			x := &stages[s]
			x.Forward, x.Backward = float64(random.IntN(9)), float64(1+random.IntN(9))
			x.Tail = float64(random.IntN(4))
			if s+1 < n {
				x.Down, x.Up = float64(random.IntN(9)), float64(random.IntN(9))
			}
			plan.Slowest = max(plan.Slowest, x.Forward+x.Backward, x.Down+x.Up)
			plan.Tail = max(plan.Tail, x.Tail)
			held[s] = micro
		}
		best := math.Inf(1)
		orders(n, micro, func(list [][]bool) {
			for s := range stages {
				stages[s].Order = list[s]
			}
			if line, err := timeline.Run(stages, micro); err == nil {
				best = min(best, line.Seconds)
			}
		})
		list, seconds := spp.Schedule(stages, micro, held)
		for s := range stages {
			stages[s].Order, stages[s].Ahead = list[s], micro
		}
		line, err := timeline.Run(stages, micro)
		if err != nil {
			t.Fatalf("case %d: %v", i, err)
		}
		if err := timeline.Check(stages, micro, line); err != nil {
			t.Errorf("case %d: %v", i, err)
		}
		// A link of the timeline carries any number of micro-batches, one of the schedule one.
		if line.Seconds > seconds || line.Seconds < best {
			t.Errorf("case %d: the list schedule ends after %v, it is played in %v, and the best "+
				"order takes %v", i, seconds, line.Seconds, best)
		}
		if all++; line.Seconds == best {
			optimal++
		}
		for s, ahead := range spp.Cyclic(n, micro) {
			stages[s].Order, stages[s].Ahead = nil, ahead
		}
		if line, err = timeline.Run(stages, micro); err != nil {
			t.Fatalf("case %d: %v", i, err)
		}
		if line.Seconds > plan.Guarantee(micro) {
			t.Errorf("case %d: %+v of %d micro-batches takes %v, and %v is guaranteed", i, stages,
				micro, line.Seconds, plan.Guarantee(micro))
		}
	}
	t.Logf("%d of %d list schedules are the best order", optimal, all)
	if optimal < all*9/10 {
		t.Errorf("%d of %d list schedules are the best order", optimal, all)
	}
}

// TestGuarantee plays the cyclic order and the list schedule of many larger pipelines. Neither
// takes longer than is guaranteed.
func TestGuarantee(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	closest := 0.0
	for i := range cases(t, 1000) {
		n, micro := 1+random.IntN(8), 1+random.IntN(20)
		stages, held := make([]timeline.Stage, n), make([]int, n)
		plan := spp.Plan{Starts: make([]int, n)}
		for s := range stages {
			x := &stages[s]
			x.Forward, x.Backward, x.Tail = random.Float64(), random.Float64(), random.Float64()
			if s+1 < n {
				x.Down, x.Up = random.Float64(), random.Float64()
			}
			plan.Slowest = max(plan.Slowest, x.Forward+x.Backward, x.Down+x.Up)
			plan.Tail = max(plan.Tail, x.Tail)
			held[s] = micro
		}
		guaranteed := plan.Guarantee(micro)
		_, seconds := spp.Schedule(stages, micro, held)
		for s, ahead := range spp.Cyclic(n, micro) {
			stages[s].Ahead = ahead
		}
		line, err := timeline.Run(stages, micro)
		if err != nil {
			t.Fatal(err)
		}
		if most := guaranteed * (1 + 1e-12); line.Seconds > most || seconds > most {
			t.Errorf("case %d: %v and %v s, and %v are guaranteed", i, line.Seconds, seconds,
				guaranteed)
		}
		closest = max(closest, seconds/guaranteed)
	}
	t.Logf("the longest list schedule has %.0f %% of what is guaranteed", 100*closest)
}
