package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher"
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
what the script does after the loop is not done. Started again, with any number of workers, it goes
on from there.

The program must train in steps and make checkpoints: job.checkpoint(folder), in Go
Trainer.Checkpoint. Where the checkpoint cannot be made, training goes on, and the command says why.
A worker that ignores SIGTERM is killed 10 s after the checkpoint is sealed.`, "Exit codes: 0 the job is parked, 1 it is not, 2 wrong usage.", "checkpoints"),
		Example: `  shoal park train
  shoal park train && shoal run -f job.yaml    stop, and go on with the next sample
  shoal park train --json                  the result as an object`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := control.Find(cmd.Context(), args[0])
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
	ledger := newTail(launcher.LedgerPath(j.Dir))
	if err := j.Park(ctx, cli.Requester()); err != nil {
		return fmt.Errorf("job %s is not parked: %w", j.Name, err)
	}
	var result launcher.Result
	err := cli.Poll(ctx, func() (done bool, err error) {
		gone := launcherHasEnded(j)
		if err := j.Refresh(ctx); err == nil && j.ParkError != "" {
			return false, fmt.Errorf("job %s is not parked: %s", j.Name, j.ParkError)
		}
		result, err = launcher.ReadResult(j.Dir)
		if shown := ledger.readEntries(func(e launcher.Entry) error {
			return showEntry(out, e, asJSON)
		}); shown != nil {
			return false, shown
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) && gone:
			return false, fmt.Errorf("the launcher of job %s was killed, so there is no result; "+
				"its files are in %s", j.Name, j.Dir)
		case errors.Is(err, fs.ErrNotExist):
			return false, nil
		}
		return true, err
	})
	if ctx.Err() != nil {
		return fmt.Errorf("no longer waiting for job %s to be parked, which was asked for: %w",
			j.Name, err)
	}
	if err != nil {
		return err
	}
	if asJSON {
		err = json.NewEncoder(out).Encode(result)
	} else {
		_, err = fmt.Fprintln(out, resultText(result))
	}
	if err == nil && !result.Parked {
		err = fmt.Errorf("job %s has ended before it was parked", j.Name)
	}
	return err
}
