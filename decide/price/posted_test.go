package price_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/decide/price"
)

// smallBids draws a few jobs of a few hours, with rates of which more slots do less each.
func smallBids(rng *rand.Rand, n int) (bids []price.Bid) {
	for range n {
		b := price.Bid{Arrived: float64(rng.IntN(8)) / 2, Work: 0.5 + 2*rng.Float64(),
			Rates: []price.Rate{{1, 1}, {2, 1 + 0.9*rng.Float64()}}}
		b.Value = b.Work * (1 + 9*rng.Float64())
		b.Due = b.Arrived + b.Work + 2*rng.Float64()
		b.Late = b.Due + 0.1 + 2*rng.Float64()
		bids = append(bids, b)
	}
	return bids
}

// way is one of the ways to run a job, found without the package: slot-hours of each cell and what
// it is worth.
type way struct {
	taken [8]float64
	worth float64
}

// ways lists the ways to run a job in 8 cells of an hour, by stepping through the begins of cells.
func ways(b price.Bid) (list []way) {
	for _, r := range b.Rates {
		for _, start := range append([]float64{b.Arrived}, 1, 2, 3, 4, 5, 6, 7) {
			end := start + b.Work/r.Rate
			if start < b.Arrived || end > 8 || end >= b.Late {
				continue
			}
			w := way{worth: b.Value}
			if end > b.Due {
				w.worth *= 1 - (end-b.Due)/(b.Late-b.Due)
			}
			for i := range w.taken {
				w.taken[i] = float64(r.Slots) *
					max(0, min(end, float64(i+1))-max(start, float64(i)))
			}
			list = append(list, w)
		}
	}
	return list
}

// optimum returns the most that jobs can be worth together, by trying everything.
func optimum(bids []price.Bid, slots float64) float64 {
	var taken [8]float64
	var try func(i int) float64
	try = func(i int) float64 {
		if i == len(bids) {
			return 0
		}
		best := try(i + 1)
		for _, w := range ways(bids[i]) {
			before, fits := taken, true
			for k, x := range w.taken {
				taken[k] += x
				fits = fits && taken[k] <= slots+1e-9
			}
			if fits {
				best = max(best, w.worth+try(i+1))
			}
			taken = before
		}
		return best
	}
	return try(0)
}

// newPosted returns a seller of slots in 8 cells of an hour, counted as a second each.
func newPosted(t *testing.T, slots int) *price.Posted {
	p, err := price.NewPosted(price.Grid{Slots: slots, Cell: 1, Cells: 8}, 1, 10)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// In cases small enough to try everything, the bound is never below the optimum, and what is sold
// is never worth more. The bound is seldom far above.
func TestBoundAgainstOptimum(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var over []float64
	for range 60 {
		bids := smallBids(rng, 4)
		best, p, sold := optimum(bids, 2), newPosted(t, 2), 0.0
		for i := range bids {
			if o, _, ok := p.Sell(&bids[i]); ok {
				sold += o.Worth
			}
		}
		bound := p.Bound(bids, 100)
		if bound < best*(1-1e-9) || sold > best*(1+1e-9) {
			t.Fatalf("sold %v, optimum %v, bound %v: %+v", sold, best, bound, bids)
		}
		over = append(over, bound/best)
	}
	if mean := sum(over) / float64(len(over)); mean > 1.15 {
		t.Errorf("the bound is on average %.3f of the optimum", mean)
	}
}

// sum returns the sum of some numbers.
func sum(list []float64) (s float64) {
	for _, x := range list {
		s += x
	}
	return s
}

// No job gains by saying another value, whatever came before it.
func TestTruthIsBest(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		p := newPosted(t, 2)
		bids := smallBids(rng, 5)
		for i := range bids[:4] {
			p.Sell(&bids[i])
		}
		b := bids[4]
		truth := gain(p, b, b)
		for range 20 {
			said := b
			said.Value *= math.Exp(2 * rng.NormFloat64())
			said.Due = min(said.Late-0.05, said.Due+rng.NormFloat64())
			if got := gain(p, b, said); got > truth+1e-9 {
				t.Fatalf("%+v gains %v, and %v by saying %+v", b, truth, got, said)
			}
		}
	}
}

// gain returns what a job gains if it says that it is another one.
func gain(p *price.Posted, b, said price.Bid) float64 {
	o, cost, ok := p.Offer(&said)
	if !ok {
		return 0
	}
	worth := b.Value
	if o.End > b.Due {
		worth *= max(0, 1-(o.End-b.Due)/(b.Late-b.Due))
	}
	return worth - cost
}

