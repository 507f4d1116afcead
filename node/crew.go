package node

import (
	"errors"
	"fmt"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/cursor"
	"github.com/shoal-ml/shoal/topo"
)

// crew carries out what the membership decides: it tells the data plane and the workers of a new generation when a step
// ends, and the launcher of workers to start and to stop. All of it runs on the engine's thread.
//
// The membership may be ahead of what the workers know: machine.View() is what was decided, told is what they know. The two
// meet at the end of a step.
type crew struct {
	head    *head
	machine *member.Machine
	first   []topo.Worker         // the workers that the job begins with, in the order of their ranks
	seats   map[topo.Worker]*seat // workers whose processes run, and those that posted what still counts
	orders  Orders

	told    topo.View
	behind  bool // told is not even the first generation
	elastic bool
	steps   uint64
	data    *cursor.Cursor                     // nil = none was stated
	waiting []*collective.Posted               // calls that end a step, held by a pause
	parting string                             // why all members are let go when the step ends; "" = they are not
	parted  bool                               // they were
	enters  map[topo.Worker]*collective.Posted // late workers that ask to take part
}

// seat is a worker as the head knows it.
type seat struct {
	site     site
	rank     topo.Rank // as the worker knows it; 0 for one that has not entered
	entered  bool
	unwanted bool // it will be no member
	fresh    bool // it has entered, and not begun a step yet: perhaps it has not got the state
}

// blame adds the worker to an error that names a field.
func (s *seat) blame(err error) error { return fmt.Errorf("rank %d, %w", s.rank, err) }

// Orders is what the membership wants of the launcher. The functions run on the engine's thread: they must not wait for the
// agent.
type Orders struct {
	Start func(o StartOrder)         // start more workers
	Stop  func(seat int, why string) // end a worker that is no member
	Event func(e Event)              // something that a person may want to know
	End   func(ok bool, why string)  // the job is over
}

// StartOrder asks for workers on a host, "" where there is only one; First and those after it are their seats.
type StartOrder struct {
	Host         string
	First, Count int
}

// withDefaults fills in functions that do nothing.
func (o Orders) withDefaults() Orders {
	if o.Start == nil {
		o.Start = func(StartOrder) {}
	}
	if o.Stop == nil {
		o.Stop = func(int, string) {}
	}
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	if o.End == nil {
		o.End = func(bool, string) {}
	}
	return o
}

// Event is a change of the membership.
type Event struct {
	What       string `json:"what"` // "generation", "pause", "resume", "stop"
	Generation uint64 `json:"generation"`
	Size       int    `json:"size"`
	Joined     []int  `json:"joined,omitempty"` // seats
	Lost       []int  `json:"lost,omitempty"`
	Finished   []int  `json:"finished,omitempty"`
	Released   []int  `json:"released,omitempty"`
	Again      []int  `json:"again,omitempty"` // did not get the state of the job, and come back
	Step       uint64 `json:"step"`            // committed before it
	Because    string `json:"because"`
}

// String writes the event as a line for a person.
func (e Event) String() string {
	if e.What != "generation" {
		return fmt.Sprintf("%s at step %d: %s", e.What, e.Step, e.Because)
	}
	return fmt.Sprintf("generation %d at step %d: %d workers: %s", e.Generation, e.Step, e.Size, e.Because)
}

func newCrew(size int, cfg member.Config, orders Orders) *crew {
	c := &crew{machine: member.New(cfg), orders: orders, seats: map[topo.Worker]*seat{}, enters: map[topo.Worker]*collective.Posted{}}
	for w := range size {
		c.first = append(c.first, topo.Worker(w))
	}
	if cfg.Head == "" {
		c.machine.Ready() // the launcher starts the first workers by itself
	}
	return c
}

// arrived tells that a worker has joined. Those that the job begins with take part at once.
func (c *crew) arrived(w topo.Worker) {
	if s := c.seats[w]; s != nil && int(w) < len(c.first) {
		s.rank, s.entered = topo.Rank(w), true
		c.machine.Asks(w)
		c.carryOut()
	}
}

// begun reports whether the first generation is there.
func (c *crew) begun() bool { return c.machine.View().Generation > 0 }

// asks tells that a late worker asks to take part, or asks again, because it was let in and who was to give it the state is lost.
func (c *crew) asks(s *seat, p *collective.Posted) {
	switch {
	case s.entered && !s.fresh:
		c.head.finish(p, arena.Done, "")
		return
	case s.entered:
		s.entered, s.fresh = false, false
		c.head.withdraw(p.Worker, "asked to enter again")
	}
	if c.parting != "" || s.unwanted {
		c.turnAway(p.Worker, p)
		return
	}
	c.enters[p.Worker] = p
	c.machine.Asks(p.Worker)
	c.carryOut()
}

