// Package runs holds what a run leaves on the disk: its directory, which its launcher writes, and
// which commands and tools read while the run lasts and when it is over.
package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/senselog"
	"github.com/shoal-ml/shoal/sense/history"
)

// How the launcher of a run writes its files. The functions without a receiver read and make files,
// but for metricsLine, which is pure.

// advice is what people can do where no files can be made.
const advice = "set XDG_STATE_HOME to a folder of yours, or give one to shoal run with --log-dir"

// Root is where the directories of runs lie unless the user says otherwise:
// XDG_STATE_HOME/shoal/runs.
func Root() (string, error) {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "shoal", "runs"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the files of a run: %w; "+advice, err)
	}
	return filepath.Join(home, ".local", "state", "shoal", "runs"), nil
}

// Dir holds the files of one run:
//
//	job.json       what was run: the effective spec, when, by which version
//	rank-N.log     the whole output of worker N, line by line; of a worker on another host its
//	               lines, while this host leads the job
//	template.log   what the process has printed from which workers are forked, if there is one
//	metrics.jsonl  what workers reported: one object a report
//	sense.jsonl    what is kept of its steps where it is led: one object each 10 s
//	why_not.json   why policies have left things as they are
//	events.jsonl   how its membership changed, and why: one object a change
//	result.json    how it ended
//
// Any goroutine may call its methods, which do I/O but for the paths, until Close is called.
type Dir struct {
	path  string        // absolute, and never changed
	sense *senselog.Log // sense.jsonl

	mu      sync.Mutex       // guards what follows, and is held while a line is written
	metrics *os.File         // metrics.jsonl, open until Close
	events  *os.File         // events.jsonl, open until Close
	others  map[int]*os.File // open logs of workers of other hosts, by worker
}

// New makes a directory that no other run has, in parent, opens files there, which Close
// closes, and returns the name that it gives to the job: the wanted one, with a number when that is
// taken. The trials of runs of that name whose launchers were killed get their ends.
func New(parent, want string) (d *Dir, name string, err error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, "", fmt.Errorf("a directory for the files of the run: %w; "+advice, err)
	}
	name = want
	for i := 2; ; i++ {
		err = os.Mkdir(filepath.Join(parent, name), 0o700)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		_ = endChangesOfKilledRun(filepath.Join(parent, name)) // what reads that run says the same
		name = want + "-" + strconv.Itoa(i)
	}
	if err != nil {
		return nil, "", fmt.Errorf("a directory for the files of the run: %w; "+advice, err)
	}
	path, err := filepath.Abs(filepath.Join(parent, name))
	if err != nil {
		return nil, "", err
	}
	d = &Dir{path: path, sense: senselog.New(filepath.Join(path, "sense.jsonl")),
		others: map[int]*os.File{}}
	for name, f := range map[string]**os.File{"metrics.jsonl": &d.metrics,
		"events.jsonl": &d.events} {
		if *f, err = os.OpenFile(filepath.Join(path, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY,
			0o600); err != nil {
			return nil, "", errors.Join(fileError(err), d.Discard())
		}
	}
	// see endChangesOfKilledRun, which may hold this lock for a moment; a disk without locks is no
	// error
	_ = durable.Flock(d.events, syscall.LOCK_EX)
	return d, name, nil
}

// Path is the absolute path of the directory.
func (d *Dir) Path() string { return d.path }

// LogPath is the path of the log of the worker with a number, which the name of the file calls its
// rank.
func (d *Dir) LogPath(worker int) string {
	return filepath.Join(d.path, fmt.Sprintf("rank-%d.log", worker))
}

// WriteJob writes job.json; run is the random id of the run, and asked the name that the job was
// started with.
func (d *Dir) WriteJob(spec job.Spec, run, asked string, started time.Time) error {
	err := d.writeJSON("job.json", Record{spec, run, started, version.Version, asked})
	if err != nil {
		err = fileError(err)
	}
	return err
}

// fileError returns the error of a file without which no run begins, with what people can do.
func fileError(err error) error { return fmt.Errorf("the files of the run: %w; "+advice, err) }

// Discard removes the directory of a run that has not begun, since it could not be made whole, and
// closes its files. It is called in place of Close.
func (d *Dir) Discard() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range []*os.File{d.metrics, d.events} {
		if f != nil {
			_ = f.Close() // nothing was written
		}
	}
	return os.RemoveAll(d.path)
}

// WriteResult writes result.json.
func (d *Dir) WriteResult(r *Result) error { return d.writeJSON("result.json", r) }

