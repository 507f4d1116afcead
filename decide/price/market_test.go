package price_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/price"
)

// One link is shared by the root of weight times bytes, and its price is what another byte a second
// would save.
func TestMarketOfOneLink(t *testing.T) {
	for _, weight := range []float64{1, 4} {
		buyers := []price.Buyer{{Weight: weight, Bytes: []float64{1e6}},
			{Weight: 1, Bytes: []float64{4e6}}}
		saved := func(bytes float64) float64 {
			s, err := price.Sell([]price.Link{{Bytes: bytes}}, buyers)
			if err != nil {
				t.Fatal(err)
			}
			return price.WeightedSum(buyers, s.Seconds)
		}
		s, err := price.Sell([]price.Link{{Bytes: 25e6}}, buyers)
		if err != nil || s.Residual > 1e-12 {
			t.Fatal(s, err)
		}
		root := math.Sqrt(weight)
		if x := 25e6 * root / (root + 2); math.Abs(s.Rates[0][0]/x-1) > 1e-12 {
			t.Errorf("weight %v: %v bytes a second, not %v", weight, s.Rates[0][0], x)
		}
		if x := saved(25e6-500) - saved(25e6+500); math.Abs(s.Prices[0]*1000/x-1) > 1e-6 {
			t.Errorf("weight %v: 1000 bytes a second cost %v, and save %v", weight,
				s.Prices[0]*1000, x)
		}
	}
}

// drawMarket draws links and buyers, some of whom send over some links alone, compute for a while,
// or have providers who ask for money.
func drawMarket(rng *rand.Rand, links, buyers int) (l []price.Link, b []price.Buyer) {
	for range links {
		one := price.Link{Bytes: math.Exp(17 + 3*rng.Float64())}
		if rng.IntN(4) == 0 {
			one.Price = math.Exp(-20 + 4*rng.Float64())
		}
		l = append(l, one)
	}
	for range buyers {
		one := price.Buyer{Weight: math.Exp(4 * rng.Float64()), Bytes: make([]float64, links)}
		if rng.IntN(3) == 0 {
			one.Least = math.Exp(-3 + 4*rng.Float64())
		}
		for i := range one.Bytes {
			if rng.IntN(2) == 0 {
				one.Bytes[i] = math.Exp(14 + 4*rng.Float64())
			}
		}
		one.Bytes[rng.IntN(links)] += 1e6
		b = append(b, one)
	}
	return l, b
}

// cost is what a market minimises, of steps that take so long.
func cost(links []price.Link, buyers []price.Buyer, seconds []float64) (sum float64) {
	for i, b := range buyers {
		sum += b.Weight * seconds[i]
		for l, x := range b.Bytes {
			sum += x * links[l].Price / seconds[i]
		}
	}
	return sum
}

// The conditions of the optimum hold, computed from what was sold alone: no link carries too much,
// what costs more than its provider asks is full, and nobody would pay for another step a second,
// or sell one. A fair division is never better, nor is any that was tried near it.
func TestMarketIsOptimal(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 200 {
		links, buyers := drawMarket(rng, 1+rng.IntN(8), 1+rng.IntN(12))
		s, err := price.Sell(links, buyers)
		if err != nil {
			t.Fatalf("round %d: %v: %+v %+v", round, err, links, buyers)
		}
		all := price.WeightedSum(buyers, s.Seconds)
		for l, link := range links {
			load := 0.0
			for i := range buyers {
				load += s.Rates[i][l]
			}
			idle := (s.Prices[l] - link.Price) * (link.Bytes - load)
			if load > link.Bytes*(1+1e-12) || s.Prices[l] < link.Price*(1-1e-12) ||
				idle > 1e-6*all {
				t.Fatalf("round %d: link %+v carries %v for %v", round, link, load, s.Prices[l])
			}
		}
		for i, b := range buyers {
			pays := 0.0
			for l, x := range b.Bytes {
				pays += x * s.Prices[l]
			}
			worth := b.Weight * s.Seconds[i] * s.Seconds[i]
			if s.Seconds[i] > b.Least*(1+1e-6) && math.Abs(pays/worth-1) > 1e-5 ||
				pays > worth*(1+1e-5) {
				t.Fatalf("round %d: job %+v takes %v s, pays %v for what is worth %v", round, b,
					s.Seconds[i], pays, worth)
			}
		}
		fair, err := price.FairSeconds(links, buyers)
		if err != nil {
			t.Fatal(err)
		}
		best := cost(links, buyers, s.Seconds)
		if x := cost(links, buyers, fair); best > x*(1+1e-6) {
			t.Fatalf("round %d: %v, and %v divided fairly", round, best, x)
		}
		for range 20 {
			x := cost(links, buyers, nearbySteps(rng, links, buyers, s.Seconds))
			if best > x*(1+1e-6) {
				t.Fatalf("round %d: %v, and %v near it", round, best, x)
			}
		}
	}
}

