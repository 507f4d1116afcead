package keeper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/pool"
)

// What the keepers of a pool send each other: one JSON object a message of the links, of which one
// field is set. docs/design/pool.md has what follows what. The functions in this file are pure, so
// the goroutines of the network and of loop may call them.

// message is one message.
type message struct {
	Hello   *hello       `json:"hello,omitempty"`   // of a keeper that has joined, the first
	Welcome *welcome     `json:"welcome,omitempty"` // of the head: its answer
	Refused *refused     `json:"refused,omitempty"` // of the head: its answer
	Report  *pool.Report `json:"report,omitempty"`  // of a keeper
	Order   *pool.Order  `json:"order,omitempty"`   // of the head
	Ask     *forwarded   `json:"ask,omitempty"`     // of a keeper: what a tool asks there
	Answer  *answered    `json:"answer,omitempty"`  // of the head
}

// hello says which host a keeper is of.
type hello struct {
	Host    string `json:"host"`    // its name in the pool
	Machine string `json:"machine"` // a random text that is kept on the machine
	Slots   int    `json:"slots"`
	Address string `json:"address"` // where the keeper listens
	// Link is how many bytes a second its card carries in each direction; absent = not known.
	Link float64 `json:"link,omitempty"`
	// Again says that this keeper was in the pool already, and has not been started since.
	Again bool `json:"again,omitempty"`
}

// welcome takes a keeper into the pool.
type welcome struct {
	Pool string `json:"pool"`
}

// refused says why a keeper cannot be taken.
type refused struct {
	Why string `json:"why"`
}

// forwarded is the request of a tool.
type forwarded struct {
	ID   uint64          `json:"id"`
	Path string          `json:"path"`
	Body json.RawMessage `json:"body,omitempty"` // of a POST; nothing makes it a GET
}

// answered is the answer to the request with the same ID, or a part of it. A queue of some thousand
// jobs is longer than a message may be.
type answered struct {
	ID     uint64 `json:"id"`
	Status int    `json:"status"`
	Body   []byte `json:"body"`           // in base64
	More   bool   `json:"more,omitempty"` // whether the next message with this ID goes on with it
}

// answerPart is how many bytes of an answer a message has at the most. All parts are queued
// together, so an order that comes after them waits until the whole answer is sent.
const answerPart = 256 << 10

// inParts returns an answer as the messages in which it is sent.
func (a answered) inParts() (list []*message) {
	for part := range slices.Chunk(a.Body, answerPart) {
		list = append(list, &message{Answer: &answered{a.ID, a.Status, part, true}})
	}
	if len(list) == 0 {
		list = []*message{{Answer: &answered{ID: a.ID, Status: a.Status}}}
	}
	list[len(list)-1].Answer.More = false
	return list
}

// encode returns a message as it is sent. It fails where the message is too long for a link.
func (m *message) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	if b.Len() > fabric.MaxMessage {
		return nil, fmt.Errorf("%d bytes are more than the %d of a message", b.Len(),
			fabric.MaxMessage)
	}
	return b.Bytes(), nil
}

// maxText bounds a text that people read in a message, in bytes.
const maxText = 64 << 10

// decodeMessage reads a message, and refuses what no keeper sends.
func decodeMessage(b []byte) (*message, error) {
	m := &message{}
	if err := strict.JSON(b, m); err != nil {
		return nil, fmt.Errorf("this is no message of a keeper: %w", err)
	}
	n := 0
	for _, set := range []bool{m.Hello != nil, m.Welcome != nil, m.Refused != nil,
		m.Report != nil, m.Order != nil, m.Ask != nil, m.Answer != nil} {
		if set {
			n++
		}
	}
	err := error(nil)
	switch {
	case n != 1:
		err = fmt.Errorf("it says %d things, and not one", n)
	case m.Hello != nil:
		err = m.Hello.check()
	case m.Refused != nil && len(m.Refused.Why) > maxText:
		err = errors.New("the reason is too long")
	case m.Report != nil:
		err = checkReport(m.Report)
	case m.Order != nil:
		err = checkOrder(m.Order)
	case m.Ask != nil:
		err = m.Ask.check()
	case m.Answer != nil && (m.Answer.Status < 200 || m.Answer.Status > 599):
		err = fmt.Errorf("the status is %d", m.Answer.Status)
	}
	if err != nil {
		return nil, fmt.Errorf("this is no message of a keeper: %w", err)
	}
	return m, nil
}

