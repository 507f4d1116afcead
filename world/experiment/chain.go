package experiment

import (
	"fmt"

	"github.com/shoal-ml/shoal/decide/price"
)

const (
	chainSlot   = 300  // seconds of a slot of time
	chainTrain  = 0.2  // the part of the trace that the learned scaling learns from
	chainTimes  = 2    // that it goes through that
	chainBehind = 0.02 // that the guard lets it cost more
)

// chainStarts are what starting a replica costs, over running it for a slot of time.
var chainStarts = []float64{2, 4, 9, 18, 36}

// chainEach are how many requests a replica takes in a slot of time, by stage.
var chainEach = []float64{1, 2, 4}

// chain asks what it costs to scale a chain of stages without knowing what comes.
var chain = Experiment{
	Name: "chain",
	Paper: "Luo and Wu: An Online Algorithm for VNF Service Chain Scaling in Datacenters, ToN " +
		"2020; Luo, Wu, Li and Zhou: Scaling Geo-Distributed Network Function Chains, JSAC 2019",
	Question: "What does it cost to start and stop the replicas of a chain's stages, over what " +
		"it would cost if all requests were known before?",
	Run: runChain,
}

// runChain scales the stages of a chain whose requests come as the jobs of Philly do.
func runChain(in *Input) (*Table, error) {
	jobs, err := in.Jobs("philly/philly.csv.gz", 0)
	if err != nil {
		return nil, err
	}
	requests := make([]float64, int(jobs[len(jobs)-1].Arrived/1000/chainSlot)+1)
	for _, j := range jobs {
		requests[int(j.Arrived/1000/chainSlot)]++
	}
	t := &Table{Heads: []string{"START/RUN", "A REPLICA TAKES", "KEEP", "STEP", "LEARNED",
		"FOLLOWED"}, Difference: "KEEP (an idle replica stays until it has cost as much as " +
		"starting one) and STEP (the regularised step, which also knows the capacity of hosts) " +
		"are over the offline optimum, and LEARNED is over the step, behind a guard that holds " +
		"it within 2 % of that; FOLLOWED is how often the guard let it. The last row has the " +
		"means and, in brackets, the most."}
	var keeps, steps, learns []float64
	for i, start := range chainStarts {
		for k, each := range chainEach {
			in.reportProgress("chain", i*len(chainEach)+k, len(chainStarts)*len(chainEach))
			stages := stagesOf(start, each)
			needs := make([][]int, len(requests))
			for now, n := range requests {
				needs[now] = []int{stages[0].Need(n)}
			}
			keep, step, learned, followed, err := scaleStages(stages, needs, in.Seed)
			if err != nil {
				return nil, err
			}
			keeps, steps = append(keeps, keep), append(steps, step)
			learns = append(learns, learned)
			t.Rows = append(t.Rows, []string{fmt.Sprint(start), fmt.Sprint(each),
				fmt.Sprintf("%.3f", keep), fmt.Sprintf("%.3f", step),
				fmt.Sprintf("%.4f", learned), fmt.Sprintf("%.0f %%", 100*followed)})
		}
	}
	t.Rows = append(t.Rows, []string{"all", "", meanAndMost(keeps), meanAndMost(steps),
		meanAndMost(learns), ""})
	return t, nil
}

// stagesOf returns a chain of one stage, of which a replica takes `each` requests in a slot of time
// and costs 1 for that, and starting one costs start.
func stagesOf(start, each float64) []price.Stage {
	return []price.Stage{{Name: "stage", Share: 1, Each: each, Room: 1, Run: 1, Start: start}}
}

// scaleStages returns what needs cost if idle replicas are kept for as long as starting one costs
// and by the regularised step, both over the optimum; what they cost by the learned scaling behind
// its guard, over the step, in the part that it has not learned from; and how often it was
// followed.
func scaleStages(stages []price.Stage, needs [][]int, seed uint64) (keep, step, learned,
	followed float64, err error) {
	optimum := price.Cheapest(stages, needs)
	cost := func(s price.Scaler, needs [][]int) (sum float64) {
		if err == nil {
			sum, _, err = price.Cost(stages, s, needs)
		}
		return sum
	}
	chain := func() price.Scaler {
		c, wrong := price.NewChain(stages, 0)
		if err == nil {
			err = wrong
		}
		return c
	}
	keep = cost(&price.Keep{Stages: stages}, needs) / optimum
	step = cost(chain(), needs) / optimum
	from := int(chainTrain * float64(len(needs)))
	l := price.NewLearned(stages, seed)
	l.Train(needs[:from], chainTimes)
	l.ResetForecasts(seed)
	guard := &price.Guard{Stages: stages, Safe: chain(), Bold: l.Propose, Part: chainBehind}
	learned = cost(guard, needs[from:]) / cost(chain(), needs[from:])
	return keep, step, learned, float64(guard.Followed()) / float64(len(needs)-from), err
}

// meanAndMost writes the mean of numbers, and the greatest in brackets.
func meanAndMost(list []float64) string {
	sum, most := 0.0, 0.0
	for _, x := range list {
		sum, most = sum+x, max(most, x)
	}
	return fmt.Sprintf("%.3f (%.3f)", sum/float64(len(list)), most)
}
