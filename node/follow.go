package node

import (
	"errors"
	"fmt"
	"sync"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/state/cursor"
	"github.com/shoal-ml/shoal/topo"
)

// follower is the end of the link to the head, on an agent that is not the head: the chief of its engine, and a fabric.Handler.
type follower struct {
	*transfers
	agent  *Agent
	mesh   fabric.Mesh
	head   fabric.Host // "" until it has said so
	offer  offer
	orders Errands
	open   map[openCall]*collective.Posted // engine's thread: what the head has not completed

	mu   sync.Mutex
	last uint64
	asks map[uint64]chan *answerNote
	gone error // the head is
}

type openCall struct {
	worker topo.Worker
	ticket uint64
}

// Errands is what the head wants of the launcher of another host. The functions run on the engine's thread: they must not wait for the
// agent.
type Errands struct {
	Job    func(j jobNote)            // what the job is: told first, once
	Start  func(seat int, late bool)  // start a worker
	Signal func(seat int, signal int) // to a worker
	Over   func(err error)            // the job is over, or its head is lost
}

func (f *follower) send(l *letter) { f.mesh.Send(f.leader(), l.encode()) }

// leader is the head, "" before it has said so.
func (f *follower) leader() fabric.Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.head
}

func (f *follower) arrived(topo.Worker) {} // the session tells, with the name of the client

func (f *follower) post(p *collective.Posted) {
	if p.Call.Kind != arena.KindEnter {
		if err := p.Call.CheckMemory(); err != nil {
			m := f.agent.engine.byID[p.Worker]
			f.agent.engine.refuse(p, m.blame(err))
			return
		}
	}
	f.open[openCall{p.Worker, p.Ticket}] = p
	f.send(&letter{Post: &postNote{p.Worker, p.Ticket, note(&p.Call)}})
}

func (f *follower) flown(id uint64, err error) {
	n := &flownNote{Flight: id}
	if err != nil {
		n.Error = err.Error()
	}
	f.send(&letter{Flown: n})
}

func (f *follower) lose(w topo.Worker, why string) {
	f.agent.engine.drainOf(w)
	f.send(&letter{Lose: &workerNote{w, why}})
}

// Up offers this host's room to every agent: the head takes it.
func (f *follower) Up(peer fabric.Host) {
	_ = f.agent.engine.later(func() { f.mesh.Send(peer, (&letter{Offer: &f.offer}).encode()) })
}

// Down is told that a link is gone. That to the head is the job. Without one to another agent no flight of both can be: the head has to
// know, unless that agent has left by itself.
func (f *follower) Down(peer fabric.Host, err error) {
	f.mu.Lock()
	head := peer == f.head
	if head && f.gone == nil {
		f.gone = fmt.Errorf("the head of the job, on %s, is lost: %w", peer, err)
		for id, c := range f.asks {
			delete(f.asks, id)
			close(c)
		}
	}
	gone, joined := f.gone, f.head != ""
	f.mu.Unlock()
	switch {
	case head:
		f.orders.Over(gone)
	case joined && err != fabric.ErrClosed: // wrapped, it is no goodbye
		f.send(&letter{Apart: &apartNote{peer, err.Error()}})
	}
}

// Message is told what another agent says.
func (f *follower) Message(from fabric.Host, b []byte) {
	l, err := decode(b)
	if err != nil {
		_ = f.agent.engine.later(func() { f.mesh.Drop(from, fmt.Errorf("it sent %w; are both sides the same version of shoal?", err)) })
		return
	}
	switch {
	case l.Offer != nil: // meant for the head
		return
	case l.Job != nil:
		f.mu.Lock()
		f.head = from
		f.mu.Unlock()
	case l.Answer != nil: // a session waits for it
		f.mu.Lock()
		c := f.asks[l.Answer.ID]
		delete(f.asks, l.Answer.ID)
		f.mu.Unlock()
		if c != nil {
			c <- l.Answer
		}
		return
	}
	_ = f.agent.engine.later(func() {
		if err := f.read(from, l); err != nil {
			f.mesh.Drop(from, err)
		}
	})
}

