package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/pool/keeper"
	"github.com/shoal-ml/shoal/watch"
)

// shoal stop. One goroutine runs what is here, that of the command, so nothing is locked.

// NewStopCommand returns the command shoal stop.
func NewStopCommand() *cobra.Command {
	var f stopFlags
	cmd := &cobra.Command{
		Use:   "stop JOB",
		Short: "End a running job, at the end of a step",
		Long: cli.Help(`End a running job, at the end of a step, and say how it ended.
With --now SIGTERM comes at once, and 2 s later SIGKILL.

  kind of job               what its workers get
  trains in steps           their loops end as at the end of the data, with a last checkpoint
                            if the job writes any; the scripts go on, for example to save the
                            model, for as long as --grace says, or without a limit
  any other                 SIGTERM, and 12 s later SIGKILL`, "Exit codes: 0 the job is gone, 1 it is not, 2 wrong usage. Those of shoal run are in its own help.", "train"),
		Example: `  shoal stop train
  shoal stop train --grace 2m              end scripts that still run after two minutes
  shoal stop train --now
  shoal stop train --json                  the result as an object`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeStop,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch given := cmd.Flags().Changed("grace"); {
			case given && f.now:
				return cli.Usagef("--now and --grace say when what still runs is ended: give one " +
					"of them")
			case given && f.grace <= 0:
				return cli.Usagef("--grace %v: give a time, such as 2m; --now ends the job at once",
					f.grace)
			}
			j, err := findLive(cmd.Context(), args[0])
			if stopped, failed := stopWaiting(cmd, args[0], err, f); stopped {
				return failed
			}
			if unknown := new(control.Unknown); errors.As(err, &unknown) &&
				len(unknown.Matches) == 0 {
				return orEnded(args[0], err)
			}
			if err != nil {
				return err
			}
			return stopJob(cmd.Context(), cmd.OutOrStdout(), j, f)
		},
	}
	cmd.Flags().BoolVar(&f.now, "now", false, "do not wait for the end of the step")
	cmd.Flags().DurationVar(&f.grace, "grace", 0,
		"end what still runs after this time, such as 2m (default: no limit in a job in steps)")
	cmd.Flags().BoolVar(&f.json, "json", false,
		"print one JSON object a change, and a last one with the result")
	return cmd
}

// stopWaiting stops a job of a pool of this host that no launcher here answers for, as it waits for
// slots, is being started, or is led by another host. It returns false if there is none, but true
// with an error if a keeper that may have it does not answer. err is of the search among those that
// run.
func stopWaiting(cmd *cobra.Command, name string, err error, f stopFlags) (bool, error) {
	if unknown := new(control.Unknown); !errors.As(err, &unknown) || len(unknown.Matches) > 0 {
		return false, nil
	}
	found, is, silent := keeper.FindJob(cmd.Context(), name)
	if silent != nil {
		return true, fmt.Errorf("%w; %w", orEnded(name, err), silent)
	}
	if !is {
		return false, nil
	}
	was := found.Job.State
	if f.grace > 0 && was != pool.Waiting && was != pool.Parked && !was.Over() {
		return true, cli.Usagef("--grace %v: only the host that leads job %s can end what still "+
			"runs then, and that is %s: run this there once the job runs, or leave --grace out",
			f.grace, name, found.Job.Lead)
	}
	err = keeper.Call(cmd.Context(), found.Pool, keeper.PathStop,
		keeper.Ask{Job: name, Who: cli.Requester(), Now: f.now}, &struct{}{})
	if err != nil {
		return true, err
	}
	if f.json {
		return true, json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]string{
			"job": name, "pool": found.Pool, "was": string(was)})
	}
	text := "is stopped"
	switch {
	case was == pool.Waiting:
		text = "is stopped before it began"
	case found.Job.Lead != "" && was != pool.Parked:
		text = "is asked to end: host " + found.Job.Lead + " leads it, and shoal queue shows " +
			"when it has"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "job %s %s\n", name, text)
	return true, err
}

// stopFlags are the flags of shoal stop.
type stopFlags struct {
	now, json bool          // whether not to wait for the end of the step; to print JSON objects
	grace     time.Duration // 0 = as long as the workers want
}

// patience is after which time people are told for what shoal stop waits.
const patience = 10 * time.Second

