package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/layout"
)

// shoal reshape. One goroutine runs what is here, that of the command, so nothing is locked.

// reshapeFlags are the flags of shoal reshape. Only run waits for the job.
type reshapeFlags struct {
	mesh string // axes with their degrees, as layout.ParseMesh takes them
	plan string // file of a plan, whose mesh is taken; "" = mesh says it
	// planned is what that file has; nil = there is none.
	planned *deployment.Deployment
	dryRun  bool // whether to print the plan only
	noWait  bool // whether to ask, and not to wait for the mesh
	json    bool // whether to print JSON objects
}

// NewReshapeCommand returns the command shoal reshape.
func NewReshapeCommand() *cobra.Command {
	var f reshapeFlags
	cmd := &cobra.Command{
		Use: "reshape JOB --mesh AXES | --plan FILE",
		Short: "Give a running job another mesh: other degrees of data, tensor and pipeline " +
			"parallelism",
		Long: cli.Help(`Give a running job another mesh (data, tensor and pipeline parallelism) while it trains.
The command prints the plan and its cost, and ends when the job has the mesh or cannot have it.

The state moves between two steps, with its optimizer, and is verified by fingerprints. Workers that
the mesh needs are started, and those that it does not need are released. The job must train with
shoal.train, which states the layout of its state.`, cli.ExitCodes, "meshes"),
		Example: `  shoal reshape train --mesh dp=2,tp=2
  shoal reshape train --mesh dp=1,pp=4 --dry-run
  shoal reshape train --mesh "pp=2(8/6)"   eight layers on the first stage, six on the second
  shoal reshape train --plan gpt.deployment.json   what shoal plan has written
  shoal reshape train --mesh dp=5 --json   the plan and each change as objects`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.RefuseEmpty(cmd.Flags(), "mesh", "plan"); err != nil {
				return err
			}
			if err := f.readPlan(); err != nil {
				return err
			}
			if f.mesh == "" {
				return cli.Usagef("say which mesh: --mesh dp=2,tp=2, or --plan FILE")
			}
			if _, err := layout.ParseMesh(f.mesh); err != nil {
				return cli.AsUsage(err)
			}
			j, err := findChangeable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), j)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.mesh, "mesh", "",
		"the axes with their degrees, the last the fastest, such as dp=2,tp=2")
	flags.StringVar(&f.plan, "plan", "", "take the mesh of a plan, a file of shoal plan -o")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the plan, and change nothing")
	flags.BoolVar(&f.noWait, "no-wait", false, "ask, and do not wait for the mesh")
	flags.BoolVar(&f.json, "json", false,
		"print the plan and each change as JSON objects, and a last one when the job has the mesh")
	return cmd
}

// readPlan takes the mesh from the file of a plan, if one is given. It fails where a mesh is given
// too, and for a file that is no plan.
func (f *reshapeFlags) readPlan() error {
	switch {
	case f.plan == "":
		return nil
	case f.mesh != "":
		return cli.Usagef("--plan and --mesh both say which mesh: give one of them")
	}
	_, d, err := cli.ReadFile(f.plan, deployment.MaxBytes, deployment.Parse)
	if err != nil {
		return err
	}
	if why := d.Runs.WhyNot; why != "" {
		return cli.Usagef("%s: no job can take this plan, because %s", f.plan, why)
	}
	f.mesh, f.planned = d.Mesh, d
	return nil
}

// run prints to out what the change of mesh would move, asks the job for the change unless
// --dry-run is given, and waits until the job has the mesh unless --no-wait is given. It prints to
// notes how many workers have no place.
func (f *reshapeFlags) run(ctx context.Context, out, notes io.Writer, j *control.Job) error {
	plan, err := j.PlanReshape(ctx, f.mesh, cli.Requester())
	if err != nil {
		return fmt.Errorf("job %s keeps its mesh: %w", j.Name, err)
	}
	if f.json {
		err = json.NewEncoder(out).Encode(f.dryRunOf(&plan, &j.Job))
	} else {
		err = f.printPlan(out, &plan, &j.Job)
	}
	if err != nil || f.dryRun {
		return err
	}
	g := goal{job: j, what: "mesh " + plan.To, noWait: f.noWait, json: f.json}
	unplaced := unplacedNotes{to: notes}
	g.ask = func() error {
		if err := j.Reshape(ctx, f.mesh, cli.Requester()); err != nil {
			return fmt.Errorf("job %s keeps its mesh: %w", j.Name, err)
		}
		unplaced.tell(j)
		return nil
	}
	g.reached = func() (bool, error) {
		switch {
		case j.Mesh == plan.To && j.NextMesh == "":
			return true, nil
		case j.MeshError != "":
			return false, fmt.Errorf("job %s cannot go on: %s", j.Name, j.MeshError)
		case j.NextMesh != plan.To:
			return false, fmt.Errorf(
				"job %s has mesh %s and does not go to %s any more; shoal explain %[1]s says why",
				j.Name, j.Mesh, plan.To)
		}
		unplaced.tell(j)
		return false, nil
	}
	return g.askAndWait(ctx, out)
}

// printPlan prints to out, as text, what a reshape of a job moves, and what it brings if a file of
// a plan says that.
func (f *reshapeFlags) printPlan(out io.Writer, p *api.Plan, j *api.Job) error {
	_, err := fmt.Fprintf(out, `from           mesh %s
to             mesh %s, on %s
state          %d bytes, %s
moved          %d bytes from host to host, the least possible is %d; %d from worker to worker
busiest host   %d bytes, the least possible is %d
extra memory   %d bytes on the host that needs most, %d with what it has
alone          %s
predicted      %s
`, p.From, p.To, plural.Of(p.Workers, "worker"), p.State, plural.Of(p.Tensors, "tensor"), p.Bytes, p.Bound, p.Device, p.Busiest, p.BusiestBound, p.Extra, p.Memory, unreplicatedText(p), cli.PredictionText(p))
	if err == nil && f.planned != nil {
		_, err = io.WriteString(out, gainOf(f.planned, p, j).text())
	}
	return err
}

// unreplicatedText says how much of the state would be lost with one host or worker, and how much
// the opposite choice of --redundant would have lost and moved.
func unreplicatedText(p *api.Plan) string {
	said := fmt.Sprintf("%d bytes on one %s only", p.Unreplicated, p.Where)
	if p.OtherUnreplicated == p.Unreplicated && p.OtherBytes == p.Bytes {
		return said
	}
	other := "with"
	if p.Redundant {
		other = "without"
	}
	return fmt.Sprintf("%s; %s --redundant %d, and %d bytes moved", said, other,
		p.OtherUnreplicated,
		p.OtherBytes)
}
