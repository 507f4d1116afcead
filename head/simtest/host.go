package simtest

import (
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// What a host does as the shell of its agent. One goroutine runs it, that of the Cluster; a check
// that fails is recorded in the invariants.

// receive takes a message that has arrived from another host: of its agent, or about a batch.
func (h *host) receive(from string, m any) {
	if !h.alive {
		return
	}
	switch m := m.(type) {
	case wire.Message:
		h.agent.Receive(from, m)
	case []byte:
		said, err := h.reader.Read(m)
		if err != nil {
			h.cluster.invariants.fail("%s cannot read %q of %s: %v", h.name, m, from, err)
			return
		}
		h.agent.Receive(from, said)
	case wants:
		if run := h.runs[m.batch]; run != nil && !run.barred {
			h.sendInputs(run, from)
		}
	case piece:
		if run := h.runs[m.batch]; run != nil && !run.done && run.got[from].parts < m.parts {
			run.got[from] = m
			h.finishBatch(run)
		}
	}
	h.runActions()
}

// encode returns what travels of a message, which its sender will not keep as it is: what Carry
// says, if that is set; else bytes for a frame that can be in bytes, as the receiver reads it into
// memory that is used again; else a copy, since JSON would take ten times as long as all else.
func (c *Cluster) encode(m wire.Message) any {
	if c.Carry != nil {
		return c.Carry(m)
	}
	if b, is := wire.AppendBinary(nil, m); is {
		return b
	}
	if f, is := m.(*wire.Frame); is {
		return f.Clone()
	}
	return m
}

// tick lets time pass: the agent repeats itself, and so do those who wait for inputs.
func (h *host) tick() {
	h.agent.Tick()
	if h.writer != nil {
		h.writer.PauseOver()
		h.writer.Next() // what was given up is asked for again
	}
	for _, n := range slices.Sorted(maps.Keys(h.runs)) {
		run := h.runs[n]
		for _, peer := range run.Hosts {
			if run.got[peer].parts < len(run.Parts) {
				h.cluster.net.send(h.name, peer, wants{run.Batch})
			}
		}
	}
	h.runActions()
}

// runActions carries out what the agent wants, until it wants nothing. A call within another one,
// as of an action that makes a worker act, does nothing: the outer one goes on.
func (h *host) runActions() {
	if h.running {
		return
	}
	h.running = true
	defer func() { h.running = false }()
	for h.alive {
		actions := h.agent.Ready()
		if len(actions) == 0 {
			h.checkNoLostHost()
			return
		}
		for _, a := range actions {
			if h.alive {
				h.carryOut(a)
			}
		}
	}
}

// carryOut carries out one action of the agent.
func (h *host) carryOut(action head.Action) {
	c := h.cluster
	if c.Trace != nil {
		c.Trace(h.name, action)
	}
	switch a := action.(type) {
	case *head.Send:
		c.net.send(h.name, a.To, c.encode(a.Message))
	case *head.Execute:
		h.beginBatch(*a)
	case head.Drop:
		delete(h.runs, a.Batch)
	case *head.Apply:
		h.applyBatch(a)
	case head.Start:
		for i := range a.Count {
			h.orders = append(h.orders, a.First+topo.WorkerID(i))
		}
		c.print("%s starts %s: %s", h.name, plural.Of(a.Count, "worker"), a.Because)
	case head.Stop:
		c.print("%s stops w%d: %s", h.name, a.Worker, a.Because)
		if w := h.workers[a.Worker]; w != nil {
			w.exit("was stopped")
		}
	case head.Grouped:
		if w := h.workers[a.Worker]; w != nil {
			w.receiveGroup(a)
		}
	case head.Refuse:
		c.invariants.fail("%s refuses w%d: %s", h.name, a.Worker, a.Why)
	case head.Decided:
		c.invariants.checkDecision(h, a.Record)
		h.tellWriter(a.Record)
	case head.Meshed:
		c.print("%s: %s", h.name, a.Because)
	case head.DrainBlocked:
		c.print("%s: %s", h.name, a.Because)
	case head.News:
		h.printNews(a.Decision)
	case head.Leave:
		c.print("%s leaves: %s", h.name, a.Because)
		h.crash()
	case head.Finish:
		if !h.ended {
			c.print("%s ends, ok=%v: %s", h.name, a.OK, a.Because)
		}
		h.ended = true
		h.tellWriterOver()
	}
}

// printNews prints a decision of the membership.
func (h *host) printNews(d member.Action) {
	switch d := d.(type) {
	case member.Activate:
		h.cluster.print("%s: %v: %s", h.name, d.View, d.Because)
	case member.Pause:
		h.cluster.print("%s pauses: %s", h.name, d.Because)
	case member.Resume:
		h.cluster.print("%s resumes: %s", h.name, d.Because)
	}
}

// applyBatch lets a batch count: the invariants check it, and workers get their results and their
// news.
func (h *host) applyBatch(a *head.Apply) {
	run := h.runs[a.Batch]
	if a.Here {
		if run != nil {
			h.cluster.invariants.fail("%s was told to execute batch %x twice", h.name, a.Batch)
		}
		run = &execution{Execute: head.Execute{Batch: a.Batch, Hosts: []string{h.name},
			Parts: a.Parts}}
		h.compute(run, h.readInputs(run).values)
	}
	if a.Batch != 0 && a.Parts != nil && (run == nil || !run.done) {
		h.cluster.invariants.fail("%s applies batch %x without having executed it", h.name, a.Batch)
		return
	}
	h.cluster.invariants.checkEntry(h, a, run)
	delete(h.runs, a.Batch)
	h.checkCallsAlone(a.Batch, a.Parts)
	for i, part := range a.Parts {
		for _, p := range part.Calls {
			if w := h.workers[p.Worker]; w != nil && p.Call.Far == nil {
				w.completeCall(p, run.output(i, p), part.Err)
			}
		}
	}
	for _, m := range a.View.Members {
		if w := h.workers[m.Worker]; a.Changed && w != nil && m.Host == h.name {
			w.joins, w.back = a.Joined > 0, back{}
			if a.Aborted && !slices.Contains(a.Entered, w.id) {
				w.resumeAborted()
			}
		}
	}
	for _, id := range a.Entered {
		if w := h.workers[id]; w != nil {
			w.fresh = !w.in && a.View.Generation > 1 // the first members need no state
			if w.dropped {
				w.resume()
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
