package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// site is an agent as the head sees it: where a worker's calls are executed and completed. The head's own agent is one (engine),
// the agents of other hosts are others (remote).
type site interface {
	// host is the agent's name.
	host() fabric.Host
	// finish completes a call. source is the sender of a message that was received from any rank.
	finish(w topo.Worker, ticket uint64, source int, s arena.Status, text string)
	// tell writes a worker's view.
	tell(w topo.Worker, v arena.View)
	// fly executes the part of a flight that this agent has, into memory of its own; head.flown tells.
	fly(f *flight)
	// land hands the results of a flight to the workers.
	land(id uint64)
	// abort forgets a flight.
	abort(id uint64)
}

// flight is a complete set of calls whose memory lies on several hosts. It is executed there, and lands when all of them have the
// result: so a host that is lost takes nothing with it that another host has already been given.
type flight struct {
	id    uint64
	batch uint64 // flights that became ready together, such as those of a step, land together
	calls []*collective.Posted
	sites []site // that take part, in the order of their first call
	of    []int  // by call: its site
	away  int    // sites that do not have the result yet
	err   error
}

// head is where the calls of a whole job come together: it matches them, has them executed, and lets steps end. It runs on
// the thread of its agent's engine.
type head struct {
	engine  *engine
	matcher *collective.Matcher
	crew    *crew
	known   map[fabric.Host]*remote // the agents of other hosts
	ready   []collective.Ready
	flights []*flight // in the order in which they land
	last    uint64    // number of the newest flight
	batches uint64
}

func newHead(c *crew, e *engine) *head {
	h := &head{engine: e, matcher: collective.NewMatcher(c.first), crew: c, known: map[fabric.Host]*remote{}}
	c.head = h
	return h
}

// at finds an agent by its name; "" is the head's own. nil = it is not there.
func (h *head) at(name fabric.Host) site {
	if name == "" || name == h.engine.name {
		return h.engine
	}
	if r := h.known[name]; r != nil {
		return r
	}
	return nil
}

// started tells that a worker's process runs, or is about to.
func (h *head) started(w topo.Worker, host fabric.Host) {
	if at := h.at(host); at != nil {
		h.crew.started(w, at)
	} else { // its host was lost meanwhile
		h.crew.machine.Started(w, string(host))
		h.crew.lost(w, "was lost with its host "+string(host))
	}
}

// vacate lets a drained host go that has no worker any more.
func (h *head) vacate(host string) {
	h.crew.machine.HostLost(host, "has been drained")
	if r := h.known[fabric.Host(host)]; r != nil {
		r.send(&letter{Over: &reason{}})
	}
}

// group gives a worker a group of the ranks that it lists.
func (h *head) group(w topo.Worker, ranks []int) (id topo.GroupID, self int, err error) {
	workers := make([]topo.Worker, len(ranks))
	for i, rank := range ranks {
		holder, ok := h.crew.holder(rank)
		if !ok {
			return 0, 0, &collective.FieldError{Field: "ranks", Problem: fmt.Sprintf("%v: %d is no rank of the job", ranks, rank)}
		}
		workers[i] = holder
	}
	return h.matcher.Group(w, workers)
}

// arrived tells that a worker has joined its agent.
func (h *head) arrived(w topo.Worker) { h.crew.arrived(w) }

// post takes a call of a worker of any host.
func (h *head) post(p *collective.Posted) {
	s := h.crew.seats[p.Worker]
	switch {
	case s == nil: // its host is lost
		h.engine.recycle(p)
	case p.Call.Kind == arena.KindEnter:
		h.crew.asks(s, p)
		h.settle()
	default:
		if err := h.check(s, p); err != nil {
			h.fail(p, err)
			return
		}
		h.crew.sees(s, &p.Call)
		h.ready = h.matcher.Post(p, h.ready)
		h.settle()
	}
}

// check finds what is wrong with a call that only the head can know.
func (h *head) check(s *seat, p *collective.Posted) error {
	c := &p.Call
	if !s.entered {
		return s.blame(&collective.FieldError{Field: "group", Problem: "this worker has not entered the job yet: it is a job of one"})
	}
	self, size, ok := h.matcher.Index(c.Group, p.Worker)
	if !ok {
		return s.blame(&collective.FieldError{Field: "group", Problem: fmt.Sprintf("%d is no group of this rank", c.Group)})
	}
	if (c.More || c.Step) && (c.Group != topo.World || c.Kind.Pairwise()) {
		return s.blame(&collective.FieldError{Field: "flags", Problem: "only a collective of all ranks can be part of a step"})
	}
	if err := c.Check(size, self); err != nil {
		return s.blame(err)
	}
	return nil
}

// settle deals with everything that the Matcher made ready.
func (h *head) settle() {
	h.batches++
	for i := range h.ready {
		r := &h.ready[i]
		if r.Err != nil {
			h.failAll(r.Calls, r.Err)
			continue
		}
		if h.here(r.Calls) && len(h.flights) == 0 {
			h.complete(r.Calls, h.engine.execute(r.Calls))
			continue
		}
		f := h.plan(r.Calls)
		f.batch, f.calls = h.batches, slices.Clone(f.calls) // the Matcher uses its list again
		h.flights = append(h.flights, f)
		h.launch(f)
	}
	clear(h.ready)
	h.ready = h.ready[:0]
}

// here reports whether all calls of a set are on the head's own host.
func (h *head) here(calls []*collective.Posted) bool {
	for _, p := range calls {
		if p.Call.Far != nil {
			return false
		}
	}
	return true
}

