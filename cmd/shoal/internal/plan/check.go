package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/layout"
)

// shoal plan check. One goroutine runs what is here, that of the command, so nothing is locked.
// recheckPlan works out plans, and compare asks the launcher of a job; both wait.

// leastSteps is of how many steps a median says something.
const leastSteps = 10

// checkFlags are those of shoal plan check.
type checkFlags struct {
	job     string  // name of a running job; "" = the plan is judged again
	model   string  // file of the model, or one of the zoo
	cluster string  // file of the machines
	work    float64 // that proves the bound again at most, in about seconds of a processor
	json    bool    // whether to print a JSON object
}

// newCheckCommand returns the command shoal plan check.
func newCheckCommand() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check PLAN --job JOB | check PLAN --model MODEL --cluster FILE",
		Short: "Compare what a plan predicts with what the steps of a job take",
		Long: cli.Help(`Compare what a plan promises with what the steps of a running job take, which must have the mesh of
the plan: the median of the newest steps since then, and between which times half of them lie.

With a model and a cluster the plan is judged again, and the command says which of its figures do
not hold: because somebody has changed them, or because the plan is of another model or cluster. Its
bound is proved again with as much work as went into it, or --work, which may be too little to see
whether it holds: then the command says so.`,
			cli.ExitCodes, "plans"),
		Example: `  shoal plan check gpt.deployment.json --job gpt
  shoal plan check gpt.deployment.json --job gpt --json   the same as a JSON object
  shoal plan check gpt.deployment.json --model gpt.model.json --cluster cluster.json`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.RefuseEmpty(cmd.Flags(), "job", "model", "cluster"); err != nil {
				return err
			}
			judges := f.model != "" && f.cluster != ""
			switch {
			case f.job == "" && !judges:
				return cli.Usagef("say which job runs the plan, --job JOB, or what it was made " +
					"of, --model MODEL --cluster FILE")
			case f.job != "" && (f.model != "" || f.cluster != ""):
				return cli.Usagef("--job compares with a job, and --model and --cluster judge " +
					"again: give one or the other")
			case f.job != "" && cmd.Flags().Changed("work"):
				return cli.Usagef("--work is for a bound that is proved again, with --model and " +
					"--cluster: leave it out")
			case !(f.work > 0 && f.work <= deployment.MostWork):
				return cli.Usagef("--work=%v: it is above 0, and up to %d", f.work,
					deployment.MostWork)
			}
			_, d, err := cli.ReadFile(args[0], deployment.MaxBytes, deployment.Parse)
			if err != nil {
				return err
			}
			if judges {
				return f.recheckPlan(cmd.Context(), cmd.OutOrStdout(), args[0], d)
			}
			return f.compare(cmd.Context(), cmd.OutOrStdout(), d)
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.job, "job", "", "the running job that has the mesh of the plan")
	set.StringVar(&f.model, "model", "", "the file of the model that the plan was made of")
	set.StringVar(&f.cluster, "cluster", "", "the file of the cluster that the plan was made of")
	set.Float64Var(&f.work, "work", 60,
		"how much work goes into proving the bound again at most, in about seconds of a processor")
	set.BoolVar(&f.json, "json", false, "print a JSON object")
	return cmd
}

