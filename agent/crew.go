package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/topo"
)

// crew is the shell of head.Agent: it tells it of this host's workers, and makes work of the
// engine, words to workers and orders to the launcher of what it wants. All of it runs on the
// engine's thread.
type crew struct {
	engine  *engine
	agent   *head.Agent
	network fabric.Network // nil where this host is alone
	orders  Orders
	hosts   []member.Host // of the newest generation
	// workers that the launcher starts without an order
	unasked  int
	leads    string                                  // who was told to lead it
	unwanted map[topo.WorkerID]bool                  // workers that will be no members
	asking   map[topo.WorkerID][]chan<- head.Grouped // sessions that wait for a group
	batches  map[head.BatchID]*batch
	landed   []*batch    // to be used again
	begun    []*transfer // of the last batch that was begun
	sites    []int       // of the last transfer, by their number in its batch
	routes   routes
	news     []member.Action
	parted   bool
	shaper   shaper
	stalls   *stall.Detector
	began    time.Time       // begin of the time by which stalls and transfers are measured
	after    topo.Generation // which the job had before this start

	published publisher         // the status
	changed   bool              // the status may have changed otherwise than by a step
	depth     int               // inputs and settlings that are under way
	waiting   []func(o *Orders) // orders that are given when depth is 0

	left     bool     // this agent ends: what other hosts say is of no interest any more
	carrying bool     // actions are being carried out
	later    []func() // inputs that came up meanwhile
	errs     []error  // by part of a batch
	said     []byte   // the last message
	repeats  repeats  // of long frames
}

// input gives the agent an input and carries out what follows from it.
func (c *crew) input(f func()) {
	c.changed = true
	if c.carrying {
		c.later = append(c.later, f)
		return
	}
	c.inputOfSteps(f)
}

// inputOfSteps is input where nothing changes of the status but what steps change, and what actions
// tell of.
func (c *crew) inputOfSteps(f func()) {
	c.depth++
	f()
	c.settle()
	c.depth--
	c.giveOrders()
}

// settle carries out what the agent wants, until it wants nothing. What is to be sent goes first:
// other hosts shall not wait while this one begins a batch or copies its results, nor their words
// in a queue behind its tensors.
func (c *crew) settle() {
	c.carrying = true
	c.depth++
	for actions := c.agent.Ready(); len(actions) > 0; actions = c.agent.Ready() {
		for _, a := range actions {
			switch a := a.(type) {
			case *head.Send:
				c.send(fabric.Host(a.To), a.Message)
			case *head.Execute, head.Drop:
			case *head.Apply:
				c.changed = c.changed || a.Changed
			default:
				c.changed = true
			}
		}
		c.publish() // before a worker or the launcher can learn of it
		for _, a := range actions {
			c.carryOut(a)
		}
		for len(c.later) > 0 {
			f := c.later[0]
			c.later = slices.Delete(c.later, 0, 1)
			f()
		}
	}
	c.carrying = false
	c.publish()
	for _, n := range c.news { // only now, when the step that they came with is counted
		c.tellNews(n)
	}
	c.news = c.news[:0]
	c.depth--
	c.giveOrders()
}

func (c *crew) carryOut(action head.Action) {
	switch a := action.(type) {
	case *head.Execute:
		c.execute(a)
	case head.Drop:
		c.drop(a.Batch)
	case *head.Apply:
		c.apply(a)
	case head.Start:
		if int(a.First) >= c.unasked {
			start := StartOrder{First: int(a.First), Count: a.Count}
			c.order(func(o *Orders) { o.Start(start) })
		}
	case head.Stop:
		c.unwanted[a.Worker] = true
		c.order(func(o *Orders) { o.Stop(int(a.Worker), string(a.Because)) })
	case head.Grouped:
		if list := c.asking[a.Worker]; len(list) > 0 {
			list[0] <- a
			c.asking[a.Worker] = list[1:]
		}
	case head.Refuse:
		if m := c.engine.byID[a.Worker]; m != nil {
			c.engine.expel(m, errors.New(a.Why))
		}
	case head.Decided:
		c.decided(a.Record)
	case head.Meshed:
		c.mention("mesh", a.Because)
	case head.DrainBlocked:
		c.mention("kept", a.Because)
	case head.News:
		c.news = append(c.news, a.Decision)
	case head.Layout:
		c.learn(a.Text)
	case head.Leave:
		c.order(func(o *Orders) { o.Leave(string(a.Because), a.Drained) })
	case head.Finish:
		c.order(func(o *Orders) { o.End(a.OK, string(a.Because)) })
	}
}

// send sends a message. A frame that is too long, as one that is sent again with all that was not
// answered, is cut between its bodies, and what cannot be cut goes in parts. What is too long for
// that ends the link, for the other side would wait for it in vain.
func (c *crew) send(to fabric.Host, m head.Message) {
	c.said = head.Append(c.said[:0], m)
	b := c.said
	f, frame := m.(*head.Frame)
	switch {
	case len(b) <= fabric.MaxMessage:
		c.network.Send(to, b)
	case frame && len(f.Payloads) > 1:
		one, other := f.Halves()
		c.send(to, one)
		c.send(to, other)
	case len(b) > maxSaid:
		c.network.Drop(to,
			fmt.Errorf("it must be told something of %d MiB, and can be told %d MiB "+
				"at once: make fewer collectives a step, or fewer groups", len(b)>>20, maxSaid>>20))
	case !frame || !c.repeats.tooSoon(to, f, len(b), time.Now()):
		inParts(c.network, to, b)
		c.said = nil // messages are seldom so long
	}
}

