package sim

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// execution is a flight on a host: the inputs that have come in, and the result once all are there.
type execution struct {
	head.Execute
	got    map[string]piece         // by host
	result []uint64                 // by part
	way    *passage                 // of a reshape
	moved  map[topo.Worker][]uint64 // what a reshape brings to the new ranks
	proof  head.Proof
	done   bool
}

type callID struct {
	worker topo.Worker
	ticket uint64
}

// piece carries the inputs of a host's workers to the first parts of a flight; wants asks for them.
type (
	piece struct {
		flight head.Flight
		parts  int
		values map[callID][]byte
	}
	wants struct{ flight head.Flight }
)

// receive takes a message from the network.
func (h *host) receive(from string, m any) {
	if !h.alive {
		return
	}
	switch m := m.(type) {
	case head.Message:
		h.agent.Receive(from, m)
	case wants:
		if run := h.runs[m.flight]; run != nil {
			h.sendInputs(run, from)
		}
	case piece:
		if run := h.runs[m.flight]; run != nil && !run.done && run.got[from].parts < m.parts {
			run.got[from] = m
			h.finish(run)
		}
	}
	h.settle()
}

// tick lets time pass: the agent repeats itself, and so do those who wait for inputs.
func (h *host) tick() {
	h.agent.Tick()
	for _, n := range slices.Sorted(maps.Keys(h.runs)) {
		run := h.runs[n]
		for _, peer := range run.Hosts {
			if run.got[peer].parts < len(run.Parts) {
				h.cluster.net.send(h.name, peer, wants{run.Flight})
			}
		}
	}
	h.settle()
}

// settle carries out what the agent wants, until it wants nothing.
func (h *host) settle() {
	if h.settling {
		return
	}
	h.settling = true
	defer func() { h.settling = false }()
	for h.alive {
		actions := h.agent.Ready()
		if len(actions) == 0 {
			return
		}
		for _, a := range actions {
			if h.alive {
				h.carryOut(a)
			}
		}
	}
}

func (h *host) carryOut(action head.Action) {
	c := h.cluster
	if c.Trace != nil {
		c.Trace(h.name, action)
	}
	switch a := action.(type) {
	case head.Send:
		if c.Carry != nil {
			a.Message = c.Carry(a.Message)
		}
		c.net.send(h.name, a.To, a.Message)
	case head.Execute:
		h.execute(a)
	case head.Drop:
		delete(h.runs, a.Flight)
	case *head.Apply:
		h.apply(a)
	case head.Start:
		for i := range a.Count {
			h.orders = append(h.orders, a.First+topo.Worker(i))
		}
		c.print("%s starts %d workers: %s", h.name, a.Count, a.Because)
	case head.Stop:
		c.print("%s stops w%d: %s", h.name, a.Worker, a.Because)
		if w := h.workers[a.Worker]; w != nil {
			w.exit("was stopped")
		}
	case head.Grouped:
		if w := h.workers[a.Worker]; w != nil {
			w.grouped(a)
		}
	case head.Refuse:
		c.ledger.fail("%s refuses w%d: %s", h.name, a.Worker, a.Why)
	case head.Decided:
		c.ledger.decided(h, a.Record)
	case head.Meshed:
		c.print("%s: %s", h.name, a.Because)
	case head.News:
		h.news(a.Decision)
	case head.Leave:
		c.print("%s leaves: %s", h.name, a.Because)
		h.crash()
	case head.Finish:
		if !h.ended {
			c.print("%s ends, ok=%v: %s", h.name, a.OK, a.Because)
		}
		h.ended = true
	}
}

func (h *host) news(d member.Action) {
	switch d := d.(type) {
	case member.Activate:
		h.cluster.print("%s: %v: %s", h.name, d.View, d.Because)
	case member.Pause:
		h.cluster.print("%s pauses: %s", h.name, d.Because)
	case member.Resume:
		h.cluster.print("%s resumes: %s", h.name, d.Because)
	}
}

// execute begins a flight, or goes on with one: this host's inputs go to the others.
func (h *host) execute(e head.Execute) {
	run := &execution{Execute: e, got: map[string]piece{}}
	if begun := h.runs[e.Flight]; begun != nil {
		if run.Parts = slices.Concat(begun.Parts, e.Parts); !begun.More {
			h.cluster.ledger.fail("%s is told of more of flight %x, which had all its parts", h.name, e.Flight)
		}
		run.got = begun.got
	}
	h.runs[e.Flight] = run
	run.got[h.name] = h.inputs(run)
	if reshapes(&e.Parts[len(e.Parts)-1]) {
		run.way = h.passes()
	}
	for _, peer := range e.Hosts {
		if peer != h.name {
			h.sendInputs(run, peer)
		}
	}
	h.finish(run)
}

