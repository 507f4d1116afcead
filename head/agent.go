package head

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// What the inputs of an Agent have in common: how payloads, frames and actions are passed on. All
// of it runs on the thread of the Agent, and does no I/O.

// delivery is a payload between the head and the follower of one agent.
type delivery struct {
	up      bool         // whether the payload goes from the follower to the head
	payload wire.Payload // retained; finishInput releases it
}

// beginJob makes a new agent the head of a job that begins. New calls it.
func (a *Agent) beginJob(job member.Config) {
	job.Head, job.Hosts = a.cfg.Self, []member.Host{{Name: a.cfg.Self, Slots: a.cfg.Slots,
		Kind: a.cfg.Kind}}
	m := member.New(job)
	record := m.Record()
	a.acceptor.LearnDecision(record)
	a.proposer = member.NewProposer(a.cfg.Self, record)
	first := topo.View{}
	for w := range m.Want() {
		first.Members = append(first.Members, topo.Member{Worker: topo.WorkerID(w)})
	}
	a.follower.state.View = first
	a.leader = newLeader(a, record.Since, m)
	a.leader.peers[a.cfg.Self] = &peer{}
	a.queueInner(true, a.follower.newReport())
}

// queueInner has a payload delivered inside this agent, from its follower up to its head or the
// other way, after those before it. It copies the payload.
func (a *Agent) queueInner(up bool, b wire.Payload) {
	a.inner = append(a.inner, delivery{up, a.pool.Retain(b)})
}

// canCallDirectly reports whether this agent is the head, past its recovery, and what its head and
// its follower tell each other would be heard next, so that it need not be queued.
func (a *Agent) canCallDirectly() bool {
	return a.leader != nil && a.leader.reports == nil && len(a.inner) == 0
}

// sendToHead sends a payload of this agent's follower to the head, if there is one, and copies it.
// A head that comes later gets what it says with the report.
func (a *Agent) sendToHead(b wire.Payload) {
	switch {
	case a.leader != nil:
		a.queueInner(true, b)
	case a.uplink != nil:
		a.uplink.Push(b)
	}
}

// emit adds an action to those that the next Ready returns.
func (a *Agent) emit(action Action) { a.out = append(a.out, action) }

// send emits a Send of a message to the agent of another host.
func (a *Agent) send(to string, m wire.Message) {
	s := wire.PopOrNew(&a.pool.sends)
	s.To, s.Message = to, m
	a.emit(s)
}

// sendFrame emits a Send of a frame to the agent of another host. What the frame points to is used
// until the Ready after the next.
func (a *Agent) sendFrame(to string, f wire.Frame) {
	s := wire.PopOrNew(&a.pool.sends)
	s.To, s.frame = to, f
	s.Message = &s.frame
	a.emit(s)
}

// finishInput does all that follows from an input: it delivers the payloads inside this agent and
// asks the voters, until there is nothing left. Votes are taken last, so that a head that hands
// over has told its own workers what it has committed.
func (a *Agent) finishInput() {
	for !a.left {
		if len(a.inner) == 0 {
			if !a.askVoters() {
				return
			}
			continue
		}
		d := a.inner[0]
		a.inner = slices.Delete(a.inner, 0, 1)
		if !d.up {
			a.follower.receive(d.payload)
		} else if a.leader != nil {
			a.leader.receive(a.cfg.Self, d.payload)
		}
		a.pool.Release(d.payload)
	}
}

// flushStreams emits a frame for each stream that has something to send.
func (a *Agent) flushStreams() {
	a.forEachStream(func(to string, s *wire.Stream) {
		if f, ok := s.Flush(); ok {
			a.sendFrame(to, f)
		}
	})
}

// forEachStream calls do with every stream of this agent to another, and its host: that to the
// head, or those to the followers in the order of their names.
func (a *Agent) forEachStream(do func(to string, s *wire.Stream)) {
	if a.uplink != nil {
		do(a.Head(), a.uplink)
	}
	if a.leader != nil && len(a.leader.peers) > 1 {
		a.hosts = sortedKeysInto(a.hosts, a.leader.peers)
		for _, host := range a.hosts {
			if s := a.leader.peers[host].stream; s != nil {
				do(host, s)
			}
		}
	}
}

// announceHead emits messages that tell others who leads. A head tells the hosts that have not
// reported. An agent that has heard nothing from its head tells the head, and one that has lost its
// head tells everybody.
func (a *Agent) announceHead() {
	switch {
	case a.leader != nil:
		a.hosts = sortedKeysInto(a.hosts, a.up)
		for _, host := range a.hosts {
			if a.leader.peers[host] == nil && !a.leader.lostHosts[host] {
				a.send(host, wire.Answer{Answer: member.Decision{Record: a.Record()}})
			}
		}
	case !a.reaches(a.Head()):
		a.sendDecision(a.Record())
	case a.uplink != nil && !a.uplink.HasHeard():
		a.send(a.Head(), wire.Answer{Answer: member.Decision{Record: a.Record()}})
	}
}

// onFrame handles a frame from another agent. An agent that still speaks with an earlier head is
// told who leads now.
func (a *Agent) onFrame(from string, f *wire.Frame) {
	record, known := a.acceptor.Record()
	switch {
	case !known || f.Term > record.Since:
	case f.Term < record.Since:
		a.send(from, wire.Answer{Answer: member.Decision{Record: record}})
	case f.Up && a.leader != nil:
		a.leader.onFrame(from, f)
	case !f.Up && a.uplink != nil && from == record.Head:
		for _, b := range a.uplink.Receive(f, nil) {
			a.queueInner(false, b)
		}
	}
}

// onFrame handles a frame of a follower. The first frame opens the stream. A host that counts as
// lost is told the decision, from which it learns that.
func (r *leader) onFrame(from string, f *wire.Frame) {
	p := r.peers[from]
	switch {
	case r.lostHosts[from]:
		r.agent.send(from, wire.Answer{Answer: member.Decision{Record: r.agent.Record()}})
		return
	case p == nil && f.First != 1:
		return
	case p == nil:
		p = &peer{stream: wire.NewStream(r.term, false, &r.agent.pool.Memory)}
		r.peers[from] = p
	}
	left := false
	news := p.stream.Receive(f, func(arrived wire.Payload) {
		switch b := arrived.(type) {
		case *wire.Commit:
			p.index = b.Index
		case wire.Snapshot:
			p.index = b.Index
		case wire.Leaves:
			left = true
		}
	})
	if left {
		r.loseHost(from, "has left")
		return
	}
	for _, b := range news {
		// an earlier payload can have ended the rule of this head, or the host's part in the job
		if r.agent.leader != r || r.lostHosts[from] {
			return
		}
		r.receive(from, b)
	}
}

// sortedKeysInto lists the keys of a map in order, in the memory of room, which it returns.
func sortedKeysInto[K cmp.Ordered, V any](room []K, m map[K]V) []K {
	room = room[:0]
	for k := range m {
		room = append(room, k)
	}
	slices.Sort(room)
	return room
}

// sortedKeys lists the keys of a map in order, in new memory.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
