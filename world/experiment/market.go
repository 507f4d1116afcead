package experiment

import (
	"fmt"

	"github.com/shoal-ml/shoal/decide/learn"
	"github.com/shoal-ml/shoal/decide/price"
	"github.com/shoal-ml/shoal/internal/portable"
)

// marketDraws is how many markets of each kind are drawn.
const marketDraws = 100

// market asks what it brings to sell the bandwidth of cards.
var market = Experiment{
	Name:  "market",
	Paper: "NetEx, HotCloud 2016",
	Question: "How much less do the steps of jobs take, times the weights of the jobs, if " +
		"bandwidth goes by prices instead of fairly?",
	Run: runMarket,
}

// runMarket sells markets of some cards to some jobs, and divides them fairly.
func runMarket(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"CARDS", "JOBS", "WEIGHTS", "RESIDUAL", "MEAN GAIN", "LEAST",
		"MOST"}, Difference: "The paper's markets are not public, so markets are drawn: cards of " +
		"1 to 25 Gbit/s, jobs that send 1 MB to 1 GB a step over each card with a chance of a " +
		"half, and compute for up to 0.2 s meanwhile. RESIDUAL is by how much the conditions of " +
		"the optimum are missed at most; gains are parts of what the weighted steps take if " +
		"each card is divided fairly."}
	kinds := []struct{ cards, jobs int }{{1, 2}, {1, 8}, {2, 4}, {4, 8}, {8, 32}}
	for i, k := range kinds {
		for j, weight := range []float64{1, 4} {
			in.reportProgress("market", 2*i+j, 2*len(kinds))
			random := learn.NewRandom(in.Seed)
			worst, sum, least, most := 0.0, 0.0, 1.0, 0.0
			for range marketDraws {
				links, buyers := drawMarket(random, k.cards, k.jobs, weight)
				sold, err := price.Sell(links, buyers)
				if err != nil {
					return nil, err
				}
				fair, err := price.FairSeconds(links, buyers)
				if err != nil {
					return nil, err
				}
				gain := 1 - price.WeightedSum(buyers, sold.Seconds)/price.WeightedSum(buyers, fair)
				if gain < 0 && gain > -1e-6 {
					gain = 0 // up to the residual
				}
				worst, sum = max(worst, sold.Residual), sum+gain
				least, most = min(least, gain), max(most, gain)
			}
			t.Rows = append(t.Rows, []string{fmt.Sprint(k.cards), fmt.Sprint(k.jobs),
				fmt.Sprintf("%v:1", weight), fmt.Sprintf("%.0e", worst),
				percentText(sum / marketDraws), percentText(least), percentText(most)})
		}
	}
	return t, nil
}

// drawMarket draws cards and jobs; every other job has a weight, and the rest have 1.
func drawMarket(random *learn.Random, cards, jobs int, weight float64) (links []price.Link,
	buyers []price.Buyer) {
	// between draws a number whose logarithm is as likely anywhere.
	between := func(low, high float64) float64 {
		return low * portable.Exp(float64(random.Float()*portable.Log(high/low)))
	}
	for range cards {
		links = append(links, price.Link{Bytes: between(1e9/8, 25e9/8)})
	}
	for i := range jobs {
		b := price.Buyer{Weight: 1, Bytes: make([]float64, cards), Least: 0.2 * random.Float()}
		if i%2 == 0 {
			b.Weight = weight
		}
		for card := range b.Bytes {
			if random.IntN(2) == 0 {
				b.Bytes[card] = between(1e6, 1e9)
			}
		}
		b.Bytes[random.IntN(cards)] += 1e6
		buyers = append(buyers, b)
	}
	return links, buyers
}

// percentText writes a part of 1.
func percentText(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
