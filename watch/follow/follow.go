// Package follow brings to package watch what it shows: it reads the directory of a run, again and
// again while the run lasts, and asks its launcher. It only reads. Files may be torn, foreign or of
// a newer version; what they are not is said beside what they are.
package follow

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/watch"
)

// maxSmall is how many bytes are read of the files that are one object.
const maxSmall = 16 << 20

// endPatience is how long after the last answer of a launcher it may write the result of the run.
const endPatience = 5 * time.Second

// seekPause is how long a launcher that was not found is not looked for again.
const seekPause = 5 * time.Second

// Follower knows what a run has come to. Open makes one; but for Log, one goroutine at a time uses
// it, and there is nothing to close. Its methods read files, and Poll asks the launcher too.
type Follower struct {
	Run    *watch.Run
	dir    string
	live   *control.Job // nil = the job does not run, or does not answer
	why    string       // it does not answer
	sought time.Time    // when the job was last looked for
	job    bool         // job.json was read
	last   time.Time    // when the launcher has answered last; zero = never

	sense, events, metrics lines
}

// Open returns a Follower of the run in a directory, of which it has read nothing yet. live is its
// job; nil = it does not run, or it does not answer, and silent says why. An error says that the
// directory is none of a run.
func Open(dir string, live *control.Job, silent error) (*Follower, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if live == nil {
		if err := CheckRunDir(dir); err != nil {
			return nil, err
		}
	}
	f := newFollower(dir, live, math.MaxInt64)
	if silent != nil {
		f.why = silent.Error()
	}
	return f, nil
}

// newFollower returns a Follower of the run in a directory, which at first reads no more than so
// many bytes of a file.
func newFollower(dir string, live *control.Job, most int64) *Follower {
	return &Follower{dir: dir, live: live,
		Run:     watch.New(dir, version.Version, strings.ToLower(rand.Text()[:8])),
		sense:   lines{path: filepath.Join(dir, "sense.jsonl"), whole: min(history.MaxFile, most)},
		events:  lines{path: ledgerPath(dir), whole: min(maxLedger, most), endOnly: true},
		metrics: lines{path: filepath.Join(dir, "metrics.jsonl"), whole: min(maxReports, most)}}
}

// RoughCopy returns another Follower of the same run, which has read nothing yet and reads little
// of long files: what it shows of a run of months is there at once, and coarse.
func (f *Follower) RoughCopy() *Follower {
	r := newFollower(f.dir, nil, maxRough)
	r.why = f.why
	if f.live != nil {
		live := *f.live // one goroutine uses a job at a time
		r.live = &live
	}
	return r
}

// IsPartial reports whether a file was too long to be read whole.
func (f *Follower) IsPartial() bool {
	return f.sense.partly || f.events.partly || f.metrics.partly
}

// CheckRunDir returns why a directory is none of a run; nil = it is, or was once, whatever of it is
// damaged or missing.
func CheckRunDir(dir string) error {
	if info, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%s is not the directory of a run: %w", dir, err)
	} else if !info.IsDir() {
		return fmt.Errorf("%s is a file; name the directory of a run, which shoal run prints", dir)
	}
	for _, name := range []string{"job.json", "events.jsonl", "sense.jsonl", "metrics.jsonl",
		"result.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is not the directory of a run: it has no job.json, events.jsonl, "+
		"sense.jsonl, metrics.jsonl or result.json; shoal run prints the directory, and shoal ps",
		dir)
}

// Poll asks the launcher, which may take 5 s, and reads what is new in the files, at a time. The
// error is the cause of ctx; all else becomes a note of the run.
func (f *Follower) Poll(ctx context.Context, now time.Time) error {
	if err := f.askLauncher(ctx, now); err != nil {
		return err
	}
	f.readFiles()
	return nil
}

// askLauncher asks the launcher how the job is, and tells the run what it says, or why it says
// nothing. The error is the cause of ctx.
func (f *Follower) askLauncher(ctx context.Context, now time.Time) error {
	if f.live == nil && !f.Run.HasResult() && now.Sub(f.sought) >= seekPause {
		f.sought = now
		f.findLauncher(ctx)
	}
	if f.live == nil {
		f.Run.SetLive(nil, f.why, watch.Seconds(now))
		return context.Cause(ctx)
	}
	err := f.live.Refresh(ctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		f.last = now
		job := f.live.Job // a value of its own, whose parts nobody changes
		f.Run.SetLive(&job, "", watch.Seconds(now))
	case errors.Is(err, control.ErrEnded) &&
		(now.Sub(f.last) < endPatience || durable.IsLocked(f.events.path)):
		f.Run.SetLive(nil, "the job is at its end", watch.Seconds(now))
	case errors.Is(err, control.ErrEnded):
		f.live = nil
		f.Run.SetLive(nil, "", watch.Seconds(now))
	default:
		f.Run.SetLive(nil, err.Error(), watch.Seconds(now))
	}
	return nil
}

