package launcher

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/topo"
)

// What the launchers of the hosts of a job say to each other, and its bytes; hosts.go sends and
// receives it. The functions of this file are pure, but for exitOf, which asks for the time.

// message is what the launchers of two hosts say to each other, as docs/formats/hosts.md lists it.
// Exactly one field is set. One side is the host that leads; a new head is told again what it must
// know. One goroutine uses it at a time.
type message struct {
	// messages to the host that leads
	Offer   *offerMessage   `json:"offer,omitempty"`
	Started *startedMessage `json:"started,omitempty"`
	Joined  *workerMessage  `json:"joined,omitempty"`
	Report  *reportMessage  `json:"report,omitempty"`
	Park    *parkMessage    `json:"park,omitempty"`
	Line    *lineMessage    `json:"line,omitempty"`
	Ended   *endedMessage   `json:"ended,omitempty"`
	Leaving *reasonMessage  `json:"leaving,omitempty"`

	// messages from the host that leads
	Job    *jobMessage    `json:"job,omitempty"`
	Signal *signalMessage `json:"signal,omitempty"`
	Over   *reasonMessage `json:"over,omitempty"`
	WhyNot *whyNotMessage `json:"why_not,omitempty"`
	Stays  *reasonMessage `json:"stays,omitempty"`
	Limit  *limitMessage  `json:"limit,omitempty"`
}

type (
	// offerMessage is the first message to a host that leads.
	offerMessage struct {
		// Slots is how many workers the host can run.
		Slots int `json:"slots"`
		// Known says that the host knows the job, from another head.
		Known bool `json:"known"`
		// Machine is what the host calls itself; "" = as the job calls it.
		Machine string `json:"machine,omitempty"`
	}
	startedMessage struct {
		Worker int `json:"worker"`
		// PID is the process of the worker; 0 = the process could not be started.
		PID int `json:"pid"`
	}
	workerMessage struct {
		Worker int `json:"worker"`
	}
	reportMessage struct {
		Worker  int         `json:"worker"`
		Metrics api.Metrics `json:"metrics"`
	}
	// parkMessage says what a worker has made of the wish to park the job.
	parkMessage struct {
		Worker int `json:"worker"`
		// Steps are the committed steps after which its checkpoint was to be made.
		Steps uint64 `json:"steps"`
		// Problem says why there is none, so that it trains on; "" = the worker is being ended.
		Problem string `json:"problem,omitempty"`
	}
	lineMessage struct {
		Worker int `json:"worker"`
		// Error says that the line is of standard error.
		Error bool   `json:"error,omitempty"`
		Text  string `json:"text"`
	}
	endedMessage struct {
		Worker int `json:"worker"`
		PID    int `json:"pid"`
		Code   int `json:"code"`
		Signal int `json:"signal,omitempty"`
		// Lost says how the worker was lost with its host; "" = its end was seen.
		Lost string `json:"lost,omitempty"`
		// Seconds are how long the process has run.
		Seconds float64 `json:"seconds"`
		// Survived says that the job goes on without the worker.
		Survived bool `json:"survived,omitempty"`
		// Dismissed says that the launcher ended the worker, because it was not needed.
		Dismissed bool `json:"dismissed,omitempty"`
		// Parked says that the job goes on from a checkpoint when it is started again.
		Parked bool `json:"parked,omitempty"`
		// Told says that this is for a new head, and the one that led then was told already.
		Told bool `json:"told,omitempty"`
		// Because says which lost worker this one waited for when it failed; "" = none.
		Because string `json:"because,omitempty"`
		// Tail has the last lines of the worker's output.
		Tail []string `json:"tail,omitempty"`
		// Log is the path, on the worker's host, of the file with all of its output.
		Log string `json:"log,omitempty"`
	}
	// whyNotMessage says why policies have left things as they are, the newest reason last.
	whyNotMessage struct {
		List []control.WhyNot `json:"list"`
	}
	reasonMessage struct {
		Why string `json:"why"`
	}
	// jobMessage says what the job is.
	jobMessage struct {
		Spec job.Spec `json:"spec"`
		// Asked is the name that the job was started with, which may have got a number in Spec.
		Asked string `json:"asked"`
		// Run is the id of the run on the host where the job began.
		Run string `json:"run"`
		// Port is for MASTER_PORT.
		Port int `json:"port"`
		// Addr is for MASTER_ADDR.
		Addr string `json:"addr"`
		// Started is when the job was started, in milliseconds since 1970.
		Started int64 `json:"started"`
		// After is how many generations the job had before this start.
		After topo.Generation `json:"after,omitempty"`
		// Record is nil where the job has no record that this host could write.
		Record *recordMessage `json:"record,omitempty"`
	}
	// recordMessage says where the record of the job is.
	recordMessage struct {
		// URL names the store.
		URL string `json:"url"`
		// Job is the name of the job in the store.
		Job string `json:"job"`
		// Run is the run of the job whose record it is.
		Run string `json:"run"`
	}
	// limitMessage says how many bytes a second each host may send to the others.
	limitMessage struct {
		// Bytes is 0 where there is no limit.
		Bytes uint64 `json:"bytes"`
	}
	signalMessage struct {
		Worker int `json:"worker"`
		Signal int `json:"signal"`
	}
)

