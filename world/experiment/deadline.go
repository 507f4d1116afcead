package experiment

import (
	"fmt"

	"github.com/shoal-ml/shoal/world/cluster"
)

// deadline asks how many deadlines are met by a scheduler that takes only what it can do in time.
var deadline = Experiment{
	Name: "deadline",
	Paper: "Gu et al., ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep " +
		"Learning, ASPLOS 2023, section 4",
	Question: "How many more deadlines are met if jobs are admitted only where all end in time?",
	Run:      runDeadline,
}

// deadlineCases are what is compared on each cluster, on all but the first only the two policies
// that matter most.
var deadlineCases = []struct {
	policy, costs string
	sigma         float64
}{
	{"edf", "live", 0}, {"deadline", "live", 0}, {"fifo", "live", 0}, {"elastic", "live", 0},
	{"goodput", "live", 0}, {"deadline", "restart", 0}, {"deadline", "live", 1},
}

// runDeadline plays clusters whose traces have generated models and deadlines.
func runDeadline(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"CLUSTER", "GPUS", "POLICY", "COSTS", "SIGMA", "MET", "REFUSED",
		"ADMITTED, LATE", "MEAN H", "MET AT MOST"}, Difference: "Half of the generated deadlines " +
		"lie before what the job takes on the GPUs that it asks for, and of cluster 07 461 " +
		"cannot be met on any number of them; where predictions are wrong, promises are broken."}
	curves, err := in.Curves("elasticflow-throughputs/A100")
	if err != nil {
		return nil, err
	}
	clusters := [][2]int{{7, 288}, {3, 512}, {4, 512}, {5, 64}, {8, 144}, {10, 24}}
	for i, c := range clusters {
		jobs, err := in.Jobs(fmt.Sprintf("elasticflow-traces/deadline/cluster%02d.csv.gz", c[0]),
			c[1])
		if err != nil {
			return nil, err
		}
		all := cluster.Config{GPUs: c[1], Curves: curves, Seed: in.Seed}
		most := all.MostMet(jobs)
		cases := deadlineCases
		if i > 0 {
			cases = cases[:2]
		}
		for _, x := range cases {
			in.reportProgress("deadline", len(t.Rows), len(deadlineCases)+2*len(clusters)-2)
			r, err := playElastic(in, jobs, curves, c[1], x.policy, x.costs, x.sigma)
			if err != nil {
				return nil, err
			}
			t.Rows = append(t.Rows, []string{fmt.Sprintf("%02d", c[0]), fmt.Sprint(c[1]), x.policy,
				x.costs, fmt.Sprint(x.sigma),
				percentOf(r.Met, r.Deadlines),
				fmt.Sprint(r.Refused), fmt.Sprint(r.Deadlines - r.Met - r.Refused),
				hoursText(r.Mean), percentOf(most, r.Deadlines)})
		}
	}
	return t, nil
}

// percentOf returns a part of some deadlines as a text.
func percentOf(n, all int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(all)) }
