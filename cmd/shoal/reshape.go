package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/node"
)

// reshapeFlags are the flags of shoal reshape.
type reshapeFlags struct {
	mesh   string
	dryRun bool
	noWait bool
	json   bool
}

func newReshapeCommand() *cobra.Command {
	var f reshapeFlags
	cmd := &cobra.Command{
		Use:   "reshape JOB --mesh AXES",
		Short: "Give a running job another mesh: other degrees of data, tensor and pipeline parallelism",
		Long: `Give a running job another mesh: other degrees of data, tensor and pipeline parallelism, while it trains.

The plan is printed first: what crosses from host to host against the least that is possible, and the memory that it
takes. Between two steps the state then moves to the ranks of the new mesh, with its optimizer, proved by fingerprint;
the next step is made there, on the same samples, with the same loss. Workers that the mesh needs are started, those
that it does not need are released. The job must train with shoal.train, which states where its state lies.

The command ends when the job has the mesh, or says why it will not.`,
		Example: `  shoal reshape train --mesh dp=2,tp=2
  shoal reshape train --mesh dp=1,pp=4 --dry-run
  shoal reshape train --mesh dp=5 --json      with the plan and each change as objects`,
		Args:              between(1, 1),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.mesh == "" {
				return usageError("say which mesh: --mesh dp=2,tp=2")
			}
			j, err := control.Find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), j)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.mesh, "mesh", "", "the axes with their degrees, the last the fastest, such as dp=2,tp=2")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the plan, and change nothing")
	flags.BoolVar(&f.noWait, "no-wait", false, "ask, and do not wait for the mesh")
	flags.BoolVar(&f.json, "json", false, "print the plan and each change as JSON objects, and a last one when the job has the mesh")
	return cmd
}

// reshaped is the last line of shoal reshape --json.
type reshaped struct {
	Job        string  `json:"job"`
	Mesh       string  `json:"mesh"`
	Workers    int     `json:"workers"`
	Generation uint64  `json:"generation"`
	Seconds    float64 `json:"seconds"`
}

func (f *reshapeFlags) run(ctx context.Context, out io.Writer, j *control.Job) error {
	plan, err := j.PlanReshape(ctx, f.mesh, myself())
	if err != nil {
		return fmt.Errorf("job %s keeps its mesh: %w", j.Name, err)
	}
	if err := f.show(out, &plan); err != nil || f.dryRun {
		return err
	}
	ledger, start := newTail(node.Ledger(j.Dir)), time.Now()
	if err := j.Reshape(ctx, f.mesh, myself()); err != nil {
		return fmt.Errorf("job %s keeps its mesh: %w", j.Name, err)
	}
	if f.noWait {
		return nil
	}
	err = again(ctx, func() (bool, error) {
		err := j.Refresh(ctx)
		if shown := ledger.entries(func(e node.Entry) error { return showEntry(out, e, f.json) }); shown != nil {
			return false, shown
		}
		switch {
		case errors.Is(err, control.ErrEnded):
			return false, fmt.Errorf("job %s has ended before it had mesh %s; shoal explain %[1]s says how", j.Name, plan.To)
		case err != nil:
			return false, err
		case j.Mesh == plan.To && j.Reshaping == "":
			return true, nil
		case j.Broken != "":
			return false, fmt.Errorf("job %s cannot go on: %s", j.Name, j.Broken)
		case j.Reshaping != plan.To:
			return false, fmt.Errorf("job %s has mesh %s and does not go to %s any more; shoal explain %[1]s says why", j.Name, j.Mesh, plan.To)
		}
		return false, nil
	})
	if ctx.Err() != nil {
		return fmt.Errorf("no longer waiting for job %s, which still goes to mesh %s: %w", j.Name, plan.To, err)
	}
	if err != nil {
		return err
	}
	took := time.Since(start)
	if f.json {
		return json.NewEncoder(out).Encode(reshaped{j.Name, j.Mesh, j.Size, j.Generation, took.Seconds()})
	}
	_, err = fmt.Fprintf(out, "job %s has mesh %s after %v\n", j.Name, j.Mesh, took.Round(time.Millisecond))
	return err
}

func (f *reshapeFlags) show(out io.Writer, p *api.Plan) error {
	if f.json {
		return json.NewEncoder(out).Encode(p)
	}
	_, err := fmt.Fprintf(out, `from           mesh %s
to             mesh %s, on %s
state          %d bytes, %s
moved          %d bytes from host to host, the least possible is %d; %d from worker to worker
busiest host   %d bytes, the least possible is %d
extra memory   %d bytes on the host that needs most, %d with what it has
predicted      %v in memory, for %d bytes of new state
`, p.From, p.To, counted(p.Workers, "worker"), p.State, counted(p.Tensors, "tensor"), p.Bytes, p.Bound, p.Device, p.Busiest, p.BusiestBound, p.Extra, p.Memory,
		time.Duration(p.Seconds*float64(time.Second)).Round(10*time.Microsecond), p.Copied)
	return err
}
