package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// shoal park. One goroutine runs what is here, that of the command, so nothing is locked.

// NewParkCommand returns the command shoal park.
func NewParkCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "park JOB",
		Short: "End a running job so that it can go on later",
		Long: cli.Help(`End a running job so that it can go on later, with the next sample.
When its step ends the job makes a checkpoint, and its workers are ended before their loops go on:
what the script does after the loop is not run. Started again, with any number of workers, the job
goes on from there.

The program must train in steps and make checkpoints: job.checkpoint(folder), in Go
Trainer.Checkpoint. If the checkpoint cannot be made, training goes on, and the command says why.
A worker that ignores SIGTERM is killed 10 s after the checkpoint is sealed.

A job of a pool gets no slots until shoal resume. A job that waits is kept from starting. It may run
on any host of the pool.`, "Exit codes: 0 the job is parked, 1 it is not, 2 wrong usage.", "checkpoints"),
		Example: `  shoal park train
  shoal park train && shoal run -f job.yaml    stop, and go on with the next sample
  shoal park big && shoal resume big       a job of a pool
  shoal park train --json                  the result as an object`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeStop,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, is, _ := keeper.FindJob(cmd.Context(), args[0]) // findRunning says who is silent
			if is && !found.Job.State.Over() {
				return parkPooled(cmd.Context(), cmd.OutOrStdout(), found, asJSON)
			}
			j, err := findChangeable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return parkJob(cmd.Context(), cmd.OutOrStdout(), j, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print one JSON object a change, and a last one with the result")
	return cmd
}

// parkJob asks for a job to be parked, prints its changes to out until its result is there, and
// then prints that. It polls on the goroutine of the command, and the end of ctx ends the wait.
func parkJob(ctx context.Context, out io.Writer, j *control.Job, asJSON bool) error {
	ledger := newTail(runs.LedgerPath(j.Dir))
	if err := j.Park(ctx, cli.Requester()); err != nil {
		return fmt.Errorf("job %s is not parked: %w", j.Name, err)
	}
	var result runs.Result
	err := cli.Poll(ctx, func() (done bool, err error) {
		if err := j.Refresh(ctx); err == nil && j.ParkError != "" {
			return false, fmt.Errorf("job %s is not parked: %s", j.Name, j.ParkError)
		}
		result, done, err = readEnd(j)
		if shown := ledger.readEntries(func(e runs.Entry) error {
			return showEntry(out, e, asJSON)
		}); shown != nil {
			return false, shown
		}
		return done, err
	})
	if ctx.Err() != nil {
		return fmt.Errorf("no longer waiting for job %s to be parked, which was asked for: %w",
			j.Name, err)
	}
	if err != nil {
		return err
	}
	if err = printEnd(out, result, asJSON); err == nil && !result.Parked {
		err = fmt.Errorf("job %s has ended before it was parked", j.Name)
	}
	return err
}

// parkPooled asks the pool of a job to park it, and waits until it has no processes or the pool
// says why it goes on. It polls on the goroutine of the command, and the end of ctx ends the wait.
func parkPooled(ctx context.Context, out io.Writer, j keeper.Job, asJSON bool) error {
	name, asked := j.Job.ID, false
	err := cli.Poll(ctx, func() (done bool, err error) {
		if !asked {
			asked = true
			err = keeper.Call(ctx, j.Pool, keeper.PathPark, keeper.Ask{Job: name,
				Who: cli.Requester()}, &struct{}{})
			if err != nil {
				return false, err
			}
		}
		j = keeper.Job{Pool: j.Pool} // an answer leaves out what is empty
		err = keeper.Call(ctx, j.Pool, keeper.PathJob+"?name="+name, nil, &j)
		v := j.Job
		switch {
		case err != nil:
			return false, err
		case v.State.Over():
			return false, fmt.Errorf("job %s has ended before it was parked: it has %s", name,
				v.State)
		case v.ParkedBy == "":
			return false, fmt.Errorf("job %s is not parked: %s", name,
				strings.TrimPrefix(v.Because, "it was not parked: "))
		}
		return v.Waits != "", nil
	})
	if ctx.Err() != nil {
		return fmt.Errorf("no longer waiting for job %s to be parked, which was asked for: %w",
			name, err)
	}
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(out).Encode(map[string]string{"job": name, "pool": j.Pool,
			"state": string(j.Job.State), "parked_by": j.Job.ParkedBy})
	}
	text := "is parked, and goes on with the next sample after shoal resume " + name
	if j.Job.State == pool.Waiting {
		text = "waits, and does not start before shoal resume " + name
	}
	_, err = fmt.Fprintf(out, "job %s %s\n", name, text)
	return err
}

// NewResumeCommand returns the command shoal resume.
func NewResumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resume JOB",
		Short: "Let a parked job of a pool go on",
		Long: cli.Help(`Let a job of a pool go on that shoal park has ended or kept from starting: it gets slots as all
others do, and goes on with the next sample. Another job is started again with shoal run.`,
			cli.ExitCodes, "pool"),
		Example: `  shoal resume big
  shoal park big && shoal resume big
  shoal resume big && shoal queue          also for what it waits now`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeParked,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, name := cmd.Context(), ""
			found, is, silent := keeper.FindJob(ctx, args[0])
			if silent != nil {
				return fmt.Errorf("no pool that answers has a job called %s; %w",
					cli.Visible(args[0], false), silent)
			}
			if is {
				name = found.Pool
			}
			name, err := keeper.Find(name, "the name of a job that one of them has")
			if no := new(pool.UsageError); errors.As(err, &no) {
				return cli.AsUsage(no)
			}
			if err != nil {
				return fmt.Errorf("%w; a job that no pool has goes on when it is started "+
					"again, by the same shoal run", err)
			}
			if err := keeper.Call(ctx, name, keeper.PathResume, keeper.Ask{Job: args[0],
				Who: cli.Requester()}, &struct{}{}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "job %s goes on when the pool has slots for "+
				"it; shoal queue shows it\n", args[0])
			return err
		},
	}
}