// sees makes the job elastic with the first call of a step. A worker that makes one has the state.
func (c *crew) sees(s *seat, call *collective.Call) {
	if call.More || call.Step {
		s.fresh = false
		if !c.elastic {
			c.setElastic()
		}
	}
}

func (c *crew) setElastic() {
	c.elastic = true
	c.head.matcher.SetElastic()
}

// state notes the job's data; every worker must state the same.
func (c *crew) state(d cursor.Cursor) error {
	if have := c.data; have == nil {
		c.data = &d
		c.setElastic()
	} else if have.Samples != d.Samples || have.Batch != d.Batch || have.Seed != d.Seed || have.Plain != d.Plain {
		return &collective.FieldError{Field: "samples", Problem: fmt.Sprintf("the job's data was stated as %s; every worker must state the same, this one said %s", describe(*have), describe(d))}
	}
	return nil
}

func describe(d cursor.Cursor) string {
	return fmt.Sprintf("%d samples, batch %d, seed %d, shuffle %v", d.Samples, d.Batch, d.Seed, !d.Plain)
}

// stepped ends a step: the members may change now.
func (c *crew) stepped(calls []*collective.Posted) {
	c.steps++
	c.commit(calls)
	c.waiting = append(c.waiting, calls...)
	if c.head.quiet() {
		c.machine.Boundary()
	}
	c.carryOut()
}

// commit moves the job's position in its data past what the contributors have done.
func (c *crew) commit(calls []*collective.Posted) {
	if c.data == nil {
		return
	}
	done := make([]bool, c.told.Size())
	for _, p := range calls {
		if r, ok := c.told.Rank(p.Worker); ok {
			done[r] = true
		}
	}
	*c.data = c.data.Commit(len(done), done)
}

// lost tells that a worker is gone, and finished that it has done its work.
//
// The membership hears it first: the step that the loss completes already ends with the news.
func (c *crew) lost(w topo.Worker, how string) {
	c.forget(w)
	c.machine.Lost(w, how)
	c.head.lose(w, how)
	c.carryOut()
}

func (c *crew) finished(w topo.Worker, how string) {
	c.forget(w)
	c.machine.Finished(w)
	c.head.lose(w, how)
	c.carryOut()
}

// forget answers a worker that is gone while it asked to enter.
func (c *crew) forget(w topo.Worker) {
	if p := c.enters[w]; p != nil {
		delete(c.enters, w)
		c.head.finish(p, arena.Lost, "this worker is gone")
	}
}

// started tells that a worker's process runs, or is about to.
func (c *crew) started(w topo.Worker, at site) {
	c.seats[w] = &seat{site: at}
	c.machine.Started(w, string(at.host()))
	c.carryOut()
}

// hostUp tells of another host with room for workers.
func (c *crew) hostUp(host string, slots int) {
	if slots > 0 {
		c.machine.Host(host, slots)
		c.carryOut()
	}
}

// drain releases the workers of a host.
func (c *crew) drain(host, why string) error {
	if !c.elastic {
		return errors.New("this job cannot change its size: its workers call plain collectives")
	}
	err := c.machine.Drain(host, why)
	c.carryOut()
	return err
}

func (c *crew) resize(n int, who string) error {
	if !c.elastic {
		return errors.New("this job cannot change its size: its workers call plain collectives; a job that trains in steps (shoal.torch.loader, job.steps, client.Train) can")
	}
	err := c.machine.Resize(n, who)
	c.carryOut()
	return err
}

func (c *crew) status() Status {
	view := c.machine.View()
	s := Status{Generation: uint64(view.Generation), Size: view.Size(), Want: c.machine.Want(), Steps: c.steps, Entering: len(c.enters), Elastic: c.elastic, Paused: c.machine.Paused()}
	for _, m := range view.Members {
		s.Seats = append(s.Seats, int(m.Worker))
	}
	return s
}

// holder finds who has a rank, as the workers know it; false if nobody has.
func (c *crew) holder(rank int) (topo.Worker, bool) {
	if rank < 0 {
		return 0, false
	}
	if c.told.Generation == 0 {
		return topo.Worker(rank), rank < len(c.first)
	}
	if rank >= c.told.Size() {
		return 0, false
	}
	return c.told.Members[rank].Worker, true
}

// carryOut does what the membership has decided, and lets a step end that nothing holds any more.
func (c *crew) carryOut() {
	for orders := c.machine.Ready(); len(orders) > 0; orders = c.machine.Ready() {
		for _, a := range orders {
			c.obey(a)
		}
	}
	if c.told.Generation == 0 && c.begun() {
		c.begin()
	}
	for _, host := range c.machine.Vacant() {
		c.head.vacate(host)
	}
	if len(c.waiting) > 0 && (!c.machine.Paused() || c.parting != "") {
		c.endStep()
	}
}