// plan finds where the calls of a set are.
func (h *head) plan(calls []*collective.Posted) *flight {
	f := &flight{calls: calls}
	for _, p := range calls {
		at := h.crew.seats[p.Worker].site
		i := slices.Index(f.sites, at)
		if i < 0 {
			i = len(f.sites)
			f.sites = append(f.sites, at)
		}
		f.of = append(f.of, i)
	}
	return f
}

// launch sends a flight to all its sites. The own one is the last: it works on it at once.
func (h *head) launch(f *flight) {
	h.last++
	f.id, f.away = h.last, len(f.sites)
	own := slices.Index(f.sites, site(h.engine))
	for i, at := range f.sites {
		if i != own {
			at.fly(f)
		}
	}
	if own >= 0 {
		h.engine.fly(f)
	}
}

// flown tells that a site has its part of a flight in its memory, or that it cannot.
func (h *head) flown(id uint64, err error) {
	i := slices.IndexFunc(h.flights, func(f *flight) bool { return f.id == id })
	if i < 0 {
		return // aborted meanwhile
	}
	f := h.flights[i]
	if f.err != nil {
		return
	}
	f.away--
	if err != nil { // the others wait for this one in vain
		f.err, f.away = err, 0
	}
	h.landReady()
}

// landReady lands the flights that have arrived, in their order; those of a batch only together, so that nothing of a step is seen when
// a part of it has to be done again.
func (h *head) landReady() {
	for {
		n := 0
		for n < len(h.flights) && h.flights[n].batch == h.flights[0].batch {
			if h.flights[n].away > 0 {
				return
			}
			n++
		}
		if n == 0 {
			return
		}
		landing := slices.Clone(h.flights[:n])
		h.flights = append(h.flights[:0], h.flights[n:]...)
		for _, f := range landing {
			h.land(f)
		}
	}
}

func (h *head) land(f *flight) {
	for _, at := range f.sites {
		if f.err == nil {
			at.land(f.id)
		} else {
			at.abort(f.id)
		}
	}
	h.complete(f.calls, f.err)
}

// lostSite takes back what a lost agent's workers had posted, memory and all, and lets the flights that it was part of start again
// without it. It returns how the workers were lost.
func (h *head) lostSite(gone site, why error) (how string) {
	how = fmt.Sprintf("was lost with its host %s: %v", gone.host(), why)
	var lost []topo.Worker
	for w, s := range h.crew.seats {
		if s.site == gone {
			lost = append(lost, w)
		}
	}
	slices.Sort(lost)
	for _, w := range lost {
		h.crew.forget(w)
		delete(h.crew.seats, w)
	}
	h.crew.machine.HostLost(string(gone.host()), fmt.Sprintf("was lost: %v", why))
	h.ready = h.matcher.Vanished(lost, how, h.ready)
	flights := h.flights
	h.flights = nil
	for _, f := range flights {
		h.again(f, gone, lost)
	}
	h.settle()
	h.crew.carryOut()
	h.landReady()
	return how
}

// again starts a flight anew if a lost site was part of it.
func (h *head) again(f *flight, gone site, lost []topo.Worker) {
	if !slices.Contains(f.sites, gone) {
		h.flights = append(h.flights, f)
		return
	}
	for _, at := range f.sites {
		if at != gone {
			at.abort(f.id)
		}
	}
	left := h.matcher.Without(collective.Ready{Calls: f.calls, Err: f.err}, lost)
	switch {
	case left.Err != nil:
		h.failAll(left.Calls, left.Err)
	case len(left.Calls) > 0:
		next := h.plan(left.Calls)
		next.batch = f.batch
		h.flights = append(h.flights, next)
		h.launch(next)
	}
}

// complete ends the calls of a set that were executed, or could not be.
func (h *head) complete(calls []*collective.Posted, err error) {
	switch {
	case err != nil:
		h.failAll(calls, err)
	case calls[0].Call.Step:
		h.crew.stepped(calls)
	default:
		for _, p := range calls {
			h.finish(p, arena.Done, "")
		}
	}
}

// quiet reports whether no collective of the world is under way.
func (h *head) quiet() bool { return h.matcher.Quiet() && len(h.flights) == 0 }

// fail completes a call with an error.
func (h *head) fail(p *collective.Posted, err error) {
	status := arena.Failed
	var lost *collective.LostError
	if errors.As(err, &lost) {
		status = arena.Lost
	}
	h.finish(p, status, err.Error())
}

func (h *head) failAll(calls []*collective.Posted, err error) {
	for _, p := range calls {
		h.fail(p, err)
	}
}

// finish completes a call where its worker is.
func (h *head) finish(p *collective.Posted, status arena.Status, text string) {
	if s := h.crew.seats[p.Worker]; s != nil {
		source := -1
		if p.Call.Kind == collective.Recv && status.OK() {
			source = p.Call.Peer
		}
		s.site.finish(p.Worker, p.Ticket, source, status, text)
	}
	h.engine.recycle(p)
}

// withdraw takes a worker out of the world until the crew lets it in again. To be called before settle.
func (h *head) withdraw(w topo.Worker, why string) { h.ready = h.matcher.Lost(w, why, h.ready) }

// lose tells the Matcher of a worker that will post no more. What it has posted still counts.
func (h *head) lose(w topo.Worker, why string) {
	if s := h.crew.seats[w]; s != nil && s.site == site(h.engine) {
		h.engine.drainOf(w)
	}
	if h.matcher.Gone(w) {
		return
	}
	h.ready = h.matcher.Lost(w, why, h.ready)
	h.settle()
}
