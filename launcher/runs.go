package launcher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/setting"
)

// The functions in this file read, for the commands of shoal, what runs that last or are over have
// left in their directories. They keep and lock nothing, so any goroutine may call them.

// Record is what job.json holds: what was run.
type Record struct {
	Spec    job.Spec  `json:"spec"`
	Run     string    `json:"run"` // random id
	Started time.Time `json:"started"`
	Version string    `json:"version"` // of shoal
}

// Entry is a line of events.jsonl, the ledger of a run.
type Entry struct {
	Time time.Time `json:"time"`
	agent.Event
}

// ReadRecord reads the job.json of a run's directory.
func ReadRecord(dir string) (r Record, err error) {
	err = readRunFile(dir, "job.json", &r)
	return r, err
}

// ReadResult reads the result.json of a run's directory; while the run lasts, and after its
// launcher was killed, the error wraps fs.ErrNotExist.
func ReadResult(dir string) (r Result, err error) {
	err = readRunFile(dir, "result.json", &r)
	return r, err
}

// readRunFile reads the JSON file name of a run's directory into the value that into points to. If
// there is no such file the error wraps fs.ErrNotExist.
func readRunFile(dir, name string, into any) error {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s is damaged: %w", filepath.Join(dir, name), err)
	}
	return nil
}

// LedgerPath is the path of the ledger in a run's directory.
func LedgerPath(dir string) string { return filepath.Join(dir, "events.jsonl") }

// ParseLedger reads the whole lines of a ledger, or of a part of one that begins with a line, and
// says how many bytes they take, and how many of them cannot be read and are left out.
func ParseLedger(text []byte) (entries []Entry, n, damaged int) {
	for line := range bytes.Lines(text) {
		if line[len(line)-1] != '\n' {
			break
		}
		n += len(line)
		var e Entry
		if json.Unmarshal(line, &e) != nil {
			damaged++
			continue
		}
		entries = append(entries, e)
	}
	return entries, n, damaged
}

// Changes returns the changes in a ledger, each as its last entry has it, in the order in which
// they were entered.
func Changes(entries []Entry) (list []ChangeResult) {
	at := map[string]int{} // by name of a change, its index in the list
	for _, e := range entries {
		if e.Change == nil {
			continue
		}
		i, has := at[e.Change.Name()]
		if !has {
			i, list = len(list), append(list, ChangeResult{})
			at[e.Change.Name()] = i
		}
		list[i] = ChangeResult{*e.Change, e.Change.Phase != setting.Reverted}
	}
	return list
}

// MissingChangeEnds returns what the ledger of a run that is over lacks: the end of each change
// that was measured when its launcher was killed, or when this host left the job. The time and the
// step are those of the last entry. dir is the directory of the run.
func MissingChangeEnds(dir string, entries []Entry) (ends []Entry) {
	for _, c := range Changes(entries) {
		if c.Phase.IsEnd() {
			continue
		}
		result, _ := ReadResult(dir) // there is none where the launcher was killed
		end := c.EndWithJob(result.GoesOn != "" || strings.Contains(filepath.Base(dir), "@"))
		e := entries[len(entries)-1]
		e.Event = agent.Event{What: changeEvent(end), Generation: e.Generation, Size: e.Size,
			Step: e.Step, OptimizerSteps: e.OptimizerSteps, Because: end.Because, Change: &end}
		ends = append(ends, e)
	}
	return ends
}