// maxAfter bounds the generations that a job can have had; no job comes near it.
const maxAfter = 1 << 32

// encode returns the message as JSON. It panics where that is impossible: a fault of shoal.
func (m *message) encode() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic("launcher: a message that is no JSON: " + err.Error())
	}
	return b
}

// decodeMessage reads a message, makes its texts printable, and refuses what no launcher of this
// version says. It keeps nothing of b.
func decodeMessage(b []byte) (*message, error) {
	var m message
	if err := strict.JSON(b, &m); err != nil {
		return nil, fmt.Errorf("a message that is none: %w", err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil || len(keys) != 1 {
		return nil, fmt.Errorf("a message with %d keys instead of one", len(keys))
	}
	switch {
	case m.Offer != nil && m.Offer.Slots < 0:
		return nil, fmt.Errorf("an offer of %d slots", m.Offer.Slots)
	case m.Limit != nil && m.Limit.Bytes > control.MaxLimit:
		return nil, fmt.Errorf("a limit of %d bytes a second", m.Limit.Bytes)
	case m.Job != nil:
		if err := m.Job.check(); err != nil {
			return nil, err
		}
	}
	if worker, is := m.aboutWorker(); is && worker < 0 {
		return nil, fmt.Errorf("worker %d", worker)
	}
	m.sanitize()
	return &m, nil
}

// number matches what the name of a job has behind the one with which it was started, if that was
// taken: "-2". With it the name may be longer than one that people can give.
var number = pattern.New(`^(-[1-9][0-9]{0,18})?$`)

// runID matches the id of a run.
var runID = pattern.New(`^[0-9a-f]{1,64}$`)

// check returns what is wrong with what a host says that the job is; nil = nothing.
func (j *jobMessage) check() error {
	asked := j.Spec
	asked.Name = j.Asked
	behind, begins := strings.CutPrefix(j.Spec.Name, j.Asked)
	err := cmp.Or(job.CheckName(j.Asked), asked.WithDefaults().Validate())
	switch r := j.Record; {
	case err != nil:
		return fmt.Errorf("a job that cannot be: %w", err)
	case !begins || !number.MatchString(behind):
		return fmt.Errorf("a job called %.100q, which was started as %s", j.Spec.Name, j.Asked)
	case !runID.MatchString(j.Run):
		return fmt.Errorf("a job whose run is %.100q", j.Run)
	case j.After > maxAfter:
		return fmt.Errorf("a job of %d generations", j.After)
	case r != nil && (r.URL == "" || r.Job == "" || r.Run == ""):
		return errors.New("a record that is nowhere")
	}
	return nil
}

// aboutWorker is the number of the worker that a message is about; false if it is about none.
func (m *message) aboutWorker() (worker int, is bool) {
	switch {
	case m.Started != nil:
		return m.Started.Worker, true
	case m.Joined != nil:
		return m.Joined.Worker, true
	case m.Report != nil:
		return m.Report.Worker, true
	case m.Park != nil:
		return m.Park.Worker, true
	case m.Line != nil:
		return m.Line.Worker, true
	case m.Ended != nil:
		return m.Ended.Worker, true
	case m.Signal != nil:
		return m.Signal.Worker, true
	}
	return 0, false
}

// endMessage returns the message about the end of a worker, without the worker's output.
func endMessage(worker int, e proc.Exit, survived bool) *endedMessage {
	return &endedMessage{Worker: worker, PID: e.PID, Code: e.Code, Signal: int(e.Signal),
		Lost: e.Lost, Parked: e.Parked,
		Seconds: e.Ended.Sub(e.Started).Seconds(), Survived: survived}
}

// exitOf is the end of a worker that a message tells of, by the clock of this host.
func (e *endedMessage) exitOf() proc.Exit {
	now := time.Now()
	return proc.Exit{PID: e.PID, Code: e.Code, Signal: syscall.Signal(e.Signal), Lost: e.Lost,
		Parked: e.Parked, Ended: now,
		Started: now.Add(-time.Duration(e.Seconds * float64(time.Second)))}
}
