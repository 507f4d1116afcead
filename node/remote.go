package node

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/node/proc"
	"github.com/shoal-ml/shoal/state/cursor"
	"github.com/shoal-ml/shoal/topo"
)

// remote is the agent of another host, as the head sees it. Only the thread of the head's engine touches it.
type remote struct {
	name   fabric.Host
	mesh   fabric.Mesh
	parted bool // it is about to go
}

func (r *remote) host() fabric.Host { return r.name }

func (r *remote) send(l *letter) { r.mesh.Send(r.name, l.encode()) }

func (r *remote) finish(w topo.Worker, ticket uint64, source int, s arena.Status, text string) {
	r.send(&letter{Finish: &finishNote{Worker: w, Ticket: ticket, Status: s, Source: source, Text: text}})
}

func (r *remote) tell(w topo.Worker, v arena.View) { r.send(&letter{Tell: &tellNote{w, v}}) }

func (r *remote) fly(f *flight) {
	n := &flyNote{Flight: f.id}
	for i, p := range f.calls {
		n.Calls = append(n.Calls, flownCall{postNote{p.Worker, p.Ticket, note(&p.Call)}, f.of[i]})
	}
	for _, at := range f.sites {
		n.Sites = append(n.Sites, at.host())
	}
	r.send(&letter{Fly: n})
}

func (r *remote) land(id uint64) { r.send(&letter{Land: &flightNote{id}}) }

func (r *remote) abort(id uint64) { r.send(&letter{Abort: &flightNote{id}}) }

// office is the head's end of the links to other agents, as a fabric.Handler. What comes is dealt with on the engine's thread.
type office struct {
	*transfers
	agent *Agent
	mesh  fabric.Mesh

	dismissed chan struct{} // closed when all have left; nil = the job runs
}

// lookGone notes when the last host has left.
func (o *office) lookGone() {
	if o.dismissed != nil && len(o.agent.head.known) == 0 {
		close(o.dismissed)
		o.dismissed = nil
	}
}

// Up is told of a new link.
func (o *office) Up(fabric.Host) {}

// Down is told that a link is gone.
func (o *office) Down(peer fabric.Host, err error) {
	_ = o.agent.engine.later(func() {
		r := o.agent.head.known[peer]
		if r == nil {
			return
		}
		delete(o.agent.head.known, peer)
		if o.dismissed != nil {
			o.lookGone()
			return
		}
		o.agent.cfg.Hosts.Down(string(peer), o.agent.head.lostSite(r, err))
	})
}

// Message is told what another agent says.
func (o *office) Message(from fabric.Host, b []byte) {
	l, err := decode(b)
	_ = o.agent.engine.later(func() {
		if err == nil {
			err = o.read(from, l)
		}
		if err != nil {
			o.mesh.Drop(from, fmt.Errorf("%w; are both sides the same version of shoal?", err))
		}
	})
}

var errStranger = errors.New("it spoke before it said what it offers")