// obey carries out one order. On one host nobody else has a say in what is proposed.
func (c *crew) obey(a member.Action) {
	switch a := a.(type) {
	case member.Start:
		c.orders.Start(StartOrder{a.Host, int(a.First), a.Count})
	case member.Stop:
		c.stop(a)
	case member.Propose:
		c.machine.Decided(a.Record.View.Generation)
	case member.Activate:
		c.event("generation", a)
	case member.Pause:
		c.event("pause", member.Activate{View: c.machine.View(), Because: a.Because})
	case member.Resume:
		c.event("resume", member.Activate{View: c.machine.View(), Because: a.Because})
	case member.Finish:
		c.orders.End(a.OK, string(a.Because))
	}
}

// begin notes what the first members know: that they are all the workers that the job was to begin with. If one of these was lost before the
// others had joined, they hear of it when their first step ends, as they do of later losses.
func (c *crew) begin() {
	c.told = topo.View{Generation: c.machine.View().Generation}
	for _, w := range c.first {
		c.told.Members = append(c.told.Members, topo.Member{Worker: w})
		if _, here := c.machine.View().Rank(w); !here {
			c.behind = true
		}
	}
}

// stop ends a worker that is no member, or will be none. One that asks to enter is told that it is released, as members are when a step
// ends; one that never asked can only be ended by its launcher.
func (c *crew) stop(a member.Stop) {
	if p := c.enters[a.Worker]; p != nil {
		delete(c.enters, a.Worker)
		c.turnAway(a.Worker, p)
	} else if _, known := c.told.Rank(a.Worker); !known {
		if s := c.seats[a.Worker]; s != nil {
			s.unwanted = true
		}
		c.orders.Stop(int(a.Worker), string(a.Because))
	}
}

func (c *crew) event(what string, a member.Activate) {
	if c.parted || !c.elastic && a.View.Generation > 1 {
		return // the job is about to end; its launcher says why
	}
	seats := func(ws []topo.Worker) (list []int) {
		for _, w := range ws {
			list = append(list, int(w))
		}
		return list
	}
	c.orders.Event(Event{What: what, Generation: uint64(a.View.Generation), Size: a.View.Size(), Joined: seats(a.Joined), Lost: seats(a.Lost), Finished: seats(a.Finished),
		Released: seats(a.Released), Again: seats(a.Again), Step: c.steps, Because: string(a.Because)})
}

// endStep completes the calls of a step, with the news if there are any.
func (c *crew) endStep() {
	status, calls := arena.Done, c.waiting
	c.waiting = nil
	switch next := c.machine.View(); {
	case !c.head.quiet():
	case c.parting != "":
		c.part()
		status = arena.Changed
	case next.Generation != c.told.Generation || c.behind:
		calls = append(calls, c.advance(next)...)
		status = arena.Changed
	}
	c.machine.Step()
	for _, p := range calls {
		c.head.finish(p, status, "")
	}
}

// advance makes the data plane and the workers know a generation; it returns the calls of those that enter.
func (c *crew) advance(next topo.View) (entering []*collective.Posted) {
	var workers []topo.Worker
	joined := 0
	for _, x := range next.Members {
		workers = append(workers, x.Worker)
		if c.enters[x.Worker] != nil {
			joined++
		}
	}
	c.head.matcher.Advance(workers)
	for rank, w := range workers {
		p := c.enters[w]
		if p != nil {
			entering = append(entering, p)
			delete(c.enters, w)
		}
		c.tell(w, arena.View{Rank: rank, Size: len(workers), Joined: joined, New: p != nil}, true)
	}
	for _, old := range c.told.Members {
		if _, still := next.Rank(old.Worker); !still {
			c.tell(old.Worker, arena.View{Size: 1, Released: true}, false)
		}
	}
	c.told, c.behind = next, false
	return entering
}

// tell writes a worker's view into its control block.
func (c *crew) tell(w topo.Worker, v arena.View, entered bool) {
	s := c.seats[w]
	if s == nil {
		return
	}
	v.Generation, v.Steps = uint64(c.machine.View().Generation), c.steps
	if c.data != nil {
		var err error
		if v.Cursor, err = c.data.AppendBinary(nil); err != nil {
			c.head.lose(w, "cannot be told of the job's position: "+err.Error())
			return
		}
	}
	s.rank, s.entered, s.fresh = topo.Rank(v.Rank), entered, v.New
	s.site.tell(w, v)
}
