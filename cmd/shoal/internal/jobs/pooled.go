package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/pool/keeper"
	"github.com/shoal-ml/shoal/watch"
	"github.com/shoal-ml/shoal/watch/follow"
)

// What the pools of this host say of their jobs. One goroutine runs what is here, that of the
// command, so nothing is locked.

// pooledJob returns the job of a pool of this host that shoal explain is to speak of, whether there
// is one, and as keeper.FindJob who does not answer. name is what the command was given, dir the
// directory of the run that it means, "" = there is none. A run that began after the job of the
// pool was over is not of it.
func pooledJob(ctx context.Context, name, dir string) (found keeper.Job, is bool, silent error) {
	var started time.Time
	if record, err := runs.ReadRecord(dir); dir != "" && err == nil {
		started = record.Started
		if rundir.IsPath(name) {
			found, is = jobOfRun(ctx, dir)
			return found, is, nil
		}
	}
	found, is, silent = keeper.FindJob(ctx, name)
	v := found.Job
	is = is && (v.Dir == dir || !v.State.Over() || started.UnixMilli() < v.Over)
	return found, is, silent
}

// jobOfRun returns the job of a pool of this host whose last run is in a directory, and whether
// there is one. The run has the name of the job, with a number behind it where that was taken.
func jobOfRun(ctx context.Context, dir string) (found keeper.Job, is bool) {
	record, err := runs.ReadRecord(dir)
	if err != nil {
		return found, false
	}
	name := record.Spec.Name
	for _, id := range slices.Compact([]string{name, numbered.ReplaceAllString(name, "")}) {
		if found, is, _ = keeper.FindJob(ctx, id); is && found.Job.Dir == dir {
			return found, true
		}
	}
	return keeper.Job{}, false
}

// numbered matches the number after the name of a job or of a run.
var numbered = pattern.New(`-[1-9][0-9]*$`)

// findLive finds a running job as control.Find does. Where that is a run of a job of a pool which
// is called as another job of a pool, by the number after it, the name means that one.
func findLive(ctx context.Context, name string) (*control.Job, error) {
	j, err := control.Find(ctx, name)
	if err != nil || rundir.IsPath(name) || !numbered.MatchString(name) {
		return j, err
	}
	found, is, _ := keeper.FindJob(ctx, name)
	if owner, owned := jobOfRun(ctx, j.Dir); !is || !owned || owner.Job.ID == name {
		return j, nil
	}
	if found.Job.Dir != "" {
		if own, err := control.Find(ctx, found.Job.Dir); err == nil {
			return own, nil
		}
	}
	return nil, &control.Unknown{Name: name, Running: []string{j.Name}}
}

// findRunning finds a running job as findLive does. The error for one of a pool of this host that
// does not run here says what it does.
func findRunning(ctx context.Context, name string) (*control.Job, error) {
	j, err := findLive(ctx, name)
	if unknown := new(control.Unknown); errors.As(err, &unknown) && len(unknown.Matches) == 0 &&
		unknown.Silent == nil {
		err = notHere(ctx, name, orEnded(name, err))
	}
	return j, err
}

// orEnded returns err, which says that no running job has a name, and adds it where the newest run
// of that name has ended, or the run in the directory that the name is, also where its launcher was
// killed. It reads files of runs.
func orEnded(name string, err error) error {
	dir, which := name, "the run there"
	shown := cli.Visible(name, false)
	if !rundir.IsPath(name) {
		which = "the newest run of that name"
		var none error
		if dir, none = runs.Newest(name); none != nil {
			return err
		}
	}
	if hasResult(dir) {
		return fmt.Errorf("%w; %s has ended: shoal explain %s says how", err, which, shown)
	}
	record, unread := runs.ReadRecord(dir)
	if unread != nil || runs.Lives(dir) {
		return err
	}
	left := "no process of it is left here, so that it can be started again"
	if !proc.IsCleared(record.Run) {
		left = "processes of its workers may still run here, which the next start of a job ends"
	}
	return fmt.Errorf("%w; %s%s, and %s; shoal explain %s shows what it did", err, which,
		strings.TrimPrefix(watch.NoResult(dir).Text, "it"), left, shown)
}

