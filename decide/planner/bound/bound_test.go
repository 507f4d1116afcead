package bound_test

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/bound"
)

// instances returns how many random chains a test looks at: some, or what PLAN_CASES says.
func instances(some int) int {
	if n, err := strconv.Atoi(os.Getenv("PLAN_CASES")); err == nil {
		return n
	}
	return some
}

// draw draws a chain, its stages and its micro-batches. Every other one has tails and lags.
func draw(random *rand.Rand) (c bound.Chain, stages, micro int) {
	layers := 2 + random.IntN(5)
	stages, micro = 1+random.IntN(min(3, layers)), 1+random.IntN(4)
	tails, lags := make([]float64, layers+1), make([][2]float64, layers)
	for i := range layers {
		c.Forward = append(c.Forward, 0.05+random.Float64())
		c.Backward = append(c.Backward, 0.05+2*random.Float64())
		tails[i+1] = tails[i] + random.Float64()
		lags[i] = [2]float64{0.3 * random.Float64(), 0.3 * random.Float64()}
	}
	if random.IntN(2) == 0 {
		c.Tail = func(i, j int) float64 { return tails[j] - tails[i] }
		c.Lag = func(i int) (forward, back float64) { return lags[i][0], lags[i][1] }
	}
	if random.IntN(2) == 0 {
		room := 1 + random.IntN(3*layers) // for what a layer keeps of a micro-batch
		c.Held = func(i, j int) int { return room / (j - i) }
	}
	return c, stages, micro
}

// prove raises the bound of a chain as far as it goes, from a plan that takes so long.
func prove(c bound.Chain, stages, micro int, most float64) *bound.Prover {
	p := bound.NewProver(c, stages, micro, most)
	for p.Seconds < p.Ceiling*(1-1e-9) {
		p.Raise(p.Seconds+0.3*(p.Ceiling-p.Seconds)+1e-9*most, math.MaxInt)
	}
	return p
}

// TestBruteForce compares bounds with the best of all cuts and all orders of small chains: they are
// never above it, and what is proved by refuting reaches nearly all of it.
func TestBruteForce(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 2))
	var terms, proved, worst, fit float64
	cases := instances(150)
	for range cases {
		c, stages, micro := draw(random)
		best := bestOfAll(c, stages, micro)
		least, starts := bound.Cuts(c, stages, micro)
		if math.IsInf(best, 1) && math.IsInf(least, 1) {
			continue // it fits into no memory
		}
		if len(starts) != stages-1 {
			t.Fatalf("%d cuts for %d stages", len(starts), stages)
		}
		if least > best*(1+1e-9) {
			t.Errorf("seed %d: %+v, %d stages, %d micro-batches: Cuts says %v, a plan takes %v",
				seed, c, stages, micro, least, best)
		}
		for _, factor := range []float64{1, 1.05, 1.3} { // how good the plan is that is known
			p := prove(c, stages, micro, best*factor)
			if p.Seconds > best*(1+1e-9) {
				t.Errorf("seed %d: %+v, %d stages, %d micro-batches: %v is proved, a plan takes %v",
					seed, c, stages, micro, p.Seconds, best)
			}
			if factor > 1 {
				proved, worst = proved+best/p.Seconds-1, max(worst, best/p.Seconds-1)
			}
		}
		terms, fit = terms+best/least-1, fit+1
	}
	terms, proved = terms/fit, proved/(2*fit)
	t.Logf("the best plan is %.2f %% above the terms, and %.4f %% above what is proved, %.2f %% "+
		"at most", 100*terms, 100*proved, 100*worst)
	if terms > 0.1 || proved > 1e-4 {
		t.Error("the bounds say little")
	}
}