// read deals with a letter.
func (o *office) read(from fabric.Host, l *letter) error {
	a, hosts := o.agent, &o.agent.cfg.Hosts
	r := o.agent.head.known[from]
	if l.Offer != nil {
		if r != nil || l.Offer.Slots < 0 {
			return errors.New("it made an offer that makes no sense")
		}
		r = &remote{name: from, mesh: o.mesh}
		o.agent.head.known[from] = r
		r.send(&letter{Job: &jobNote{Spec: hosts.Spec, Addr: hosts.Addr, Port: hosts.Port}})
		hosts.Up(string(from), l.Offer.Slots)
		a.head.crew.hostUp(string(from), l.Offer.Slots)
		return nil
	}
	if r == nil {
		return errStranger
	}
	switch {
	case l.Post != nil:
		return o.post(r, l.Post)
	case l.Flown != nil:
		var err error
		if l.Flown.Error != "" {
			err = errors.New(l.Flown.Error)
		}
		a.head.flown(l.Flown.Flight, err)
	case l.Ask != nil:
		r.send(&letter{Answer: o.answer(l.Ask)})
	case l.Lose != nil && o.owns(r, l.Lose.Worker):
		a.head.lose(l.Lose.Worker, l.Lose.Why)
	case l.Expelled != nil && o.owns(r, l.Expelled.Worker):
		a.cfg.Log.Error("a worker broke the protocol and is cut off", "job", a.cfg.Job, "host", from, "worker", l.Expelled.Worker, "error", l.Expelled.Why)
	case l.Joined != nil && o.owns(r, l.Joined.Worker):
		a.noteJoined(int(l.Joined.Worker))
		a.head.arrived(l.Joined.Worker)
		if a.cfg.OnJoin != nil {
			a.cfg.OnJoin(int(l.Joined.Worker), l.Joined.Client)
		}
	case l.Left != nil && o.owns(r, l.Left.Worker):
		a.noteLeft(int(l.Left.Worker))
	case l.Report != nil && o.owns(r, l.Report.Worker):
		a.report(l.Report.Worker, l.Report.Metrics)
	case l.Line != nil:
		hosts.Line(int(l.Line.Worker), l.Line.Error, l.Line.Text)
	case l.Started != nil && o.owns(r, l.Started.Worker):
		hosts.Started(int(l.Started.Worker), l.Started.PID, l.Started.Error)
	case l.Ended != nil && o.owns(r, l.Ended.Worker):
		e := l.Ended
		now := time.Now()
		hosts.Ended(int(e.Worker), proc.Exit{PID: e.PID, Code: e.Code, Signal: syscall.Signal(e.Signal), Ended: now,
			Started: now.Add(-time.Duration(e.Seconds * float64(time.Second)))}, e.Tail, e.Log)
	case l.Apart != nil:
		o.part(r, l.Apart)
	case l.Leaving != nil:
		hosts.Leaving(string(from), l.Leaving.Why)
	default:
		return errors.New("it sent a letter that is not for the head, or of a worker that is not its own")
	}
	return nil
}

// part ends the link to an agent that another one has lost, if this host has not: all agents of a flight must reach each other. Of two
// that accuse each other the first to do so stays; the other may have stood still.
func (o *office) part(from *remote, n *apartNote) {
	if r := o.agent.head.known[n.Host]; r != nil && o.dismissed == nil && !from.parted && !r.parted {
		r.parted = true
		o.mesh.Drop(n.Host, fmt.Errorf("%s has no link with it any more: %s", from.name, n.Why))
	}
}

// owns reports whether a worker was given to an agent.
func (o *office) owns(r *remote, w topo.Worker) bool {
	s := o.agent.head.crew.seats[w]
	return s != nil && s.site == site(r)
}

func (o *office) post(r *remote, n *postNote) error {
	if err := n.Call.check(); err != nil {
		return err
	}
	if !o.owns(r, n.Worker) {
		return errors.New("it sent a call of a worker that is not its own")
	}
	p := o.agent.engine.fresh()
	*p = collective.Posted{Worker: n.Worker, Ticket: n.Ticket, Call: n.Call.call()}
	o.agent.head.post(p)
	return nil
}

// answer answers a session of another host.
func (o *office) answer(q *askNote) *answerNote {
	a := &answerNote{ID: q.ID}
	var err error
	if len(q.Ranks) > 0 {
		a.Group, a.Self, err = o.agent.head.group(q.Worker, q.Ranks)
	} else {
		var d cursor.Cursor
		if d, err = cursor.New(q.Samples, q.Batch, q.Seed, q.Shuffle); err == nil {
			err = o.agent.head.crew.state(d)
		}
	}
	if err != nil {
		a.Error = err.Error()
		var field *collective.FieldError
		if errors.As(err, &field) {
			a.Field, a.Error = field.Field, field.Problem
		}
	}
	return a
}