// decided tells the launcher of another head, and of hosts that the job goes on without, also those
// that it can still reach. The workers of one that was drained have been let go, and end in their
// own time.
func (c *crew) decided(r member.Record) {
	c.order(func(o *Orders) { o.Decided(r) })
	for _, h := range c.hosts {
		if !h.Draining && !r.Belongs(h.Name) {
			c.order(func(o *Orders) { o.Gone(h.Name, "is no part of the job any more") })
		}
	}
	c.hosts = append(c.hosts[:0], r.Hosts...)
	if r.Head != c.leads {
		c.leads = r.Head
		c.order(func(o *Orders) { o.Lead(r.Head) })
	}
}

// arrived tells that a worker has joined. Those that the job begins with take part at once.
func (c *crew) arrived(m *worker, late bool) {
	if !late {
		m.rank, m.entered = topo.Rank(m.id), true
		c.input(func() { c.agent.Asks(m.id) })
	}
}

// post takes a call of a worker that is sound as far as its memory goes.
func (c *crew) post(m *worker, p *collective.Posted) {
	if p.Call.Kind == arena.KindEnter {
		c.enter(m, p)
		return
	}
	if err := c.check(m, &p.Call); err != nil {
		c.engine.fail(p, m.blame(err))
		return
	}
	if p.Call.More || p.Call.Step || p.Call.Aside {
		m.fresh = false
	}
	c.agent.Post(p)
	if !c.carrying {
		c.settle()
	}
}

// check finds what is wrong with a call that only who knows the job can know.
func (c *crew) check(m *worker, call *collective.Call) error {
	if !m.entered {
		return &collective.FieldError{Field: "group",
			Problem: "this worker has not entered the job yet: it is a job of one"}
	}
	self, size, ok := c.agent.Index(call.Group, m.id)
	if !ok {
		return &collective.FieldError{Field: "group",
			Problem: fmt.Sprintf("%d is no group of this rank", call.Group)}
	}
	if (call.More || call.Step || call.Aside) && call.Kind.Pairwise() ||
		call.Aside && call.Group != topo.World {
		return &collective.FieldError{Field: "flags",
			Problem: "only a collective can be part of a step, and only one of all ranks aside " +
				"of one"}
	}
	if call.Sparing && !call.Step {
		return &collective.FieldError{Field: "flags",
			Problem: "only a collective that ends a step can ask to be sparing with members"}
	}
	if call.Aside && (call.More || call.Step) {
		return &collective.FieldError{Field: "flags",
			Problem: "a collective is part of the step, or aside of it"}
	}
	if call.Kind == collective.Reshape {
		if err := c.checkReshape(m.id, call); err != nil {
			return err
		}
	}
	if call.Window != nil && c.network != nil {
		return &collective.FieldError{Field: "flags",
			Problem: "calls come in pieces only in a job of one host"}
	}
	if err := c.checkShared(call); err != nil {
		return err
	}
	return call.Check(size, self)
}

// lost tells that a worker is gone, or will post no more; done that its work is. What it has posted
// in full still counts.
func (c *crew) lost(w topo.WorkerID, how string, done bool) {
	c.input(func() {
		if m := c.engine.byID[w]; m != nil {
			c.engine.drain(m)
			c.engine.bereave(m, how)
			if m.enter != 0 {
				c.engine.finish(w, m.enter, -1, arena.Lost, "this worker is gone")
				m.enter = 0
			}
		}
		if done {
			c.agent.Finished(w, how)
		} else {
			c.agent.Lost(w, how)
		}
	})
}

// group asks for a group of ranks on behalf of a worker; answer gets it.
func (c *crew) group(w topo.WorkerID, ranks []int, answer chan<- head.Grouped) error {
	members := c.agent.Known().View.Members
	list := make([]topo.WorkerID, len(ranks))
	for i, rank := range ranks {
		if rank < 0 || rank >= len(members) {
			return &collective.FieldError{Field: "ranks",
				Problem: fmt.Sprintf("%v: %d is no rank of the job", ranks, rank)}
		}
		list[i] = members[rank].Worker
	}
	c.asking[w] = append(c.asking[w], answer)
	c.input(func() { c.agent.Group(w, list) })
	return nil
}

// state notes the job's data; every worker must state the same.
func (c *crew) state(w topo.WorkerID, d cursor.Cursor) error {
	if have := c.agent.Known().Data; have != nil && !have.SameData(d) {
		return &collective.FieldError{Field: "samples",
			Problem: fmt.Sprintf("the job's data was stated as %s; every worker must state the "+
				"same, this one said %s", describe(*have), describe(d))}
	}
	c.input(func() { c.agent.State(w, d) })
	return nil
}

func describe(d cursor.Cursor) string {
	return fmt.Sprintf("%d samples, batch %d, seed %d, shuffle %v", d.Samples, d.Batch, d.Seed,
		!d.Plain)
}

// number is what workers and people are told that a generation is; 0 = the job has not begun.
func (c *crew) number(g topo.Generation) uint64 {
	if g > 0 {
		g += c.after
	}
	return uint64(g)
}

// here lists the workers of this host that are in a list.
func (c *crew) here(list []topo.WorkerID) (found []*worker) {
	for _, w := range list {
		if m := c.engine.byID[w]; m != nil {
			found = append(found, m)
		}
	}
	return found
}
