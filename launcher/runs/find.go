package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/job"
)

// Which run people mean by the name of a job, and which others have a part of that job. The
// functions read directories, keep and lock nothing, and may be called on any goroutine.

// numbered matches what the directory of a run has after its name, if that was taken: "-2".
var numbered = pattern.New(`^-[1-9][0-9]*$`)

// Names lists the folders of Root, as they are on the disk; none where it cannot be read.
func Names() (names []string) {
	parent, err := Root()
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(parent)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Newest reads Root and returns the directory of the run of a name that started last, of
// those that live if there are any. Runs of one name are called NAME, NAME-2, … and where this host
// has joined a job, NAME@HOST. A name that no run has may be that of a script, from which runs get
// their names.
func Newest(name string) (string, error) {
	parent, err := Root()
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

// newestRun finds the directory in parent, which is Root, of the run of a name that Newest
// returns; "" if there is none.
func newestRun(parent, name string) string {
	var newest, led ownRun // of all, and of those of jobs that have begun on this host
	for _, folder := range Names() {
		rest, ok := strings.CutPrefix(folder, name)
		rest, _, _ = strings.Cut(rest, "@")
		if !ok || rest != "" && !numbered.MatchString(rest) {
			continue
		}
		dir := filepath.Join(parent, folder)
		record, err := ReadRecord(dir)
		if err != nil || rest != "" && record.Asked != "" && record.Asked != name {
			continue // the number may be a part of the name that was asked for
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

// Beside returns the directories of other runs that have a part of the job whose run is in dir,
// the newest one first: hosts that have joined it on this machine, and a run that led it before. A
// run that has led the job to its end, or leads it since it began, has all, and none is beside it.
func Beside(dir string) (list []string) {
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

// ownRun is a run that lies in Root.
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