// nearbySteps returns steps of other lengths, made as much longer as makes them possible.
func nearbySteps(rng *rand.Rand, links []price.Link, buyers []price.Buyer,
	seconds []float64) []float64 {
	other, over := make([]float64, len(seconds)), 1.0
	for i, x := range seconds {
		other[i] = max(buyers[i].Least, x*math.Exp(0.2*rng.NormFloat64()))
	}
	for l, link := range links {
		load := 0.0
		for i, b := range buyers {
			load += b.Bytes[l] / other[i]
		}
		over = max(over, load/link.Bytes)
	}
	for i := range other {
		other[i] *= over
	}
	return other
}

// Fair division is even, but who waits for another link leaves the rest of this one.
func TestFair(t *testing.T) {
	links := []price.Link{{Bytes: 100}, {Bytes: 10}}
	buyers := []price.Buyer{{Weight: 1, Bytes: []float64{1, 1}},
		{Weight: 9, Bytes: []float64{2, 0}}, {Weight: 1, Bytes: []float64{0, 1}, Least: 0.5}}
	seconds, err := price.FairSeconds(links, buyers)
	if err != nil {
		t.Fatal(err)
	}
	// The third needs 2 of the second link, the first gets 8 there, and the second 92 of the first.
	for i, want := range []float64{1. / 8, 2. / 92, 1. / 2} {
		if math.Abs(seconds[i]/want-1) > 1e-12 {
			t.Errorf("job %d takes %v s, not %v", i+1, seconds[i], want)
		}
	}
}

// What makes no market is refused, with what to do.
func TestMarketRefuses(t *testing.T) {
	one, link := []price.Buyer{{Weight: 1, Bytes: []float64{1}}}, []price.Link{{Bytes: 1}}
	for _, c := range []struct {
		links  []price.Link
		buyers []price.Buyer
		want   string
	}{
		{nil, one, "needs a link"},
		{link, nil, "needs a link and a job"},
		{[]price.Link{{}}, one, "link 1 carries 0"},
		{[]price.Link{{Bytes: 1, Price: math.NaN()}}, one, "link 1"},
		{link, []price.Buyer{{Bytes: []float64{1}}}, "weight of 0"},
		{link, []price.Buyer{{Weight: 1, Bytes: []float64{1}, Least: -1}}, "at least -1 s"},
		{link, []price.Buyer{{Weight: 1}}, "sends over 0 links, and there are 1"},
		{link, []price.Buyer{{Weight: 1, Bytes: []float64{-1}}}, "sends -1 bytes"},
		{link, []price.Buyer{{Weight: 1, Bytes: []float64{0}}}, "sends nothing"},
	} {
		_, err := price.Sell(c.links, c.buyers)
		_, again := price.FairSeconds(c.links, c.buyers)
		if err == nil || again == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v, %+v: %v, %v", c.links, c.buyers, err, again)
		}
	}
}