// TestCuts compares Cuts with the least over all cuts of what the three terms say of each, without
// lags, and Count with how many are below a time.
func TestCuts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c, stages, micro := draw(random)
		c.Lag, c.Held = nil, nil
		want, all := math.Inf(1), []float64(nil)
		eachCut(len(c.Forward), stages, func(cuts []int) {
			all = append(all, threeTerms(c, cuts, micro))
			want = min(want, all[len(all)-1])
		})
		limit, below := 1.1*want, 0.0
		for _, terms := range all {
			if terms < limit {
				below++
			}
		}
		if got := bound.Count(c, stages, micro, limit); got != below {
			t.Errorf("%v of %d cuts are below %v, want %v", got, len(all), limit, below)
		}
		got, starts := bound.Cuts(c, stages, micro)
		reached := threeTerms(c, append(append([]int{0}, starts...), len(c.Forward)), micro)
		if math.Abs(got-want) > 1e-9*want || reached > want*(1+1e-9) {
			t.Errorf("%+v, %d stages, %d micro-batches: %v at %v, which is at %v; want %v", c,
				stages, micro, got, starts, reached, want)
		}
	}
}

// TestTooFewLayers has no bound for more stages than layers.
func TestTooFewLayers(t *testing.T) {
	c := bound.Chain{Forward: []float64{1}, Backward: []float64{1}}
	if seconds, _ := bound.Cuts(c, 2, 1); !math.IsInf(seconds, 1) {
		t.Errorf("two stages of one layer take %v s", seconds)
	}
}

// TestManyMicro ends amid a stage of very many micro-batches, whose passes it would compare with
// each other, when its work is spent.
func TestManyMicro(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	c := bound.Chain{}
	for range 60 {
		c.Forward = append(c.Forward, 1+random.Float64())
		c.Backward = append(c.Backward, 1+2*random.Float64())
	}
	const micro, limit = 10_000, 10_000_000
	p := bound.NewProver(c, 6, micro, math.MaxFloat64)
	if proved, open := p.Raise(p.Seconds*1.01, limit); proved || open != nil {
		t.Errorf("it is said that %v, and that %v is left open", proved, open)
	}
	if p.Work() > 2*limit {
		t.Errorf("%d operations, of %d", p.Work(), limit)
	}
}