// endChangesOfKilledRun writes what MissingChangeEnds returns into the ledger of an earlier run. It
// does nothing where the run has a result, where its launcher lives, which has locked the ledger,
// and where the last line is torn. It keeps the file open and locked only while it runs.
func endChangesOfKilledRun(dir string) error {
	if _, err := ReadResult(dir); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f, err := os.OpenFile(LedgerPath(dir), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil // there is none
	}
	defer f.Close()
	if err := durable.Flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	entries, whole, _ := ParseLedger(text)
	if whole < len(text) {
		return nil
	}
	for _, e := range MissingChangeEnds(dir, entries) {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if err := appendWhole(f, append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// numbered matches what the directory of a run has after its name, if that was taken: "-2".
var numbered = pattern.New(`^-[1-9][0-9]*$`)

// RunNames lists the folders of RunsDir, as they are on the disk; none where it cannot be read.
func RunNames() (names []string) {
	parent, err := RunsDir()
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(parent)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// NewestRun reads RunsDir and returns the directory of the run of a name that started last, of
// those that live if there are any. Runs of one name are called NAME, NAME-2, … and where this host
// has joined a job, NAME@HOST. A name that no run has may be that of a script, from which runs get
// their names.
func NewestRun(name string) (string, error) {
	parent, err := RunsDir()
	if err != nil {
		return "", err
	}
	for _, each := range []string{name, job.NameFor([]string{name})} {
		if newest := newestRun(parent, each); newest != "" {
			return newest, nil
		}
	}
	return "", fmt.Errorf("no run is called %s in %s; name one of the folders there, or the "+
		"path of another (shoal run --log-dir)", name, parent)
}

// newestRun finds the directory in parent, which is RunsDir, of the run of a name that NewestRun
// returns; "" if there is none.
func newestRun(parent, name string) string {
	var newest, led ownRun // of all, and of those of jobs that have begun on this host
	for _, folder := range RunNames() {
		rest, ok := strings.CutPrefix(folder, name)
		rest, _, _ = strings.Cut(rest, "@")
		if !ok || rest != "" && !numbered.MatchString(rest) {
			continue
		}
		dir := filepath.Join(parent, folder)
		record, err := ReadRecord(dir)
		if err != nil {
			continue
		}
		r := readOwnRun(dir, record)
		if !r.isBefore(newest) {
			newest = r
		}
		if !r.joined && !r.isBefore(led) {
			led = r
		}
	}
	// Where a host had joined a job on the machine that leads it, that one knows more of it, also
	// where the host has not noticed yet that the job is over.
	if led.lives || !led.ended.IsZero() && (!newest.lives || led.goesOn == "") &&
		!newest.started.After(led.ended) {
		return led.dir
	}
	return newest.dir
}

// RunsBeside returns the directories of other runs that have a part of the job whose run is in dir,
// the newest one first: hosts that have joined it on this machine, and a run that led it before. A
// run that has led the job to its end, or leads it since it began, has all, and none is beside it.
func RunsBeside(dir string) (list []string) {
	record, err := ReadRecord(dir)
	if err != nil {
		return nil
	}
	this := readOwnRun(dir, record)
	if !this.joined && (this.lives || this.goesOn == "" && !this.ended.IsZero()) {
		return nil
	}
	var beside []ownRun
	entries, _ := os.ReadDir(filepath.Dir(dir))
	for _, e := range entries {
		at := filepath.Join(filepath.Dir(dir), e.Name())
		other, err := ReadRecord(at)
		if err != nil || at == dir || other.Spec.Name != record.Spec.Name {
			continue
		}
		r := readOwnRun(at, other)
		if this.isOfOneJob(r) || r.isOfOneJob(this) {
			beside = append(beside, r)
		}
	}
	slices.SortStableFunc(beside, func(a, b ownRun) int { return b.started.Compare(a.started) })
	for _, r := range beside {
		list = append(list, r.dir)
	}
	return list
}

// readOwnRun reads what there is to know of the run in dir, whose job.json is record.
func readOwnRun(dir string, record Record) ownRun {
	r := ownRun{dir: dir, started: record.Started, lives: Lives(dir),
		joined: strings.Contains(filepath.Base(dir), "@")}
	if end, err := ReadResult(dir); err == nil {
		r.ended = end.Started.Add(time.Duration(end.Seconds * float64(time.Second)))
		r.goesOn = end.GoesOn
	}
	return r
}

// ownRun is a run that lies in RunsDir.
type ownRun struct {
	dir     string
	started time.Time
	lives   bool      // its launcher runs
	joined  bool      // whether its host has joined a job that began elsewhere
	ended   time.Time // zero = it lives, or its launcher was killed
	goesOn  string    // host that led the job when it ended; "" = this run did
}

// isOfOneJob reports whether a run of the same name that began later has a part of the same job:
// the other host began while this one ran, or this run left the job before it was over.
func (r ownRun) isOfOneJob(later ownRun) bool {
	switch {
	case later.started.Before(r.started):
		return false
	case r.lives || !later.started.After(r.ended):
		return true
	}
	return !r.joined && (r.ended.IsZero() || r.goesOn != "")
}

// isBefore reports whether a run of the same name tells people less than another one: that lives,
// or this does not and has begun earlier.
func (r ownRun) isBefore(other ownRun) bool {
	if r.lives != other.lives {
		return other.lives
	}
	return r.started.Before(other.started)
}

// Lives reports whether the launcher of the run in dir lives, which has locked the ledger. It knows
// of none on a disk without locks.
func Lives(dir string) bool {
	f, err := os.Open(LedgerPath(dir))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(durable.Flock(f, syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