// recheckPlan judges a plan again, which is in a file, and prints which of its claims do not hold.
// It fails if there is one.
func (f *checkFlags) recheckPlan(ctx context.Context, out io.Writer, file string,
	d *deployment.Deployment) error {
	clusterText, c, err := cli.ReadFile(f.cluster, cluster.MaxBytes, cluster.Parse)
	if err != nil {
		return err
	}
	modelText, m, err := readModel(f.model, c, "")
	if err != nil {
		return err
	}
	fails := []string{}
	for _, x := range [...]struct{ what, name, says, is string }{
		{"model", f.model, d.Model, deployment.Hash(modelText)},
		{"cluster", f.cluster, d.Cluster, deployment.Hash(clusterText)},
	} {
		if x.says != x.is {
			fails = append(fails, fmt.Sprintf("it was made of another %s than %s, or that has "+
				"changed since: its hash is %s, and the plan has %s", x.what, x.name, x.is, x.says))
		}
	}
	done := cli.ExitOnSignal(ctx) // since nothing is written
	v, err := planner.Verify(planner.Request{Model: m, Cluster: c,
		Work: max(1, int(f.work*planner.Second))}, d)
	if done(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	fails = append(fails, v.Fails...)
	if f.json {
		found := verdict{len(fails) == 0, fails, v.Unproved}
		if err := json.NewEncoder(out).Encode(found); err != nil {
			return err
		}
	} else {
		for _, text := range fails {
			fmt.Fprintln(out, text)
		}
	}
	if len(fails) > 0 {
		verb := "do"
		if len(fails) == 1 {
			verb = "does"
		}
		return fmt.Errorf("%s: %s of the plan %s not hold; shoal plan makes a new one", file,
			plural.Of(len(fails), "claim"), verb)
	}
	switch {
	case f.json:
	case v.Unproved != "":
		_, err = fmt.Fprintf(out, "%s: step, stages and memory are as said; %s (--work %v)\n",
			d.Mesh, v.Unproved, f.work)
	default:
		_, err = fmt.Fprintf(out, "%s holds: step, stages, memory and bound are as said\n", d.Mesh)
	}
	return err
}

// A verdict is what was found of a plan that was judged again, as JSON has it.
type verdict struct {
	Holds bool     `json:"holds"`
	Fails []string `json:"fails"` // in words; never null
	// Unproved says that too little work was spent to prove the bound again.
	Unproved string `json:"unproved,omitempty"`
}

// A comparison is what a plan promises beside what steps take, as JSON has it.
type comparison struct {
	Job       string                `json:"job"`
	Mesh      string                `json:"mesh"`
	Predicted deployment.Prediction `json:"predicted"`
	Measured  *api.Pace             `json:"measured"`
	// Error is by which part of the prediction the measured median is above it.
	Error  float64 `json:"error"`
	Inside bool    `json:"inside"` // the median is between low and high
}

// compare asks the job what its steps take, and prints that beside what the plan promises.
func (f *checkFlags) compare(ctx context.Context, out io.Writer, d *deployment.Deployment) error {
	j, err := control.Find(ctx, f.job)
	if err != nil {
		return err
	}
	c, err := compareWith(d, &j.Job)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(out).Encode(c)
	}
	where := "as promised"
	if !c.Inside {
		where = fmt.Sprintf("outside of what was promised, %s to %s", seconds(c.Predicted.Low),
			seconds(c.Predicted.High))
	}
	_, err = fmt.Fprintf(out, "predicted %s, measured %s (median of %s, %s to %s): %+.1f %%, %s\n",
		seconds(c.Predicted.Seconds), seconds(c.Measured.Median),
		plural.Of(int(c.Measured.Steps), "step"), seconds(c.Measured.P25),
		seconds(c.Measured.P75), 100*c.Error, where)
	return err
}

// compareWith returns what a plan promises beside what the steps of a job take. It fails where the
// job does not run the plan, and where it has made too few steps.
func compareWith(d *deployment.Deployment, j *api.Job) (*comparison, error) {
	switch {
	case d.Mesh == "":
		return nil, fmt.Errorf("no job runs this plan, because %s", d.Runs.WhyNot)
	case j.Mesh == "":
		return nil, fmt.Errorf("job %s has no mesh: only jobs that train with shoal.train "+
			"follow a plan", j.Name)
	}
	m, err := layout.ParseMesh(d.Mesh)
	if err != nil {
		return nil, err
	}
	mesh := m.String()
	switch pace := j.Pace; {
	case j.Mesh != mesh && j.NextMesh == mesh:
		return nil, fmt.Errorf("job %s has mesh %s, and goes to that of the plan, %s: ask again "+
			"when it has it", j.Name, j.Mesh, mesh)
	case j.Mesh != mesh:
		return nil, fmt.Errorf("job %s has mesh %s, and the plan is for %s: shoal reshape %[1]s "+
			"--plan takes it there", j.Name, j.Mesh, mesh)
	case pace == nil || pace.Steps < leastSteps:
		n := 0
		if pace != nil {
			n = int(pace.Steps)
		}
		return nil, fmt.Errorf("job %s has made %s since it has this mesh; a median is taken of "+
			"%d or more: ask again later", j.Name, plural.Of(n, "whole step"), leastSteps)
	case int(pace.Batch) != d.Batch:
		return nil, fmt.Errorf("job %s has steps of %d samples, and the plan is for %d", j.Name,
			pace.Batch, d.Batch)
	}
	p := d.Predicted
	return &comparison{Job: j.Name, Mesh: mesh, Predicted: p, Measured: j.Pace,
		Error:  j.Pace.Median/p.Seconds - 1,
		Inside: p.Low <= j.Pace.Median && j.Pace.Median <= p.High}, nil
}
