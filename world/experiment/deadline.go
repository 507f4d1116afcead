package experiment

import "fmt"

// deadline asks how many deadlines are met by a scheduler that takes only what it can do in time.
var deadline = Experiment{
	Name: "deadline",
	Paper: "Gu et al., ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep " +
		"Learning, ASPLOS 2023, section 4",
	Question: "How many more deadlines are met if jobs are admitted only where all end in time?",
	Run:      runDeadline,
}

// deadlineCases are what is compared.
var deadlineCases = []struct {
	policy, costs string
	sigma         float64
}{
	{"fifo", "live", 0}, {"edf", "live", 0}, {"elastic", "live", 0}, {"goodput", "live", 0},
	{"deadline", "live", 0}, {"deadline", "restart", 0}, {"deadline", "live", 1},
}

// runDeadline plays a cluster whose trace has generated models and deadlines.
func runDeadline(in *Input) (*Table, error) {
	const gpus = 288
	t := &Table{Heads: []string{"POLICY", "COSTS", "SIGMA", "MET", "REFUSED", "ADMITTED, LATE",
		"MEAN H"}, Difference: "Half of the generated deadlines lie before what the " +
		"job takes on the GPUs that it asks for, and 461 cannot be met on any number of them; " +
		"where predictions are wrong, promises are broken."}
	curves, err := in.Curves("elasticflow-throughputs/A100")
	if err != nil {
		return nil, err
	}
	jobs, err := in.Jobs("elasticflow-traces/deadline/cluster07.csv.gz", gpus)
	if err != nil {
		return nil, err
	}
	for k, x := range deadlineCases {
		in.step("deadline", k, len(deadlineCases))
		r, err := playElastic(in, jobs, curves, gpus, x.policy, x.costs, x.sigma)
		if err != nil {
			return nil, err
		}
		t.Rows = append(t.Rows, []string{x.policy, x.costs, fmt.Sprint(x.sigma),
			fmt.Sprintf("%.1f %%", 100*float64(r.Met)/float64(r.Deadlines)),
			fmt.Sprint(r.Refused), fmt.Sprint(r.Deadlines - r.Met - r.Refused), hours(r.Mean)})
	}
	return t, nil
}