// notHere returns the error for a job of which there is no run here: what it does in a pool of this
// host, or err where there is no such job, with the keepers that do not answer.
func notHere(ctx context.Context, name string, err error) error {
	found, is, silent := keeper.FindJob(ctx, name)
	v := found.Job
	switch {
	case silent != nil:
		return fmt.Errorf("%w; %w", err, silent)
	case !is:
		return err
	case v.State.Over():
		return fmt.Errorf("job %s of pool %s is over, it has %s; shoal explain %[1]s says more",
			name, found.Pool, v.State)
	case v.Lead != "" && v.State != pool.Parked:
		return fmt.Errorf("job %s of pool %s is %s, and host %s leads it: ask there, or "+
			"again in a moment", name, found.Pool, v.State, v.Lead)
	}
	return fmt.Errorf("job %s of pool %s is %s, and has no workers now; shoal explain %[1]s says "+
		"why", name, found.Pool, v.State)
}

// findChangeable finds a running job as findRunning does. It refuses one of which too few hosts are
// left: nothing of it changes before a person has recovered it.
func findChangeable(ctx context.Context, name string) (*control.Job, error) {
	j, err := findRunning(ctx, name)
	if err == nil && j.State == api.Stuck {
		return nil, fmt.Errorf("job %s stays as it is: %s", j.Name, watch.NeedText(j.Job))
	}
	return j, err
}

// findResizable finds a running job as findChangeable does. It refuses one of a pool of this host,
// which alone changes its size.
func findResizable(ctx context.Context, name string) (*control.Job, error) {
	j, err := findChangeable(ctx, name)
	if err != nil {
		return nil, err
	}
	if found, is := jobOfRun(ctx, j.Dir); is && !found.Job.State.Over() {
		return nil, fmt.Errorf("job %s keeps its size: only pool %s changes it, within what shoal "+
			"submit -n has asked for; shoal explain %[1]s says why it is so", found.Job.ID,
			found.Pool)
	}
	return j, nil
}

// runOfPooled returns the directory of the run of a name, of which dir is the newest. That is
// another one where a pool has a job of this name, and the run is of another job of a pool.
func runOfPooled(ctx context.Context, name, dir string) (string, error) {
	found, is, _ := keeper.FindJob(ctx, name)
	if !is {
		return dir, nil
	}
	if owner, owned := jobOfRun(ctx, dir); !owned || owner.Job.ID == name {
		return dir, nil
	}
	if err := follow.CheckRunDir(found.Job.Dir); err != nil {
		return "", notHere(ctx, name, err)
	}
	return found.Job.Dir, nil
}

// poolEntry is a decision of a pool about a job, as shoal explain --json prints it.
type poolEntry struct {
	Time time.Time `json:"time"`
	Pool string    `json:"pool"`
	Job  string    `json:"job"`
	pool.Change
}

// poolState is the last line that shoal explain --json prints of a job of a pool.
type poolState struct {
	Time    time.Time        `json:"time"`
	Pool    string           `json:"pool"`
	Job     string           `json:"job"`
	State   pool.State       `json:"state"`
	Because string           `json:"because"`
	Waits   string           `json:"waits,omitempty"`
	Expect  pool.Expectation `json:"expect"`
	Over    int64            `json:"over,omitempty"`
	Error   string           `json:"error,omitempty"`
}

// encodePooled prints what a pool has decided about a job to out, an object a decision, and one
// that says how the job is.
func encodePooled(out io.Writer, j keeper.Job) error {
	e := json.NewEncoder(out)
	for _, c := range j.Job.Changes {
		if err := e.Encode(poolEntry{time.UnixMilli(c.At).UTC(), j.Pool, j.Job.ID, c}); err != nil {
			return err
		}
	}
	v := j.Job
	return e.Encode(poolState{time.UnixMilli(j.Now).UTC(), j.Pool, v.ID, v.State, v.Because,
		v.Waits, v.Expect, v.Over, v.Error})
}