// TestWork stops where work has come above a limit, and the bound stays as it was.
func TestWork(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var c bound.Chain
	for range 200 {
		c.Forward = append(c.Forward, 0.5+random.Float64())
		c.Backward = append(c.Backward, 0.5+random.Float64())
	}
	p := bound.NewProver(c, 6, 6, 1e9)
	before := p.Seconds
	proved, open := p.Raise(before*1.1, 100_000)
	if proved || open != nil || p.Seconds != before || p.Work() < 100_000 ||
		p.Work() > 1_000_000 {
		t.Errorf("proved %v, open %v, %v s after %v, work %d", proved, open, p.Seconds, before,
			p.Work())
	}
	again := func() { p.Raise(before*1.1, p.Work()+100_000) }
	if allocs := testing.AllocsPerRun(3, again); allocs > 0 {
		t.Errorf("%v allocations", allocs)
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

// sum adds up the numbers of a list from i to j, without j.
func sum(list []float64, i, j int) (s float64) {
	for _, x := range list[i:j] {
		s += x
	}
	return s
}

// threeTerms returns what the three terms say of a cut of a chain without lags.
func threeTerms(c bound.Chain, cuts []int, micro int) (most float64) {
	n, m := len(c.Forward), float64(micro)
	for s, i := range cuts[:len(cuts)-1] {
		j := cuts[s+1]
		f, b := sum(c.Forward, i, j), sum(c.Backward, i, j)
		head, back := sum(c.Forward, 0, i), sum(c.Backward, 0, i)
		behind := sum(c.Forward, j, n) + sum(c.Backward, j, n)
		tail := 0.0
		if c.Tail != nil {
			tail = c.Tail(i, j)
		}
		most = max(most, head+float64(m*(f+b))+max(back, tail), head+float64(m*f)+behind+b+back,
			head+f+behind+float64(m*b)+back)
	}
	return most
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

// bestOfAll returns the seconds of the best of all cuts and all orders of a chain.
func bestOfAll(c bound.Chain, stages, micro int) float64 {
	best := math.Inf(1)
	eachCut(len(c.Forward), stages, func(cuts []int) {
		best = min(best, bestOrder(c, cuts, micro))
	})
	return best
}

// bestOrder returns the seconds of the best of all orders of the stages of one cut; orders in which
// stages wait for each other for ever are none.
func bestOrder(c bound.Chain, cuts []int, micro int) float64 {
	all, best := words(micro), math.Inf(1)
	y := newPlay(c, cuts, micro)
	var walk func(s int)
	walk = func(s int) {
		if s == len(y.words) {
			best = min(best, y.seconds())
			return
		}
		for _, word := range all {
			y.words[s] = word
			walk(s + 1)
		}
	}
	walk(0)
	return best
}

// A play is one cut of a chain, with an order of each stage.
type play struct {
	micro       int
	words       [][]bool
	took        [][2]float64   // by stage and direction
	lags        [][2]float64   // before each stage
	tails, free []float64      // by stage
	held        []int          // by stage, micro-batches at most
	ends        [2][][]float64 // by direction and stage, of the passes that were made
}

// newPlay returns a play without orders.
func newPlay(c bound.Chain, cuts []int, micro int) *play {
	y := &play{micro: micro}
	for s, i := range cuts[:len(cuts)-1] {
		j := cuts[s+1]
		y.took = append(y.took, [2]float64{sum(c.Forward, i, j), sum(c.Backward, i, j)})
		tail, lag, held := 0.0, [2]float64{}, micro
		if c.Held != nil {
			held = c.Held(i, j)
		}
		y.held = append(y.held, held)
		if c.Tail != nil {
			tail = c.Tail(i, j)
		}
		if c.Lag != nil && s > 0 {
			lag[0], lag[1] = c.Lag(i)
		}
		y.tails, y.lags = append(y.tails, tail), append(y.lags, lag)
		y.free, y.words = append(y.free, 0), append(y.words, nil)
		for d := range y.ends {
			y.ends[d] = append(y.ends[d], nil)
		}
	}
	return y
}

// seconds plays a step in which each stage goes by its word; +Inf where they wait for each other
// for ever, or do not fit into memory.
func (y *play) seconds() (last float64) {
	for s, word := range y.words {
		held := 0
		for _, back := range word {
			if held++; back {
				held -= 2
			}
			if held > y.held[s] {
				return math.Inf(1)
			}
		}
	}
	for s := range y.free {
		y.free[s], y.ends[0][s], y.ends[1][s] = 0, y.ends[0][s][:0], y.ends[1][s][:0]
	}
	for moved := true; moved; {
		moved = false
		for s := range y.free {
			for y.step(s) {
				moved = true
			}
		}
	}
	for s, tail := range y.tails {
		if len(y.ends[1][s]) < y.micro {
			return math.Inf(1)
		}
		last = max(last, y.free[s]+tail)
	}
	return last
}

// step makes the next pass of a stage, and reports whether what it needs is there.
func (y *play) step(s int) bool {
	forward, back := len(y.ends[0][s]), len(y.ends[1][s])
	if back == y.micro {
		return false
	}
	direction, k, need, lag := 0, forward, []float64(nil), 0.0
	switch {
	case !y.words[s][forward+back] && s > 0:
		need, lag = y.ends[0][s-1], y.lags[s][0]
	case !y.words[s][forward+back]:
		need = make([]float64, y.micro)
	case s == len(y.free)-1:
		direction, k, need = 1, back, y.ends[0][s]
	default:
		direction, k, need, lag = 1, back, y.ends[1][s+1], y.lags[s+1][1]
	}
	if k >= len(need) {
		return false
	}
	y.free[s] = max(y.free[s], need[k]+lag) + y.took[s][direction]
	y.ends[direction][s] = append(y.ends[direction][s], y.free[s])
	return true
}
