package experiment

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide/learn"
	"github.com/shoal-ml/shoal/decide/price"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sim/trace"
)

// The values of jobs, of which no public trace tells.
const (
	priceCluster = 7
	priceSpan    = 20 // the most that a slot-second can be worth, over the least
	priceSteps   = 60 // of the descent to the bound
)

// prices asks what posted prices come to, of what any allocation could.
var prices = Experiment{
	Name: "price",
	Paper: "Luo, Li and Wu: Online Cloud Resource Allocation and Pricing with Server Speed " +
		"Scaling, ICC 2018",
	Question: "How much are the jobs worth together that get slots by posted prices, of what no " +
		"allocation can exceed, and against who comes first?",
	Run: runPrices,
}

// runPrices sells the slots of a cluster that has too few of them.
func runPrices(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"CLUSTER", "GPUS", "POSTED", "FIRST COME", "POSTED/FIRST",
		"SOLD TO", "JOBS"}, Difference: "Values are drawn, as no trace has any: a slot-second is " +
		"worth 1 to 20 to a job, until 1 to 3 times its duration after it arrived, and then " +
		"less. POSTED and FIRST COME are parts of a bound that knows all jobs before the first " +
		"arrives. Speed is the number of slots, by curves that are drawn too."}
	curves, err := in.Curves("elasticflow-throughputs/A100")
	if err != nil {
		return nil, err
	}
	sizes := []int{192, 96}
	for i, gpus := range sizes {
		in.reportProgress("price", i, len(sizes))
		jobs, err := in.Jobs(traceOf(priceCluster), gpus)
		if err != nil {
			return nil, err
		}
		bids, asked := bidsOf(jobs, curves, gpus, in.Seed)
		end := 0.0
		for _, b := range bids {
			end = max(end, b.Late)
		}
		grid := price.Grid{Slots: gpus, Cell: 3600, Cells: int(end/3600) + 1}
		posted, err := price.NewPosted(grid, 1, priceSpan)
		if err != nil {
			return nil, err
		}
		first, err := price.NewPosted(grid, 1, priceSpan)
		if err != nil {
			return nil, err
		}
		sold, came, count := 0.0, 0.0, 0
		for k := range bids {
			if o, _, ok := posted.Sell(&bids[k]); ok {
				sold, count = sold+o.Worth, count+1
			}
			if o, ok := first.FirstOption(&bids[k], asked[k]); ok {
				first.Take(o)
				came += o.Worth
			}
		}
		bound := posted.Bound(bids, priceSteps)
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%02d", priceCluster), fmt.Sprint(gpus),
			fmt.Sprintf("%.3f", sold/bound), fmt.Sprintf("%.3f", came/bound),
			fmt.Sprintf("%.2f", sold/came), fmt.Sprint(count), fmt.Sprint(len(bids))})
	}
	return t, nil
}

// bidsOf returns what jobs pay, and what each asks for, which is one of its sizes.
func bidsOf(jobs []trace.Job, curves []trace.Curve, gpus int, seed uint64) (bids []price.Bid,
	asked []int) {
	random := learn.NewRandom(seed)
	for _, j := range jobs {
		took := float64(j.Duration) / 1000
		rates := ratesOf(curves, j.GPUs, gpus, random)
		at := slices.IndexFunc(rates, func(r price.Rate) bool { return r.Slots == j.GPUs })
		b := price.Bid{Arrived: float64(j.Arrived) / 1000, Work: float64(took * rates[at].Rate),
			Rates: rates}
		least := float64(j.GPUs) * took
		for _, r := range rates {
			least = min(least, float64(float64(r.Slots)*b.Work)/r.Rate)
		}
		b.Value = least * portable.Exp(float64(random.Float()*portable.Log(priceSpan)))
		b.Due = b.Arrived + float64(took*(1+float64(2*float64(random.Float()))))
		b.Late = b.Due + float64(took*(1+float64(2*float64(random.Float()))))
		bids, asked = append(bids, b), append(asked, j.GPUs)
	}
	return bids, asked
}

// ratesOf draws a curve for a job that asks for some GPUs of so many in all. It returns the rates
// of the sizes of which none does without more slots what another one does, and of that which it
// asks for.
func ratesOf(curves []trace.Curve, asked, gpus int, random *learn.Random) []price.Rate {
	var fit []int
	for i := range curves {
		if _, known := curves[i].At(asked); known {
			fit = append(fit, i)
		}
	}
	if len(fit) == 0 {
		return []price.Rate{{Slots: asked, Rate: 1}}
	}
	c := &curves[fit[random.IntN(len(fit))]]
	speed, _ := c.At(asked)
	rates := []price.Rate{{Slots: asked, Rate: speed}}
	for i, n := range c.Sizes {
		if n <= gpus && n != asked {
			rates = append(rates, price.Rate{Slots: n, Rate: c.Speeds[i]})
		}
	}
	kept := price.Efficient(rates)
	if !slices.ContainsFunc(kept, func(r price.Rate) bool { return r.Slots == asked }) {
		kept = append(kept, rates[0])
	}
	return kept
}