// pooledText says in lines what a pool has decided about a job, and how the job is.
func pooledText(j keeper.Job) string {
	var b strings.Builder
	v := j.Job
	asks := plural.Of(v.Max, "worker")
	if v.Min < v.Max {
		asks = fmt.Sprintf("%d to %s", v.Min, asks)
	}
	if v.Priority != 0 {
		asks += fmt.Sprintf(", priority %d", v.Priority)
	}
	fmt.Fprintf(&b, "job %s of pool %s: %s, submitted %s\n", v.ID, j.Pool, asks,
		time.UnixMilli(v.Submitted).Format(time.DateTime))
	for _, c := range v.Changes {
		fmt.Fprintf(&b, "  %9s  %s\n", fmt.Sprintf("+%.2f s", seconds(c.At-v.Submitted)),
			poolChangeText(c, v))
	}
	switch {
	case v.State.Over():
		fmt.Fprintf(&b, "  %9s  %s\n", fmt.Sprintf("+%.2f s", seconds(v.Over-v.Submitted)),
			overText(v))
	case v.Waits != "":
		fmt.Fprintf(&b, "it is %s: %s\n", v.State, v.Why())
	default:
		fmt.Fprintf(&b, "it is %s in %s: %s\n", v.State, plural.Of(v.Workers, "slot"), v.Why())
	}
	if x := v.Share; x != nil && x.Expected > 0 {
		fmt.Fprintf(&b, "%s\n", shareText(x))
	}
	return b.String()
}

// shareText says what a limit of what a job sends was to bring, and what it has brought.
func shareText(x *pool.Share) string {
	text := fmt.Sprintf("a limit of what its hosts send: steps of %s expected, %s before",
		plural.Seconds(x.Expected), plural.Seconds(x.Before))
	if x.Measured > 0 {
		text += ", " + plural.Seconds(x.Measured) + " with it"
	}
	if x.Limit == 0 {
		text += "; it has ended: " + x.Because
	}
	return text
}

// poolChangeText says one decision of a pool about a job: what and why, what was expected, and what
// came of it.
func poolChangeText(c pool.Change, v pool.JobView) string {
	text := fmt.Sprintf("from %d to %s: %s", c.From, plural.Of(c.To, "worker"), c.Because)
	var expected []string
	if pause := plural.Seconds(seconds(c.Expected.Pause)); c.Expected.Pause > 0 && c.From == 0 {
		expected = append(expected, "a start in "+pause)
	} else if c.Expected.Pause > 0 {
		expected = append(expected, "a pause of "+pause)
	}
	if x := c.Expected; x.End > 0 {
		if c.Before > 0 {
			expected = append(expected, "its end moves from "+timeText(c.Before, v)+" to "+
				timeText(x.End, v))
		} else {
			expected = append(expected, "its end at "+timeText(x.End, v))
		}
	}
	if len(expected) > 0 {
		text += "; expected: " + strings.Join(expected, ", ")
	}
	switch {
	case c.Outcome != "":
		text += "; it did not come: " + c.Outcome
	case c.Done > 0:
		text += "; it came after " + plural.Seconds(seconds(c.Done-c.At))
	default:
		text += "; it has not come yet"
	}
	return text
}

// timeText returns a time in milliseconds as people read it, with its date if that is another one
// than that of the submission.
func timeText(at int64, v pool.JobView) string {
	return timeOrDate(time.UnixMilli(at), time.UnixMilli(v.Submitted))
}

// overText says how a job of a pool has ended, and whether that was expected.
func overText(v pool.JobView) string {
	text := fmt.Sprintf("it has %s", v.State)
	switch {
	case v.State == pool.Failed:
		text += ": " + v.Error
	case v.Because != string(v.State):
		text = "it was " + v.Because
	}
	came := slices.DeleteFunc(slices.Clone(v.Changes), func(c pool.Change) bool {
		return c.Outcome != ""
	})
	if n := len(came); n > 0 && v.State == pool.Ended {
		if x := came[n-1].Expected; x.End > 0 {
			text += fmt.Sprintf("; expected between %s and %s", timeText(x.Low, v),
				timeText(x.High, v))
		}
	}
	return text
}

// seconds returns milliseconds as seconds.
func seconds(ms int64) float64 { return float64(ms) / 1000 }
