package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// letter is a message between the head of a job and another agent, as docs/formats/hosts.md lists them. One field is set.
type letter struct {
	// to the head
	Offer    *offer      `json:"offer,omitempty"`
	Joined   *joinedNote `json:"joined,omitempty"`
	Left     *workerNote `json:"left,omitempty"`
	Post     *postNote   `json:"post,omitempty"`
	Flown    *flownNote  `json:"flown,omitempty"`
	Lose     *workerNote `json:"lose,omitempty"`
	Expelled *workerNote `json:"expelled,omitempty"`
	Ask      *askNote    `json:"ask,omitempty"`
	Report   *reportNote `json:"report,omitempty"`
	Line     *lineNote   `json:"line,omitempty"`
	Started  *startNote  `json:"started,omitempty"`
	Ended    *endedNote  `json:"ended,omitempty"`
	Leaving  *reason     `json:"leaving,omitempty"`
	Apart    *apartNote  `json:"apart,omitempty"`

	// from the head
	Job    *jobNote    `json:"job,omitempty"`
	Start  *startNote  `json:"start,omitempty"`
	Signal *signalNote `json:"signal,omitempty"`
	Fly    *flyNote    `json:"fly,omitempty"`
	Land   *flightNote `json:"land,omitempty"`
	Abort  *flightNote `json:"abort,omitempty"`
	Finish *finishNote `json:"finish,omitempty"`
	Tell   *tellNote   `json:"tell,omitempty"`
	Answer *answerNote `json:"answer,omitempty"`
	Over   *reason     `json:"over,omitempty"`
}

type (
	// offer says what an agent brings.
	offer struct {
		Slots int `json:"slots"` // workers that it can run
		Cores int `json:"cores"`
	}
	reason struct{ Why string }
	// apartNote says that an agent has no link with another one any more.
	apartNote struct {
		Host fabric.Host `json:"host"`
		Why  string      `json:"why"`
	}
	workerNote struct {
		Worker topo.Worker `json:"worker"`
		Why    string      `json:"why,omitempty"`
	}
	joinedNote struct {
		Worker topo.Worker `json:"worker"`
		Client string      `json:"client"`
	}
	postNote struct {
		Worker topo.Worker `json:"worker"`
		Ticket uint64      `json:"ticket"`
		Call   callNote    `json:"call"`
	}
	// callNote is a collective.Call without its memory.
	callNote struct {
		Kind      collective.Kind      `json:"kind"`
		DType     tensor.DType         `json:"dtype"`
		Reduction collective.Reduction `json:"reduction,omitempty"`
		Group     topo.GroupID         `json:"group,omitempty"`
		Peer      int                  `json:"peer,omitempty"`
		Tag       uint32               `json:"tag,omitempty"`
		Weight    float64              `json:"weight,omitempty"`
		In        int                  `json:"in"` // elements
		Out       int                  `json:"out"`
		Splits    []int                `json:"splits,omitempty"`
		Shape     []int                `json:"shape,omitempty"`
		More      bool                 `json:"more,omitempty"`
		Step      bool                 `json:"step,omitempty"`
		Promoted  bool                 `json:"promoted,omitempty"`
	}
	flownNote struct {
		Flight uint64 `json:"flight"`
		Error  string `json:"error,omitempty"`
	}
	// askNote is a question of a session: a group, or the job's data.
	askNote struct {
		ID      uint64      `json:"id"`
		Worker  topo.Worker `json:"worker"`
		Ranks   []int       `json:"ranks,omitempty"`
		Samples uint64      `json:"samples,omitempty"`
		Batch   uint64      `json:"batch,omitempty"`
		Seed    uint64      `json:"seed,omitempty"`
		Shuffle bool        `json:"shuffle,omitempty"`
	}
	answerNote struct {
		ID    uint64       `json:"id"`
		Group topo.GroupID `json:"group,omitempty"`
		Self  int          `json:"self,omitempty"`
		Field string       `json:"field,omitempty"` // of an error
		Error string       `json:"error,omitempty"`
	}
	reportNote struct {
		Worker  topo.Worker `json:"worker"`
		Metrics api.Metrics `json:"metrics"`
	}
	lineNote struct {
		Worker topo.Worker `json:"worker"`
		Error  bool        `json:"error,omitempty"` // of standard error
		Text   string      `json:"text"`
	}
	// startNote orders a worker to be started, and tells that it was.
	startNote struct {
		Worker topo.Worker `json:"worker"`
		Late   bool        `json:"late,omitempty"` // the job runs already
		PID    int         `json:"pid,omitempty"`
		Error  string      `json:"error,omitempty"` // it could not be started
	}
	endedNote struct {
		Worker  topo.Worker `json:"worker"`
		PID     int         `json:"pid"`
		Code    int         `json:"code"`
		Signal  int         `json:"signal,omitempty"`
		Seconds float64     `json:"seconds"`
		Tail    []string    `json:"tail,omitempty"`
		Log     string      `json:"log"`
	}
	signalNote struct {
		Worker topo.Worker `json:"worker"`
		Signal int         `json:"signal"`
	}
	// jobNote is the first word of the head to another agent.
	jobNote struct {
		Spec job.Spec `json:"spec"`
		Port int      `json:"port"` // for MASTER_PORT
		Addr string   `json:"addr"` // for MASTER_ADDR
	}
	flyNote struct {
		Flight uint64        `json:"flight"`
		Calls  []flownCall   `json:"calls"`
		Sites  []fabric.Host `json:"sites"`
	}
	// flownCall is a call of a flight, and where it is.
	flownCall struct {
		postNote
		Site int `json:"site"`
	}
	flightNote struct {
		Flight uint64 `json:"flight"`
	}
	finishNote struct {
		Worker topo.Worker  `json:"worker"`
		Ticket uint64       `json:"ticket"`
		Status arena.Status `json:"status"`
		Source int          `json:"source"`
		Text   string       `json:"text,omitempty"`
	}
	tellNote struct {
		Worker topo.Worker `json:"worker"`
		View   arena.View  `json:"view"`
	}
)

