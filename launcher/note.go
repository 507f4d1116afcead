package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/topo"
)

// note is what the launchers of two hosts say to each other, as docs/formats/hosts.md lists it. One
// field is set. One side is the host that leads; who leads anew is told again what it must know.
type note struct {
	// to the host that leads
	Offer   *offerNote   `json:"offer,omitempty"`
	Started *startedNote `json:"started,omitempty"`
	Joined  *workerNote  `json:"joined,omitempty"`
	Report  *reportNote  `json:"report,omitempty"`
	Line    *lineNote    `json:"line,omitempty"`
	Ended   *endedNote   `json:"ended,omitempty"`
	Leaving *reasonNote  `json:"leaving,omitempty"`

	// from it
	Job    *jobNote    `json:"job,omitempty"`
	Signal *signalNote `json:"signal,omitempty"`
	Over   *reasonNote `json:"over,omitempty"`
	Stays  *reasonNote `json:"stays,omitempty"`
}

type (
	// offerNote is the first word to a host that leads.
	offerNote struct {
		Slots int  `json:"slots"` // workers that the host can run
		Known bool `json:"known"` // it knows the job, from another head

		// Machine is what the host calls itself, where the job calls it otherwise.
		Machine string `json:"machine,omitempty"`
	}
	startedNote struct {
		Worker int `json:"worker"`
		PID    int `json:"pid"` // 0 = it could not be started
	}
	workerNote struct {
		Worker int `json:"worker"`
	}
	reportNote struct {
		Worker  int         `json:"worker"`
		Metrics api.Metrics `json:"metrics"`
	}
	lineNote struct {
		Worker int    `json:"worker"`
		Error  bool   `json:"error,omitempty"` // of standard error
		Text   string `json:"text"`
	}
	endedNote struct {
		Worker   int      `json:"worker"`
		PID      int      `json:"pid"`
		Code     int      `json:"code"`
		Signal   int      `json:"signal,omitempty"`
		Lost     string   `json:"lost,omitempty"` // how it was lost with its host
		Seconds  float64  `json:"seconds"`
		Survived bool     `json:"survived,omitempty"` // the job goes on without it
		Needless bool     `json:"needless,omitempty"` // it was ended since it was not needed
		Because  string   `json:"because,omitempty"`  // it waited in vain for one that was gone
		Tail     []string `json:"tail,omitempty"`
		Log      string   `json:"log,omitempty"`
	}
	reasonNote struct {
		Why string `json:"why"`
	}
	// jobNote says what the job is.
	jobNote struct {
		Spec job.Spec `json:"spec"`
		Port int      `json:"port"` // for MASTER_PORT
		Addr string   `json:"addr"` // for MASTER_ADDR

		// After is how many generations the job had before this start.
		After  topo.Generation `json:"after,omitempty"`
		Record *recordNote     `json:"record,omitempty"` // nil = none that this host could write
	}
	// recordNote says where the record of the job is.
	recordNote struct {
		URL string `json:"url"` // of the store
		Job string `json:"job"` // as which the store knows it
		Run string `json:"run"` // in which it is
	}
	signalNote struct {
		Worker int `json:"worker"`
		Signal int `json:"signal"`
	}
)

// maxAfter bounds the generations that a job can have had: nobody counts so far.
const maxAfter = 1 << 32

func (n *note) encode() []byte {
	b, err := json.Marshal(n)
	if err != nil {
		panic("agent: a note that is no JSON: " + err.Error())
	}
	return b
}

// decodeNote reads a note, and refuses what no launcher of this version says.
func decodeNote(b []byte) (*note, error) {
	var n note
	if err := strict.JSON(b, &n); err != nil {
		return nil, fmt.Errorf("a note that is none: %w", err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil || len(keys) != 1 {
		return nil, fmt.Errorf("a note with %d keys instead of one", len(keys))
	}
	switch {
	case n.Offer != nil && n.Offer.Slots < 0:
		return nil, fmt.Errorf("an offer of %d slots", n.Offer.Slots)
	case n.Job != nil:
		if err := n.Job.Spec.WithDefaults().Validate(); err != nil {
			return nil, fmt.Errorf("a job that cannot be: %w", err)
		}
		if n.Job.After > maxAfter {
			return nil, fmt.Errorf("a job of %d generations", n.Job.After)
		}
		if r := n.Job.Record; r != nil && (r.URL == "" || r.Job == "" || r.Run == "") {
			return nil, errors.New("a record that is nowhere")
		}
	}
	if seat, is := n.worker(); is && seat < 0 {
		return nil, fmt.Errorf("worker %d", seat)
	}
	n.sanitize()
	return &n, nil
}

// worker is whom a note is about; false if about none.
func (n *note) worker() (seat int, is bool) {
	switch {
	case n.Started != nil:
		return n.Started.Worker, true
	case n.Joined != nil:
		return n.Joined.Worker, true
	case n.Report != nil:
		return n.Report.Worker, true
	case n.Line != nil:
		return n.Line.Worker, true
	case n.Ended != nil:
		return n.Ended.Worker, true
	case n.Signal != nil:
		return n.Signal.Worker, true
	}
	return 0, false
}

// endOf is what there is to say of the end of a worker, less its output.
func endOf(seat int, e proc.Exit, survived bool) *endedNote {
	return &endedNote{Worker: seat, PID: e.PID, Code: e.Code, Signal: int(e.Signal), Lost: e.Lost,
		Seconds: e.Ended.Sub(e.Started).Seconds(), Survived: survived}
}

func (n *endedNote) exit() proc.Exit {
	now := time.Now()
	return proc.Exit{PID: n.PID, Code: n.Code, Signal: syscall.Signal(n.Signal), Lost: n.Lost,
		Ended: now, Started: now.Add(-time.Duration(n.Seconds * float64(time.Second)))}
}
