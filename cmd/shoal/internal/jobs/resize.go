package jobs

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/job"
)

// shoal resize with a number of workers. The functions without a receiver are pure.

// resizeFlags are the flags of shoal resize. One goroutine uses them, that of the command; only run
// waits for the job. The functions of this file read the job as run has refreshed it.
type resizeFlags struct {
	noWait bool   // whether to ask, and not to wait for the workers
	json   bool   // whether to print JSON objects
	on     string // the workers on each host, such as "h1=2,h2=1", or "any"; "" = a size is given
}

// NewResizeCommand returns the command shoal resize.
func NewResizeCommand() *cobra.Command {
	var f resizeFlags
	cmd := &cobra.Command{
		Use:   "resize JOB N | JOB --on HOST=N,...",
		Short: "Give a running job another number of workers",
		Long: cli.Help(`Give a running job another number of workers while it trains.
The command ends when the job has N workers, or says why it will not.

New workers receive the model, the optimizer and the position in the data at the end of a step. With
fewer workers, those with the highest ranks are released at the end of a step. No step and no sample
is lost. The job must train in steps: shoal.torch.loader, job.steps, or client.Train in Go.
In a job that shoal run --auto has started, policies may change the size again: shoal set JOB size=N
keeps it from them.

With --on you say how many workers each host has. Beyond that number its youngest workers are
released, others start where they are missing, and a host that you leave out is left, as with shoal
drain. As long as that counts, nobody else changes the size, and policies do not. --on any ends it:
the job keeps its size, and hosts say themselves how many workers they take. A job that takes every
slot of its hosts (shoal run --grow) keeps a size that you give it, until --on any.`, cli.ExitCodes, "train"),
		Example: `  shoal resize train 6
  shoal resize train 2 --no-wait
  shoal resize train --on node1=2,node2=1
  shoal resize ~/runs/train 4 --json       by the directory of the run, one object a change`,
		Args:              cli.Arguments(1, 2),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 2) == (f.on != "") {
				return cli.Usagef("give a number of workers, or with --on one for each host")
			}
			if f.on != "" {
				return f.runOn(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
			}
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 || n > job.MaxWorkers {
				return workerCountError(args[1], args[0])
			}
			j, err := findResizable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), j, n)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// A negative number, such as -1, looks like a flag.
		if _, word, _ := strings.Cut(err.Error(), "unknown shorthand flag: "); len(word) > 1 &&
			word[1] >= '0' && word[1] <= '9' {
			return workerCountError(word[strings.LastIndex(word, " ")+1:], "JOB")
		}
		return cli.FlagError(cmd, err)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.on, "on", "",
		"workers on each host, such as node1=2,node2=1, or any: as the hosts say")
	flags.BoolVar(&f.noWait, "no-wait", false, "ask, and do not wait for the workers")
	flags.BoolVar(&f.json, "json", false,
		"print one JSON object a change, and a last one when the job has N workers")
	return cmd
}

// workerCountError returns the error for a word that is no valid number of workers; name is the job
// that the error suggests to stop.
func workerCountError(word, name string) error {
	return cli.Usagef(
		"%q is no number of workers; give 1 to %d, and to end the job use shoal stop %s", word,
		job.MaxWorkers, name)
}

// run asks a job for n workers, and waits until it has them unless --no-wait is given. It prints
// the changes of the job to out, and what delays them to notes.
func (f *resizeFlags) run(ctx context.Context, out, notes io.Writer, j *control.Job, n int) error {
	known, unplaced := failedWorkers(j), unplacedNotes{to: notes}
	g := goal{job: j, what: plural.Of(n, "worker"), noWait: f.noWait, json: f.json}
	g.ask = func() error {
		if err := j.Resize(ctx, n, cli.Requester()); err != nil {
			return fmt.Errorf("job %s keeps its size: %w", j.Name, err)
		}
		unplaced.tell(j)
		return nil
	}
	g.reached = func() (bool, error) {
		switch {
		case j.Want != n:
			return false, goalLostError(j, n, known)
		case j.Spares > 0 && j.Size < n && newestFailure(j, known) != "":
			fmt.Fprintf(notes, "shoal: %s; the job starts another after a while\n",
				newestFailure(j, known))
			known = failedWorkers(j)
		}
		unplaced.tell(j)
		return j.Size == n && j.Entering == 0, nil
	}
	return g.askAndWait(ctx, out)
}

// failedWorkers returns the numbers of the workers that have failed. Workers that shoal ends
// because another size was asked for are not among them.
func failedWorkers(j *control.Job) map[int]bool {
	failed := map[int]bool{}
	for _, w := range j.Workers {
		if w.Failed {
			failed[w.Worker] = true
		}
	}
	return failed
}

// newestFailure describes the failure of the newest worker that has failed and is not in known; ""
// if there is none.
func newestFailure(j *control.Job, known map[int]bool) string {
	for _, w := range slices.Backward(j.Workers) {
		if w.Failed && !known[w.Worker] {
			return fmt.Sprintf("worker %d %s; shoal logs %s --rank %[1]d shows its output",
				w.Worker, w.Ended, j.Name)
		}
	}
	return ""
}

// goalLostError returns the error that says why a job no longer wants the n workers that it was
// asked for. known has the workers that had failed before.
func goalLostError(j *control.Job, n int, known map[int]bool) error {
	why := fmt.Sprintf(": somebody else has asked for that since; shoal explain %s says who",
		j.Name)
	if failed := newestFailure(j, known); failed != "" {
		why = ", because " + failed
	}
	return fmt.Errorf("job %s now wants %s and not %d%s", j.Name, plural.Of(j.Want, "worker"), n,
		why)
}