func note(c *collective.Call) callNote {
	n := callNote{Kind: c.Kind, DType: c.DType, Reduction: c.Reduction, Group: c.Group, Peer: c.Peer, Tag: c.Tag, Weight: c.Weight,
		Splits: c.Splits, Shape: c.Shape, More: c.More, Step: c.Step, Promoted: c.Promoted}
	if c.DType.Valid() {
		n.In, n.Out = c.InLen(), c.OutLen()
	}
	if math.IsNaN(n.Weight) || math.IsInf(n.Weight, 0) {
		n.Weight = -1 // JSON has no word for it, and the head refuses both
	}
	return n
}

// call is the inverse of note: a call with its memory far away.
func (n *callNote) call() collective.Call {
	return collective.Call{Kind: n.Kind, DType: n.DType, Reduction: n.Reduction, Group: n.Group, Peer: n.Peer, Tag: n.Tag, Weight: n.Weight,
		Splits: n.Splits, Shape: n.Shape, More: n.More, Step: n.Step, Promoted: n.Promoted, Far: &collective.Far{In: n.In, Out: n.Out}}
}

// check refuses what no agent of this version sends, so that nothing from a link can make the head index or allocate beyond reason.
func (n *callNote) check() error {
	switch {
	case n.Kind != arena.KindEnter && !n.Kind.Valid(), n.Kind != arena.KindEnter && !n.DType.Valid(), !n.Reduction.Valid():
		return fmt.Errorf("a call that cannot be: kind %d, dtype %d, reduction %d", n.Kind, n.DType, n.Reduction)
	case n.In < 0 || n.Out < 0 || n.In > maxElements || n.Out > maxElements:
		return fmt.Errorf("a call of %d and %d elements", n.In, n.Out)
	}
	return nil
}

const maxElements = 1 << 48

func (l *letter) encode() []byte {
	b, err := json.Marshal(l)
	if err != nil {
		panic("node: a letter that is no JSON: " + err.Error())
	}
	return b
}

func decode(b []byte) (*letter, error) {
	var l letter
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return nil, fmt.Errorf("a message that is no letter: %w", err)
	}
	return &l, nil
}