// inputs reads the memory of this host's workers.
func (h *host) inputs(run *execution) piece {
	values := map[callID][]byte{}
	for _, part := range run.Parts {
		for _, p := range part.Calls {
			if p.Call.Far == nil {
				values[callID{p.Worker, p.Ticket}] = slices.Clone(p.Call.In)
			}
		}
	}
	return piece{run.Flight, len(run.Parts), values}
}

func (h *host) sendInputs(run *execution, to string) {
	h.cluster.net.send(h.name, to, h.inputs(run))
}

// finish computes the result when all inputs are there.
func (h *host) finish(run *execution) {
	all := map[callID][]byte{}
	for _, peer := range run.Hosts {
		if run.More || run.got[peer].parts < len(run.Parts) {
			return
		}
		maps.Copy(all, run.got[peer].values)
	}
	h.compute(run, all)
	h.agent.Executed(run.Flight, run.proof)
}

// compute makes the result from the inputs.
func (h *host) compute(run *execution, all map[callID][]byte) {
	run.result = run.result[:0]
	for _, part := range run.Parts {
		sum := fnv.New64a()
		_, _ = sum.Write([]byte(fmt.Sprint(part.Route.Strategy, part.Route.Piece))) // in which order it is summed
		for _, p := range part.Calls {
			v, has := all[callID{p.Worker, p.Ticket}]
			if !has && part.Err == nil {
				h.cluster.ledger.fail("%s cannot execute flight %x: nobody has the input of w%d", h.name, run.Flight, p.Worker)
			}
			_, _ = sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(p.Worker)))
			_, _ = sum.Write(v)
		}
		if run.way != nil && reshapes(&part) {
			h.bring(run, &part, all)
		}
		run.result = append(run.result, sum.Sum64())
	}
	run.done = true
}

// apply lets a flight count: workers get their results and their news.
func (h *host) apply(a *head.Apply) {
	run := h.runs[a.Flight]
	if a.Here {
		if run != nil {
			h.cluster.ledger.fail("%s was told to execute flight %x twice", h.name, a.Flight)
		}
		run = &execution{Execute: head.Execute{Flight: a.Flight, Hosts: []string{h.name}, Parts: a.Parts}}
		h.compute(run, h.inputs(run).values)
	}
	if a.Flight != 0 && a.Parts != nil && (run == nil || !run.done) {
		h.cluster.ledger.fail("%s applies flight %x without having executed it", h.name, a.Flight)
		return
	}
	h.cluster.ledger.applied(h, a, run)
	delete(h.runs, a.Flight)
	for n, begun := range h.runs {
		if begun.More && n < a.Flight && slices.ContainsFunc(a.Parts, func(p head.Part) bool { return p.Err == nil && isStep(p.Calls[0]) }) {
			h.cluster.ledger.fail("%s has begun with flight %x, and is never told to drop it", h.name, n)
		}
	}
	for i, part := range a.Parts {
		for _, p := range part.Calls {
			if w := h.workers[p.Worker]; w != nil && p.Call.Far == nil {
				w.completed(p, run.output(i, p), part.Err)
			}
		}
	}
	for _, m := range a.View.Members {
		if w := h.workers[m.Worker]; a.Changed && w != nil && m.Host == h.name {
			w.joins = a.Joined > 0
			if a.Void && !slices.Contains(a.Entered, w.id) {
				w.voided()
			}
		}
	}
	for _, id := range a.Entered {
		if w := h.workers[id]; w != nil {
			w.fresh = !w.in && a.View.Generation > 1 // the first members need no state
			if w.dropped {
				w.goesOn()
			}
			w.in, w.early = true, false
		}
	}
	for _, id := range a.Released {
		if w := h.workers[id]; w != nil {
			w.in, w.released = false, true
		}
	}
}

// output is what a call gets of a flight.
func (run *execution) output(part int, p *collective.Posted) []byte {
	if run.way != nil && reshapes(&run.Parts[part]) {
		return pack(run.moved[p.Worker])
	}
	return binary.LittleEndian.AppendUint64(nil, run.result[part])
}

// isStep reports whether a step of the training ends with a call.
func isStep(p *collective.Posted) bool { return p.Call.Step && p.Call.Kind != collective.Reshape }
