package experiment

import (
	"fmt"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/world/cluster"
)

// traceOf returns the file of a cluster of ElasticFlow's traces.
func traceOf(number int) string {
	return fmt.Sprintf("elasticflow-traces/raw/cluster%02d.csv.gz", number)
}

// checkValues are mean completion times in hours, by cluster, GPUs and policy, as the description
// of the traces gives them.
var checkValues = []struct {
	cluster, gpus int
	policies      []string
	hours         []float64
}{
	{4, 512, []string{"fifo", "fifo-skip", "sjf", "las", "srsf"},
		[]float64{41.20, 17.01, 7.91, 11.38, 6.24}},
	{7, 288, []string{"fifo", "fifo-skip", "sjf", "las", "srsf"},
		[]float64{14.54, 11.75, 9.08, 8.44, 7.81}},
}

// orders asks how much the order of jobs matters that have the GPUs that they ask for, or none.
var orders = Experiment{
	Name: "orders",
	Paper: "Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, " +
		"section 3, and the orders that it is compared with",
	Question: "How much sooner do jobs of fixed sizes end by the order in which they get GPUs?",
	Published: "Tiresias: mean completion time up to 5.5 times shorter than with the capacity " +
		"scheduler of YARN, on 60 GPUs",
	Run: runOrders,
}

// runOrders plays five orders on two clusters: a job that was preempted goes on 30 s later.
func runOrders(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"CLUSTER", "GPUS", "POLICY", "MEAN H", "OTHERS H", "MEDIAN H",
		"P99 H", "PARKED"}, Difference: "The traces are those of other clusters than the " +
		"paper's, so its factor is not to be found again; OTHERS H is what two other simulators " +
		"have come to on these."}
	for i, c := range checkValues {
		jobs, err := in.Jobs(traceOf(c.cluster), c.gpus)
		if err != nil {
			return nil, err
		}
		for k, name := range c.policies {
			policy, err := sched.Named(name)
			if err != nil {
				continue // it is not built in
			}
			in.reportProgress("orders", len(c.policies)*i+k, len(c.policies)*len(checkValues))
			r, err := cluster.Play(jobs, cluster.Config{Policy: policy, GPUs: c.gpus,
				Costs: cluster.PausePerChange(30), Seed: in.Seed})
			if err != nil {
				return nil, err
			}
			t.Rows = append(t.Rows, []string{fmt.Sprintf("%02d", c.cluster), fmt.Sprint(c.gpus),
				name, hoursText(r.Mean), hoursText(c.hours[k]), hoursText(r.Median),
				hoursText(r.P99),
				fmt.Sprint(r.Parks)})
		}
	}
	return t, nil
}
