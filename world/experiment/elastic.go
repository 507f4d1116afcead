package experiment

import (
	"fmt"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/sim/trace"
	"github.com/shoal-ml/shoal/world/cluster"
)

// elastic asks what it brings that jobs can have other sizes than they ask for.
var elastic = Experiment{
	Name: "elastic",
	Paper: "Peng et al., Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning " +
		"Clusters, EuroSys 2018, section 4.1; Qiao et al., Pollux: Co-adaptive Cluster " +
		"Scheduling for Goodput-Optimized Deep Learning, OSDI 2021, section 4.2",
	Question: "How much sooner do jobs end if their sizes change while they run, and what do " +
		"changes cost?",
	Published: "Optimus: mean completion time 139 % better than a fair scheduler's, 9 jobs on 13 " +
		"servers",
	Run: runElastic,
}

// elasticCases are what is compared on each cluster; live and restart are the costs of a change.
var elasticCases = []struct {
	policy, costs string
	sigma         float64
}{
	{"srsf", "live", 0}, {"elastic", "live", 0}, {"elastic", "restart", 0},
	{"elastic", "live", 1}, {"goodput", "live", 0}, {"goodput", "restart", 0},
}

// runElastic plays three clusters, with speeds measured on A100 and models drawn by chance.
func runElastic(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"CLUSTER", "GPUS", "POLICY", "COSTS", "SIGMA", "MEAN H",
		"MEDIAN H", "P99 H", "MOVES"}, Difference: "The traces are those of other clusters than " +
		"the papers', and jobs scale as models with fixed batches do, so their factors are not " +
		"to be found again; jobs of hours lose little by a restart, but each repeats what it " +
		"had not saved."}
	curves, err := in.Curves("elasticflow-throughputs/A100")
	if err != nil {
		return nil, err
	}
	for i, c := range [][2]int{{4, 512}, {4, 384}, {7, 288}} {
		jobs, err := in.Jobs(traceOf(c[0]), c[1])
		if err != nil {
			return nil, err
		}
		for k, x := range elasticCases {
			in.reportProgress("elastic", len(elasticCases)*i+k, 3*len(elasticCases))
			r, err := playElastic(in, jobs, curves, c[1], x.policy, x.costs, x.sigma)
			if err != nil {
				return nil, err
			}
			t.Rows = append(t.Rows, []string{fmt.Sprintf("%02d", c[0]), fmt.Sprint(c[1]), x.policy,
				x.costs, fmt.Sprint(x.sigma), hoursText(r.Mean), hoursText(r.Median),
				hoursText(r.P99),
				fmt.Sprint(r.Moves)})
		}
	}
	return t, nil
}

// playElastic plays jobs with speeds by size under a policy, which decides once a minute. Without
// curves jobs have the size that they ask for.
func playElastic(in *Input, jobs []trace.Job, curves []trace.Curve, gpus int, policy,
	costs string, sigma float64) (*cluster.Result, error) {
	p, err := sched.Named(policy)
	if err != nil {
		return nil, err
	}
	cfg := cluster.Config{Policy: p, GPUs: gpus, Curves: curves, Costs: cluster.Live, Sigma: sigma,
		Round: 60 * sched.Second, Seed: in.Seed}
	if costs == "restart" {
		cfg.Costs = cluster.Restart
	}
	return cluster.Play(jobs, cfg)
}