// A slot-second costs the least while little of a cell is taken, and the most when all is. So the
// first job of the highest value gets the last slot, and nobody after it does.
func TestPricesRise(t *testing.T) {
	p := newPosted(t, 10)
	one := price.Bid{Work: 8, Rates: []price.Rate{{1, 1}}, Value: 80 - 1e-6, Due: 8, Late: 9}
	before := 0.0
	for i := range 10 {
		o, cost, ok := p.Sell(&one)
		if !ok || o.Start != 0 || o.End != 8 || cost < before {
			t.Fatalf("job %d: %+v for %v, after one for %v: %v", i, o, cost, before, ok)
		}
		if i == 0 && math.Abs(cost-8) > 1e-9 {
			t.Errorf("the first pays %v, not 8 slot-seconds at the lowest price", cost)
		}
		before = cost
	}
	if o, cost, ok := p.Sell(&one); ok {
		t.Errorf("the eleventh gets %+v for %v", o, cost)
	}
	cheap := one
	cheap.Value = 8.01
	if _, _, ok := newPosted(t, 10).Sell(&cheap); !ok {
		t.Error("who pays the lowest price gets nothing where nothing is taken")
	}
}

// Energy costs too: where it is dear a job runs at the slow speed, unless it is in a hurry.
func TestSpeeds(t *testing.T) {
	g := price.Grid{Slots: 2, Cell: 1, Cells: 8,
		Speeds: []price.Speed{{Factor: 1, Watts: 100}, {Factor: 0.5, Watts: 20}}}
	b := price.Bid{Work: 2, Rates: []price.Rate{{1, 1}}, Value: 20, Due: 6, Late: 7}
	for _, c := range []struct {
		joule, due float64
		speed      int
	}{{0, 6, 0}, {0.05, 6, 1}, {0.05, 3, 0}} {
		g.Joule, b.Due, b.Late = c.joule, c.due, c.due+0.5
		p, err := price.NewPosted(g, 1, 10)
		if err != nil {
			t.Fatal(err)
		}
		o, _, ok := p.Sell(&b)
		took := b.Work / g.Speeds[c.speed].Factor
		worth := b.Value - g.Speeds[c.speed].Watts*took*c.joule
		if !ok || o.Speed != c.speed || math.Abs(o.Worth-worth) > 1e-9 || o.End != took {
			t.Errorf("joule %v, due %v: %+v, %v", c.joule, c.due, o, ok)
		}
	}
}

// Jobs of a queue take what they ask for as soon as it is free, and a later one may start before.
func TestFirst(t *testing.T) {
	p := newPosted(t, 2)
	rates := []price.Rate{{1, 1}, {2, 2}}
	for i, c := range []struct {
		work, late float64
		asked      int
		start      float64
		ok         bool
	}{{2, 8, 1, 0, true}, {2, 8, 2, 2, true}, {1, 8, 1, 0, true}, {4, 2, 2, 0, false}} {
		b := price.Bid{Work: c.work, Rates: rates, Value: 10, Due: c.late - 1, Late: c.late}
		o, ok := p.FirstOption(&b, c.asked)
		if ok != c.ok || ok && (o.Start != c.start || o.Slots != c.asked) {
			t.Errorf("job %d: %+v, %v", i, o, ok)
		}
		if ok {
			p.Take(o)
		}
	}
}

// What makes no prices is refused, and rates of which nobody has anything are left out.
func TestPostedRefuses(t *testing.T) {
	g := price.Grid{Slots: 1, Cell: 1, Cells: 1}
	for _, c := range []struct {
		g         price.Grid
		low, high float64
	}{{g, 0, 1}, {g, 2, 2}, {g, math.NaN(), 2}, {price.Grid{Cell: 1, Cells: 1}, 1, 2},
		{price.Grid{Slots: 1, Cells: 1}, 1, 2}, {price.Grid{Slots: 1, Cell: 1}, 1, 2}} {
		if _, err := price.NewPosted(c.g, c.low, c.high); err == nil {
			t.Errorf("%+v", c)
		}
	}
	kept := price.Efficient([]price.Rate{{4, 3}, {1, 1}, {2, 1}, {8, 2.5}})
	if len(kept) != 2 || kept[0].Slots != 1 || kept[1].Slots != 4 {
		t.Error(kept)
	}
}
