package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/setting"
)

// What is in the other files of a run that people ask for while it lasts and when it is over. The
// functions read files, keep and lock nothing, and may be called on any goroutine.

// Record is what job.json holds: what was run.
type Record struct {
	Spec    job.Spec  `json:"spec"`
	Run     string    `json:"run"` // random id
	Started time.Time `json:"started"`
	Version string    `json:"version"` // of shoal
	// Asked is the name that the job was started with, which may have got a number in Spec; "" = it
	// is not known, since an earlier version has written it.
	Asked string `json:"asked,omitempty"`
}

// Result says how a run went. It is what result.json holds.
type Result struct {
	Job string `json:"job"`
	Dir string `json:"dir"`
	OK  bool   `json:"ok"`
	// Error says why the run is not OK.
	Error string `json:"error,omitempty"`
	// Alone says that nobody joined: each process was a job of its own.
	Alone bool `json:"alone"`
	// StoppedBy is who asked for the end of the job; "" = nobody.
	StoppedBy string `json:"stopped_by,omitempty"`
	// Parked says that the workers were ended after a checkpoint, from which the job goes on when
	// it is started again.
	Parked bool `json:"parked,omitempty"`
	// Unstarted says that the run was interrupted before a worker began.
	Unstarted bool `json:"unstarted,omitempty"`
	// LostHost is the host with whose loss the job has failed; "" = it has not failed by that.
	LostHost string `json:"lost_host,omitempty"`
	// GoesOn is the host that leads the job, which goes on without this one; "" = it has ended.
	GoesOn string `json:"goes_on,omitempty"`
	// Drained says that the job goes on without this host, which may have led it until then.
	Drained bool      `json:"-"`
	Started time.Time `json:"started"`
	// Seconds are how long the run has taken.
	Seconds float64 `json:"seconds"`
	// Workers are in the order in which they ended.
	Workers []WorkerResult `json:"workers"`
	// Changes are those of the setting, and of routes while this host has led, as this host has
	// them in its ledger, the first one first.
	Changes []ChangeResult `json:"changes,omitempty"`
	// LostSamples is of how many samples, about, the effect went with replicas of workers, as
	// agent.Event has it, while this launcher ran.
	LostSamples uint64 `json:"lost_samples,omitempty"`
}

// ChangeResult is a change of the setting or of a route as it was when the run ended.
type ChangeResult struct {
	setting.Change
	// Kept says that the new setting stayed.
	Kept bool `json:"kept"`
}

// WorkerResult says how one worker ended.
type WorkerResult struct {
	// Rank is the number of the worker, which it keeps for life.
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// How says how the worker ended, such as "exited with code 0" or "was killed by SIGKILL".
	How string `json:"how"`
	// Stopped says that shoal ended the worker.
	Stopped bool `json:"stopped"`
	// Seconds are how long the process has run.
	Seconds float64 `json:"seconds"`
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

// whyNotFile is the name of the file with reasons in the directory of a run.
const whyNotFile = "why_not.json"

// ReadWhyNots reads why the policies of a run have left things as they were when it was known last,
// the newest reason last; nil where nothing is kept.
func ReadWhyNots(dir string) (list []control.WhyNot, err error) {
	if err = readRunFile(dir, whyNotFile, &list); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return list, err
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
