package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/watch"
)

// How a command waits for what it has asked of a job, and shows the changes on the way. One
// goroutine runs what is here, that of the command, so nothing is locked.

// goal is what a running job is asked for, and comes to by and by. One goroutine uses it, that of
// the command, which also calls ask and reached; only askAndWait waits for the job.
type goal struct {
	job  *control.Job // refreshed by askAndWait
	what string       // the goal for people, such as "4 workers"
	ask  func() error // asks the job for the goal
	// reached reports, after each look at the job, whether the job has what it was asked for. Its
	// error says why the job will not come to that.
	reached func() (bool, error)
	noWait  bool // whether to ask only
	json    bool // whether to print JSON objects
	// lost is what to say too where the launcher is gone; "" = nothing.
	lost string
	// last makes the last line with --json, of the seconds that it took; nil = it is an atGoal.
	last func(seconds float64) any
}

// atGoal is the last line with --json.
type atGoal struct {
	Job        string  `json:"job"`
	Mesh       string  `json:"mesh,omitempty"` // absent where the job has none
	Workers    int     `json:"workers"`        // number of members
	Generation uint64  `json:"generation"`
	Seconds    float64 `json:"seconds"` // from the request on
}

// askAndWait asks the job for the goal, and then polls the job and prints each of its changes to
// out, until the job has what it was asked for, will not get it, or ctx ends.
func (g *goal) askAndWait(ctx context.Context, out io.Writer) error {
	j, ledger, start := g.job, newTail(runs.LedgerPath(g.job.Dir)), time.Now()
	// failure returns an error as it is, or says what it means that the launcher is gone.
	failure := func(err error) error {
		if errors.Is(err, control.ErrEnded) {
			return fmt.Errorf("job %s has ended before it had %s; shoal explain %[1]s says "+
				"how%[3]s", j.Name, g.what, g.lost)
		}
		return err
	}
	if err := g.ask(); err != nil || g.noWait {
		return failure(err)
	}
	err := cli.Poll(ctx, func() (bool, error) {
		err := j.Refresh(ctx)
		if shown := ledger.readEntries(func(e runs.Entry) error {
			if !g.json && e.Change != nil && (e.What == "route" || !e.Change.IsNews()) {
				return nil
			}
			return showEntry(out, e, g.json)
		}); shown != nil {
			return false, shown
		}
		if err != nil {
			return false, err
		}
		return g.reached()
	})
	if ctx.Err() != nil {
		return fmt.Errorf("no longer waiting for job %s, which still goes to %s: %w", j.Name,
			g.what, err)
	}
	if err != nil {
		return failure(err)
	}
	took := time.Since(start)
	if g.json && g.last != nil {
		return json.NewEncoder(out).Encode(g.last(took.Seconds()))
	}
	if g.json {
		return json.NewEncoder(out).Encode(
			atGoal{j.Name, j.Mesh, j.Size, j.Generation, took.Seconds()})
	}
	_, err = fmt.Fprintf(out, "job %s has %s after %v\n", j.Name, g.what,
		took.Round(time.Millisecond))
	return err
}

// unplacedNotes tells people of the workers that a job is to have and no host has room for. One
// goroutine uses it, that of the command.
type unplacedNotes struct {
	to   io.Writer
	told int // the most such workers that people were told of
}

// tell says once, for each number of them, that workers of a job have no place.
func (u *unplacedNotes) tell(j *control.Job) {
	if j.Unplaced > u.told {
		u.told = j.Unplaced
		fmt.Fprintf(u.to, "shoal: %s\n", watch.UnplacedText(j.Job))
	}
}

// showEntry prints one entry of the ledger to out. asJSON prints it as an object.
func showEntry(out io.Writer, e runs.Entry, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(e)
	}
	_, err := fmt.Fprintln(out, cli.Visible(e.Event.String(), false))
	return err
}