// WriteWhyNots writes why policies have left things as they are, in place of what it wrote before.
func (d *Dir) WriteWhyNots(list []control.WhyNot) error { return d.writeJSON(whyNotFile, list) }

// writeJSON writes v as the JSON file name, whole: once it has its name, all of it can be read. It
// takes no lock: no two goroutines write the same file at a time.
func (d *Dir) writeJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	path := filepath.Join(d.path, name)
	unnamed := path + ".new"
	if err := os.WriteFile(unnamed, append(text, '\n'), 0o600); err != nil {
		return err
	}
	if err := os.Rename(unnamed, path); err != nil {
		return err
	}
	return nil
}

// AppendMetrics appends what a worker has reported at now to metrics.jsonl. Any goroutine may call
// it.
func (d *Dir) AppendMetrics(rank int, metrics map[string]float64, now time.Time) error {
	line, err := metricsLine(rank, metrics, now)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return appendWhole(d.metrics, line)
}

// AppendHistory appends what is kept of some steps to sense.jsonl. Any goroutine may call it. An
// error says that nothing more will be kept, the first time.
func (d *Dir) AppendHistory(row history.Row, now time.Time) error {
	return d.sense.Append(row, now)
}

// AppendEvent appends an event, which came at now, to events.jsonl. Any goroutine may call it.
func (d *Dir) AppendEvent(e agent.Event, now time.Time) error {
	line, err := json.Marshal(Entry{now, e})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return appendWhole(d.events, append(line, '\n'))
}

// appendWhole appends a line to an open file. Where the disk has no room for all of the line, it
// takes back what is written of it, so that the next one can be read.
func appendWhole(f *os.File, line []byte) error {
	n, err := f.Write(line)
	if err == nil || n == 0 {
		return err
	}
	end, failed := f.Seek(int64(-n), io.SeekCurrent)
	if failed == nil {
		failed = f.Truncate(end)
	}
	return errors.Join(err, failed)
}

// mostLogs is how many logs of other hosts' workers are open at a time. It is bounded since other
// hosts choose the numbers of the workers.
const mostLogs = 256

// TemplateLog is the path of the log of the process from which workers are forked.
func (d *Dir) TemplateLog() string { return filepath.Join(d.path, "template.log") }

// AppendHostLine appends a line of this host about a worker to the worker's log. The log is open
// for this one line: such lines are few, and nobody would close it. Any goroutine may call it.
func (d *Dir) AppendHostLine(worker int, text string) error {
	d.mu.Lock() // see AppendLine, which may take back what it has written
	defer d.mu.Unlock()
	log, err := d.openLog(worker)
	if err != nil {
		return err
	}
	_, err = log.WriteString(text + "\n")
	return errors.Join(err, log.Close())
}

// openLog opens the log of a worker to append to it. The caller closes it.
func (d *Dir) openLog(worker int) (*os.File, error) {
	return os.OpenFile(d.LogPath(worker), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// AppendLine appends a line of a worker of another host to the worker's log, whole or not at all.
// It opens the log if it is not open. Any goroutine may call it.
func (d *Dir) AppendLine(worker int, text string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := d.others[worker]
	if log == nil {
		err := d.closeLogsDownTo(mostLogs - 1)
		if err != nil {
			return err
		}
		if log, err = d.openLog(worker); err != nil {
			return err
		}
		d.others[worker] = log
	}
	return appendWhole(log, []byte(text+"\n"))
}

// CloseLog closes the log of a worker of another host that has ended: a job that loses workers
// would else keep a descriptor for each. A line that comes later opens the log again.
func (d *Dir) CloseLog(worker int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := d.others[worker]
	if log == nil {
		return nil
	}
	delete(d.others, worker)
	return log.Close()
}

// closeLogsDownTo closes logs of workers of other hosts until at most so many are open. The next
// line of a worker opens its log again. d.mu is held.
func (d *Dir) closeLogsDownTo(most int) (err error) {
	for worker, log := range d.others {
		if len(d.others) <= most {
			break
		}
		delete(d.others, worker)
		err = errors.Join(err, log.Close())
	}
	return err
}

// metricsLine is a line of metrics.jsonl: one object and a newline. rank is the worker's number.
func metricsLine(rank int, metrics api.Metrics, now time.Time) ([]byte, error) {
	line, err := json.Marshal(struct {
		Time    time.Time   `json:"time"`
		Rank    int         `json:"rank"`
		Metrics api.Metrics `json:"metrics"`
	}{now, rank, metrics})
	return append(line, '\n'), err
}

// Close closes all files. Only paths may be asked for after it.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.metrics.Close(), d.events.Close(), d.sense.Close(), d.closeLogsDownTo(0))
}