// MaxLink bounds what a card carries, in bytes a second.
const MaxLink = 1 << 50

// check returns what is wrong with a hello; nil = nothing.
func (h *hello) check() error {
	switch {
	case len(h.Machine) < 8 || len(h.Machine) > 64:
		return errors.New("the machine is not known")
	case h.Slots < 1 || h.Slots > job.MaxWorkers:
		return fmt.Errorf("%d slots are not 1 to %d", h.Slots, job.MaxWorkers)
	case !(h.Link >= 0 && h.Link <= MaxLink):
		return fmt.Errorf("a card cannot carry %g bytes a second", h.Link)
	case len(h.Address) > 300:
		return errors.New("the address is too long")
	}
	return tcp.CheckName(fabric.Host(h.Host))
}

// looks are the paths of a GET that a keeper asks its head for, with a query; forwardable are these
// and then those of a POST.
var (
	looks       = []string{PathQueue, PathJob}
	forwardable = append(looks, PathSubmit, PathStop, PathPark, PathResume, PathResize, PathDrain,
		PathForget)
)

// check returns what is wrong with a request; nil = nothing.
func (f *forwarded) check() error {
	u, err := url.Parse(f.Path)
	if err != nil || len(f.Path) > maxText || u.Scheme != "" || u.Host != "" || u.User != nil ||
		!slices.Contains(forwardable, u.Path) {
		return fmt.Errorf("%.40q cannot be asked", f.Path)
	}
	return nil
}

// jobName matches the names of jobs in a pool, which are part of those of files.
var jobName = pattern.New(`^[a-z0-9][-a-z0-9]{0,127}$`)

// checkJob returns an error for a text that cannot be the name of a job; nil = it can.
func checkJob(name string) error {
	if !jobName.MatchString(name) {
		return fmt.Errorf("a job cannot be called %.128q", name)
	}
	return nil
}

// checkOrder returns what is wrong with an order; nil = nothing.
func checkOrder(o *pool.Order) error {
	verbs := []pool.Verb{pool.StartRun, pool.JoinRun, pool.AllotRun, pool.ParkRun, pool.StopRun,
		pool.InviteRun, pool.RecoverRun, pool.LimitRun, pool.DropRun,
		pool.KillRun}
	switch {
	case !slices.Contains(verbs, o.Verb):
		return fmt.Errorf("nobody can %.20q a job", o.Verb)
	case o.Attempt < 0 || o.Part < 0 || o.Workers < 0 || o.Workers > job.MaxWorkers ||
		o.Slots < 0 || o.Slots > job.MaxWorkers:
		return errors.New("an order with a number that cannot be")
	case o.Verb == pool.JoinRun && tcp.CheckName(fabric.Host(o.Name)) != nil:
		return errors.New("the host has no good name in the job")
	}
	return checkJob(o.Job)
}

// leastPace and mostPace bound the seconds of a step, so that steps a second are a number as well.
const leastPace, mostPace = 1e-12, 1e12

// checkReport returns what is wrong with a report; nil = nothing.
func checkReport(r *pool.Report) error {
	for i, j := range r.Jobs {
		if err := checkJob(j.Job); err != nil {
			return err
		}
		switch {
		case i > 0 && r.Jobs[i-1].Job >= j.Job:
			return errors.New("the jobs are not in order")
		case j.Attempt < 0 || j.Part < 0:
			return errors.New("a part with a number that cannot be")
		case len(j.Refused) > maxText || j.End != nil && len(j.End.Error) > maxText:
			return errors.New("a reason is too long")
		}
		if l := j.Led; l != nil {
			counts := append(slices.Collect(maps.Values(l.Workers)), l.Size, l.Want)
			if slices.ContainsFunc(counts, func(n int) bool { return n < 0 || n > 1<<20 }) ||
				l.Pace != 0 && !(l.Pace >= leastPace && l.Pace <= mostPace) ||
				!(l.Waits >= 0 && l.Waits <= 1) {
				return fmt.Errorf("what is said of job %s cannot be", j.Job)
			}
		}
	}
	return nil
}