// stopJob asks a job to end, prints its changes to out until its result is there, and then prints
// that. With now the workers do not complete their step. After the grace what still runs is ended.
// It polls on the goroutine of the command, and the end of ctx ends the wait, not the job.
func stopJob(ctx context.Context, out io.Writer, j *control.Job, f stopFlags) error {
	ledger := newTail(runs.LedgerPath(j.Dir))
	if err := j.Stop(ctx, f.now, cli.Requester()); err != nil && !errors.Is(err, control.ErrEnded) {
		return fmt.Errorf("job %s is not stopped: %w", j.Name, err)
	}
	var result runs.Result
	began, told, hurried := time.Now(), f.json || f.now || f.grace > 0, f.now || f.grace == 0
	err := cli.Poll(ctx, func() (done bool, err error) {
		if !hurried && time.Since(began) > f.grace {
			hurried = true
			if err := j.Stop(ctx, true, cli.Requester()); err != nil &&
				!errors.Is(err, control.ErrEnded) {
				return false, err
			}
		}
		if !told && time.Since(began) > patience {
			told = true
			fmt.Fprintln(out, stopWaitText(ctx, j))
		}
		result, done, err = readEnd(j)
		if shown := ledger.readEntries(func(e runs.Entry) error {
			return showEntry(out, e, f.json)
		}); shown != nil {
			return false, shown
		}
		return done, err
	})
	if ctx.Err() != nil {
		return fmt.Errorf("no longer waiting for the end of job %s, which was asked for: %w",
			j.Name, err)
	}
	if err != nil {
		return err
	}
	return printEnd(out, result, f.json)
}

// stopWaitText says why the workers of a job that was asked to end still run, and what ends them.
// It asks the launcher.
func stopWaitText(ctx context.Context, j *control.Job) string {
	text := "workers still run: they complete their step, or save the model after the loop, say"
	if j.Refresh(ctx) == nil && j.State == api.Stuck {
		text = "workers still run, since their step does not end: " + watch.NeedText(j.Job)
	}
	return fmt.Sprintf("%s; shoal stop %s --now ends them in that", text, j.Name)
}

// readEnd reads the result that the launcher of a job on this machine leaves. done says that it is
// there; the error, that there will be none.
func readEnd(j *control.Job) (r runs.Result, done bool, err error) {
	gone := launcherHasEnded(j)
	r, err = runs.ReadResult(j.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && gone:
		return r, false, fmt.Errorf("it is not known how job %s has ended: %s; its files are in %s",
			j.Name, watch.NoResult(j.Dir).Text, j.Dir)
	case errors.Is(err, fs.ErrNotExist):
		return r, false, nil
	}
	return r, err == nil, err
}

// printEnd writes the result of a job whose end was asked for to out. Its error says that the job
// goes on, where another host has come to lead it before it did what it was asked for.
func printEnd(out io.Writer, r runs.Result, asJSON bool) (err error) {
	if asJSON {
		err = json.NewEncoder(out).Encode(r)
	} else if r.GoesOn == "" {
		_, err = fmt.Fprintln(out, resultText(r))
	}
	if err == nil && r.GoesOn != "" {
		err = fmt.Errorf("job %s goes on: this host has left it, and host %s leads it now; ask "+
			"there", r.Job, r.GoesOn)
	}
	return err
}

// launcherHasEnded reports whether the launcher of a job on this machine has ended: no process has
// its run locked, also none that cannot be seen, as in a container; nor does that with its number
// have the run open, as on a disk without locks. Numbers are given again, so that one alone says
// nothing. Ask it before reading a file of the run: what is missing then will never be written.
func launcherHasEnded(j *control.Job) bool {
	return !runs.Lives(j.Dir) && !proc.HasOpen(j.PID, runs.LedgerPath(j.Dir))
}

// resultText says in a sentence how a job ended.
func resultText(r runs.Result) string {
	how := "ended well"
	if r.GoesOn != "" {
		how = "goes on under host " + r.GoesOn + ", and this host has left it"
	} else if !r.OK {
		how, _, _ = strings.Cut(r.Error, "\n")
		how = cmp.Or(strings.TrimPrefix(how, "job "+r.Job+" "),
			"failed, and its result does not say why")
	} else if r.Parked {
		how = "is parked, and goes on where it is started again"
	} else if r.StoppedBy != "" {
		how = "was stopped by " + r.StoppedBy + " and ended well"
	}
	text := fmt.Sprintf("%s %s, after %.1f s",
		strings.TrimSpace("job "+r.Job), how, r.Seconds)
	if r.Dir != "" {
		text += "; its files are in " + r.Dir
	}
	return text
}