// findLauncher looks for the launcher of a run that has no result, and sets f.live, or f.why.
func (f *Follower) findLauncher(ctx context.Context) {
	live, err := control.Find(ctx, f.dir)
	if err == nil {
		f.live, f.why = live, ""
		return
	}
	var unknown *control.Unknown
	if !errors.As(err, &unknown) {
		return
	}
	f.why = ""
	if silent := WhySilent(f.dir, unknown); silent != nil {
		f.why = silent.Error()
	}
}

// errOutOfReach is why nobody answers for a run whose launcher lives, and has no socket here.
var errOutOfReach = errors.New("its launcher lives, and cannot be asked from here: look on the " +
	"machine that it runs on, with the XDG_RUNTIME_DIR that it was started with")

// ledgerPath returns the path of the ledger of the run in a directory.
func ledgerPath(dir string) string { return filepath.Join(dir, "events.jsonl") }

// WhySilent returns why nobody answers for the run in a directory, which has no result, where
// control.Find has not found its job; nil = its launcher has ended. It looks whether the ledger is
// locked, as it is while a launcher lives.
func WhySilent(dir string, unknown *control.Unknown) error {
	switch reason := unknown.RefusalOf(dir); {
	case reason != "":
		return errors.New(reason)
	case unknown.Silent != nil:
		return unknown.Silent
	case durable.IsLocked(ledgerPath(dir)):
		return errOutOfReach
	}
	return nil
}

// readFiles reads what is new in the files of the run. The result comes first: what is torn then
// will get no end.
func (f *Follower) readFiles() {
	r := f.Run
	if !f.job {
		text, err := readSmall(filepath.Join(f.dir, "job.json"))
		switch {
		case err == nil:
			f.job = true
			r.SetJob(text)
		case errors.Is(err, fs.ErrNotExist):
			r.FileMissing("job.json")
		default:
			r.FileUnreadable("job.json", err)
		}
	}
	if !r.HasResult() {
		if text, err := readSmall(filepath.Join(f.dir, "result.json")); err == nil {
			r.SetResult(text)
		} else if !errors.Is(err, fs.ErrNotExist) {
			r.FileUnreadable("result.json", err)
		}
	}
	if text, err := readSmall(filepath.Join(f.dir, "why_not.json")); err == nil {
		r.SetWhyNot(text)
	}
	if r.LacksWorkers() {
		if workers, err := Outputs(f.dir); err == nil { // else the files below say what is wrong
			r.SetOutputs(workers)
		}
	}
	f.readLines("events.jsonl", &f.events, r.AddEvent, r.ResetEvents)
	f.readLines("sense.jsonl", &f.sense, r.AddSense, r.ResetSense)
	f.readLines("metrics.jsonl", &f.metrics, r.AddMetrics, r.ResetMetrics)
}

// readLines reads what is new in a file of lines by l, whose lines add takes; reset is called where
// the file is another one. It tells the run what is wrong with the file.
func (f *Follower) readLines(name string, l *lines, add func(line []byte), reset func()) {
	r := f.Run
	err := l.readNew(taker{line: add, reset: reset,
		tooLong: func() { r.LineSkipped(name, maxLine) },
		partly:  func(size, read int64) { r.FilePartlyRead(name, size, read, l.endOnly) }})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.FileMissing(name)
	case err != nil:
		r.FileUnreadable(name, err)
	default:
		r.FileFound(name)
	}
	r.LastLineTorn(name, l.isTorn() && (r.HasResult() || f.live == nil))
}

// readSmall returns the bytes of a file that is one object.
func readSmall(path string) ([]byte, error) {
	f, info, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > maxSmall {
		return nil, fmt.Errorf("it has %d MiB; the limit is %d", info.Size()>>20, maxSmall>>20)
	}
	return io.ReadAll(io.LimitReader(f, maxSmall))
}

// Log returns up to limit bytes of the newest output of the worker with a number, from a line on.
// The error wraps fs.ErrNotExist where there is none. It reads nothing of the Follower but its
// directory, which stays, so any goroutine may call it at any time.
func (f *Follower) Log(worker int, limit int64) ([]byte, error) {
	file, info, err := openRegular(filepath.Join(f.dir, OutputName(worker)))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	from := max(info.Size()-limit, 0)
	text, err := io.ReadAll(io.NewSectionReader(file, from, limit))
	if err != nil || from == 0 {
		return text, err
	}
	if _, rest, ok := strings.Cut(string(text), "\n"); ok {
		return []byte(rest), nil
	}
	return text, nil
}

// OutputName returns the name of the file with the output of a worker, in the directory of a run.
// It is pure.
func OutputName(worker int) string { return fmt.Sprintf("rank-%d.log", worker) }

// Outputs lists in ascending order the workers that have output in the directory of a run. Not all
// workers of the job need have some: the host that leads has the output of all from the time when
// it leads, the other hosts that of their own workers. Any goroutine may call it.
func Outputs(dir string) (list []int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		var worker int
		if _, err := fmt.Sscanf(e.Name(), "rank-%d.log", &worker); err == nil &&
			e.Name() == OutputName(worker) {
			list = append(list, worker)
		}
	}
	slices.Sort(list)
	return list, nil
}
