package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/node"
)

// resizeFlags are the flags of shoal resize.
type resizeFlags struct {
	noWait bool
	json   bool
}

func newResizeCommand() *cobra.Command {
	var f resizeFlags
	cmd := &cobra.Command{
		Use:   "resize JOB N",
		Short: "Give a running job another number of workers",
		Long: `Give a running job another number of workers, while it trains.

New workers start, prepare themselves while the others train, and receive model, optimizer and position in the data when
a step ends. With fewer, those with the highest ranks are released when a step ends: their training loops end. No step
and no sample is lost. The job must train in steps: shoal.torch.loader, job.steps, or client.Train in Go.

The command ends when the job has N workers, or says why it will not.`,
		Example: `  shoal resize train 6
  shoal resize train 2 --no-wait
  shoal resize ~/runs/train 4 --json       with the directory of the run, and an object a change`,
		Args:              between(2, 2),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 || n > job.MaxWorkers {
				return usageError("%q is no number of workers; give 1 to %d, and to end the job use shoal stop %s", args[1], job.MaxWorkers, args[0])
			}
			j, err := control.Find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), j, n)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.noWait, "no-wait", false, "ask, and do not wait for the workers")
	flags.BoolVar(&f.json, "json", false, "print one JSON object a change, and a last one when the job has N workers")
	return cmd
}

// resized is the last line of shoal resize --json.
type resized struct {
	Job        string  `json:"job"`
	Workers    int     `json:"workers"`
	Generation uint64  `json:"generation"`
	Seconds    float64 `json:"seconds"`
}

func (f *resizeFlags) run(ctx context.Context, out, notes io.Writer, j *control.Job, n int) error {
	told := 0
	ledger, known, start := newTail(node.Ledger(j.Dir)), endedWorkers(j), time.Now()
	if err := j.Resize(ctx, n, myself()); err != nil {
		return fmt.Errorf("job %s keeps its size: %w", j.Name, err)
	}
	if f.noWait {
		return nil
	}
	err := again(ctx, func() (bool, error) {
		err := j.Refresh(ctx)
		if shown := ledger.entries(func(e node.Entry) error { return showEntry(out, e, f.json) }); shown != nil {
			return false, shown
		}
		switch {
		case errors.Is(err, control.ErrEnded):
			return false, fmt.Errorf("job %s has ended before it had %s; shoal explain %[1]s says how", j.Name, counted(n, "worker"))
		case err != nil:
			return false, err
		case j.Want != n:
			return false, notReached(j, n, known)
		case j.NoRoom > told:
			told = j.NoRoom
			fmt.Fprintf(notes, "shoal: no host has a free slot for %s; waiting for one: %s\n", counted(told, "worker"), howToJoin(j))
		}
		return j.Size == n && j.Entering == 0, nil
	})
	if ctx.Err() != nil {
		return fmt.Errorf("no longer waiting for job %s, which still goes to %s: %w", j.Name, counted(n, "worker"), err)
	}
	if err != nil {
		return err
	}
	took := time.Since(start)
	if f.json {
		return json.NewEncoder(out).Encode(resized{j.Name, n, j.Generation, took.Seconds()})
	}
	_, err = fmt.Fprintf(out, "job %s has %s after %v\n", j.Name, counted(n, "worker"), took.Round(time.Millisecond))
	return err
}

// howToJoin says how a job gets another host.
func howToJoin(j *control.Job) string {
	if j.Join == "" {
		return "this job takes no other hosts, since it was not started with --listen"
	}
	return "shoal agent --join " + j.Join + " --token-file FILE"
}

func showEntry(out io.Writer, e node.Entry, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(e)
	}
	_, err := fmt.Fprintln(out, e.Event)
	return err
}

func endedWorkers(j *control.Job) int { return len(j.Workers) - j.Alive() }

// notReached says why a job no longer wants the size that it was asked for. known is how many of its workers had ended before.
func notReached(j *control.Job, n, known int) error {
	if endedWorkers(j) > known {
		for i := len(j.Workers) - 1; i >= 0; i-- {
			if w := j.Workers[i]; !w.Running {
				return fmt.Errorf("job %s now wants %s and not %d, because worker %d %s; shoal logs %[1]s --rank %[4]d shows its output",
					j.Name, counted(j.Want, "worker"), n, w.Worker, w.How)
			}
		}
	}
	return fmt.Errorf("job %s now wants %s and not %d: somebody else has asked for that since; shoal explain %[1]s says who", j.Name, counted(j.Want, "worker"), n)
}