// read deals with a letter from the head.
func (f *follower) read(from fabric.Host, l *letter) error {
	e := f.agent.engine
	switch {
	case from != f.leader():
		return errors.New("it gave orders, and it is not the head")
	case l.Job != nil:
		f.orders.Job(*l.Job)
	case l.Start != nil:
		f.orders.Start(int(l.Start.Worker), l.Start.Late)
	case l.Signal != nil:
		f.orders.Signal(int(l.Signal.Worker), l.Signal.Signal)
	case l.Fly != nil:
		return f.fly(l.Fly)
	case l.Land != nil:
		e.land(l.Land.Flight)
	case l.Abort != nil:
		e.abort(l.Abort.Flight)
	case l.Finish != nil:
		n := l.Finish
		e.finish(n.Worker, n.Ticket, n.Source, n.Status, n.Text)
		key := openCall{n.Worker, n.Ticket}
		if p := f.open[key]; p != nil {
			delete(f.open, key)
			e.recycle(p)
		}
	case l.Tell != nil:
		e.tell(l.Tell.Worker, l.Tell.View)
	case l.Over != nil:
		var err error
		if l.Over.Why != "" {
			err = errors.New(l.Over.Why)
		}
		f.orders.Over(err)
	default:
		return errors.New("it sent a letter that is not for this agent")
	}
	return nil
}

// fly works on this agent's part of a flight.
func (f *follower) fly(n *flyNote) error {
	var (
		calls   []*collective.Call
		of      []int
		workers []topo.Worker
		self    = -1
	)
	for i, h := range n.Sites {
		if h == f.mesh.Self() {
			self = i
		}
	}
	for i := range n.Calls {
		c := &n.Calls[i]
		if c.Site < 0 || c.Site >= len(n.Sites) || c.Call.check() != nil {
			return errors.New("it sent a flight that cannot be")
		}
		call := c.Call.call()
		if c.Site == self {
			p := f.open[openCall{c.Worker, c.Ticket}]
			if p == nil {
				return fmt.Errorf("it sent a flight with call %d of worker %d, which is not open", c.Ticket, c.Worker)
			}
			workers = append(workers, c.Worker)
			call.In, call.Out, call.Far = p.Call.In, p.Call.Out, nil
			if call.Promoted {
				call.In, call.Out = p.Call.Out, nil
			}
		}
		calls, of = append(calls, &call), append(of, c.Site)
	}
	if self < 0 || len(calls) == 0 || calls[0].Kind.Pairwise() && len(calls) != 2 {
		return errors.New("it sent a flight in which this host has no part")
	}
	f.agent.engine.begin(n.Flight, calls, of, workers, n.Sites, self)
	return nil
}

// group and state ask the head, and wait for its answer.
func (f *follower) group(w topo.Worker, ranks []int) (id topo.GroupID, self int, err error) {
	a, err := f.ask(&askNote{Worker: w, Ranks: ranks})
	if err != nil {
		return 0, 0, err
	}
	return a.Group, a.Self, nil
}

func (f *follower) state(w topo.Worker, d cursor.Cursor) error {
	_, err := f.ask(&askNote{Worker: w, Samples: d.Samples, Batch: d.Batch, Seed: d.Seed, Shuffle: !d.Plain})
	return err
}

func (f *follower) ask(q *askNote) (*answerNote, error) {
	reply := make(chan *answerNote, 1)
	f.mu.Lock()
	if f.gone != nil {
		f.mu.Unlock()
		return nil, f.gone
	}
	f.last++
	q.ID = f.last
	f.asks[q.ID] = reply
	f.mu.Unlock()
	f.send(&letter{Ask: q})
	a := <-reply
	switch {
	case a == nil:
		return nil, f.gone
	case a.Field != "":
		return nil, &collective.FieldError{Field: a.Field, Problem: a.Error}
	case a.Error != "":
		return nil, errors.New(a.Error)
	}
	return a, nil
}

// tellHead sends the head a letter of the launcher's. It is on its way when tellHead returns: closing the links does not lose it.
func (a *Agent) tellHead(l *letter) { _ = a.engine.do(func() { a.follower.send(l) }) }

// sayLeaving asks the head to relieve this host of its workers.
func (a *Agent) sayLeaving(why string) { a.tellHead(&letter{Leaving: &reason{why}}) }
