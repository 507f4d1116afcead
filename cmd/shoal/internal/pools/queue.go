package pools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// shoal queue. One goroutine runs what is here, that of the command, so nothing is locked.

// NewQueueCommand returns the command shoal queue.
func NewQueueCommand() *cobra.Command {
	var name string
	var all, watch, asJSON bool
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Show the jobs of a pool",
		Long: cli.Help(`Show the jobs of a pool: those that have slots, and those that wait, with the reason. What is left
of a job, and when it ends, is shown if the job has said how many steps it has, or if jobs of the
same command have ended before.

  state      what the job does
  waiting    it has no slots
  starting   its processes are being started
  running    it has the workers that it is to have
  resizing   it gets another number of workers when its step ends
  parking    it makes a checkpoint, at which it is ended
  parked     it was ended there, and goes on when it gets slots; after shoal park, by shoal resume
  stopping   somebody has asked for its end

With --all, jobs that are over are shown too: ended, failed and stopped.`,
			cli.ExitCodes, "pool"),
		Example: `  shoal queue
  shoal queue --all          also jobs that are over
  shoal queue --watch        again whenever something changes, until Ctrl-C
  shoal queue --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := queueView{pool: name, path: keeper.PathQueue, json: asJSON}
			if all {
				q.path += "?all"
			}
			err := q.show(cmd.Context(), cmd.OutOrStdout())
			for err == nil && watch {
				if err = q.wait(cmd.Context()); err == nil {
					err = q.show(cmd.Context(), cmd.OutOrStdout())
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also show jobs that are over")
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again whenever it changes, until Ctrl-C")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the pool as a JSON object")
	addPool(cmd, &name)
	return cmd
}

// queueView is what shoal queue shows, on the goroutine of the command.
type queueView struct {
	pool, path string // the pool, "" = the only one; what its keeper is asked
	json       bool
	last       []byte // what was printed last, as an object without its time; nil = nothing
}

// wait waits a moment; the error is the cause of the end of ctx.
func (q *queueView) wait(ctx context.Context) error {
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// show asks for the jobs, and prints them to out if that is something else than the last time.
func (q *queueView) show(ctx context.Context, out io.Writer) error {
	var s keeper.State
	err := call(ctx, q.pool, q.path, nil, &s)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if q.json {
		err = json.NewEncoder(&b).Encode(s)
	} else if len(s.Jobs) == 0 {
		fmt.Fprintf(&b, "no job waits or runs in pool %s; shoal queue --all shows ended ones\n",
			s.Pool)
	} else {
		err = cli.Table(&b, queueRows(s))
	}
	seen := b.Bytes()
	if err == nil && q.json { // that it is later is no change
		s.Now = 0
		seen, err = json.Marshal(s)
	}
	if err != nil || bytes.Equal(q.last, seen) {
		return err
	}
	if q.last != nil && !q.json {
		fmt.Fprintln(out)
	}
	q.last = seen
	_, err = out.Write(b.Bytes())
	return err
}

// queueRows returns the table of the jobs of a pool.
func queueRows(s keeper.State) [][]string {
	rows := [][]string{{"JOB", "STATE", "WORKERS", "ASKS", "DONE", "LEFT", "ENDS", "WHY"}}
	for _, j := range s.Jobs {
		asks := strconv.Itoa(j.Min)
		if j.Max > j.Min {
			asks += "-" + strconv.Itoa(j.Max)
		}
		done, left, ends := "-", "-", "-"
		switch {
		case j.Goal > 0:
			done = fmt.Sprintf("%d %%", 100*min(j.Steps, j.Goal)/j.Goal)
		case j.Steps > 0:
			done = plural.Of(int(j.Steps), "step")
		}
		if x := j.Expect; x.End > s.Now && !j.State.Over() {
			left, ends = formatSpread(x.End-s.Now, (x.High-x.Low)/2), clock(x.End, s.Now)
		}
		why, _, _ := strings.Cut(j.Why(), "\n") // explain has the rest
		if why == string(j.State) {
			why = ""
		}
		rows = append(rows, []string{j.ID, string(j.State), strconv.Itoa(j.Workers), asks, done,
			left, ends, cli.OrDash(why)})
	}
	return rows
}

// formatSpread returns a time with its spread, both in milliseconds, as people read it.
func formatSpread(ms, spread int64) string {
	unit, name := int64(1000), "s"
	switch {
	case ms >= 10*3600*1000:
		unit, name = 3600*1000, "h"
	case ms >= 10*60*1000:
		unit, name = 60*1000, "min"
	}
	round := func(n int64) int64 { return (n + unit/2) / unit }
	return fmt.Sprintf("%d %s ± %d", round(ms), name, round(spread))
}
