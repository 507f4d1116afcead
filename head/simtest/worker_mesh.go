package simtest

import (
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// shaped is what a worker of a job with a mesh has besides. It does what shoal.train does. One
// goroutine uses it, that of its Cluster, and so all methods of worker and host in this file; a
// check that fails is recorded in the invariants.
type shaped struct {
	stated  bool     // it has stated its layout
	held    []uint64 // its boxes, in order; nil = none yet
	joins   bool     // members have come with its view, after which all of them call a collective
	failed  bool     // a call has failed, since somebody is lost
	dropped bool     // it has dropped the step, and waits
	back    back     // its way back to a checkpoint
}

// stateLayout tells the agent, once, how the state lies and what the job trains on.
func (w *worker) stateLayout() {
	c := w.host.cluster
	if w.stated {
		return
	}
	w.stated = true
	if m, ok := c.parseMesh(c.mesh); ok && w.host.agent.State().Shape == nil {
		w.host.agent.ReportLayout(
			wire.Shaped{Worker: w.id, State: "state", Mesh: c.mesh, Ranks: m.rankCount(),
				Redundant: c.redundant})
	}
	if c.data.Samples > 0 {
		w.host.agent.ReportPlace(w.id, c.data, setting.Setting{}, setting.Levers{})
	}
	w.host.runActions()
}

// prepareStep plans what comes before a step: the worker greets new members, and goes to the mesh
// that the job should have. It reports whether the step can begin.
func (w *worker) prepareStep() bool {
	w.stateLayout()
	c, known := w.host.cluster, w.host.agent.State()
	s := known.Shape
	switch {
	case w.joins:
		w.joins = false
		w.plan = append(w.plan, newCall(topo.World))
	case c.last > 0 && known.Steps >= c.last:
		w.exit("")
	case s != nil && s.Broken != "":
		w.exit("ended, as the job is broken")
	case w.back.found, s != nil && s.Lost != "" && s.Next == "" && w.back.from == nil:
		w.returnToCheckpoint(s)
	case s != nil && s.Next != "":
		w.plan = append(w.plan,
			collective.Call{Kind: collective.Reshape, DType: tensor.I64,
				Flags: collective.Flags{Step: true}})
	default:
		w.checkBoxes(s, known.View)
		return true
	}
	return false
}

// checkBoxes checks that the worker, which begins a step, has what a rank of the mesh has (R3); the
// first ones have it from the start. Then it saves its part of a checkpoint.
func (w *worker) checkBoxes(s *head.Shape, v topo.View) {
	c := w.host.cluster
	text, workers := c.mesh, []topo.WorkerID(nil)
	if s != nil {
		text, workers = s.Mesh, s.Workers
	} else {
		for _, m := range v.Members {
			workers = append(workers, m.Worker)
		}
	}
	m, _ := c.parseMesh(text)
	rank := slices.Index(workers, w.id)
	if rank < 0 || rank >= m.rankCount() {
		c.invariants.fail("w%d begins a step, and is no rank of mesh %s of %v", w.id, text, workers)
		return
	}
	part := m.boxesOf(rank)
	if w.held == nil && w.step == 0 {
		for _, b := range part {
			w.held = append(w.held, boxContent(b, 0))
		}
	}
	made, want := c.invariants.at[w.host.name].made, []uint64{}
	if s != nil && s.Lost != "" {
		made = w.back.from.steps // which the job does not know yet
	}
	for _, b := range part {
		want = append(want, boxContent(b, made))
	}
	if !slices.Equal(want, w.held) {
		c.invariants.fail("w%d is rank %d of mesh %s and has %x, not %x", w.id, rank, text, w.held,
			want)
		return
	}
	w.savePart(m, rank, v, made)
}

// fillReshape fills in the worker's part of a reshape.
func (w *worker) fillReshape(p *collective.Call) {
	c, s := w.host.cluster, w.host.agent.State().Shape
	p.In, p.Out = nil, nil
	if s.Lost != "" {
		return
	}
	p.In = packBoxes(w.held)
	if m, ok := c.parseMesh(s.Next); ok {
		if rank := slices.Index(s.Order, w.id); rank >= 0 {
			p.Out = make([]byte, 8*len(m.boxesOf(rank)))
		}
	}
	if m, ok := c.parseMesh(s.Mesh); ok {
		if rank := slices.Index(s.Workers, w.id); rank >= 0 && len(w.held) != len(m.boxesOf(rank)) {
			c.invariants.fail("w%d is rank %d of mesh %s, and has %d boxes", w.id, rank, s.Mesh,
				len(w.held))
		}
	}
}

// finishMeshCall takes the end of a call of a job with a mesh, with its result or error.
func (w *worker) finishMeshCall(p *collective.Posted, out []byte, err error) {
	var lost *collective.LostError
	switch {
	case errors.As(err, &lost) && w.isUnwanted():
		w.exit("failed")
	case errors.As(err, &lost):
		w.failed, w.plan, w.chain, w.back = w.failed || !w.dropped, nil, nil, back{}
	case err != nil:
		w.host.cluster.invariants.fail("w%d sees an error in step %d: %v", w.id, w.step, err)
	case w.back.asks:
		w.back = back{found: true, from: w.host.cluster.disk.chooseCheckpoint(out)}
	case p.Call.Kind == collective.Reshape:
		w.held = unpackBoxes(out) // another model
		w.freeOthers("")
		w.host.cluster.invariants.state[w.id] = true
	case p.Call.Step:
		for i := range w.held {
			w.held[i] = boxContent(int(w.held[i]>>48), w.step)
		}
	}
}

// dropStep drops the step, of which a worker is lost, and asks to go on from its start.
func (w *worker) dropStep() {
	w.in, w.failed, w.dropped = false, false, true
	for ticket := range w.open {
		w.host.cluster.invariants.meshes.dropped[callID{w.id, ticket}] = true
	}
	w.host.agent.WorkerAsks(w.id)
	w.host.runActions()
}

// resumeAborted tells a member that the step is aborted, which it must have dropped.
func (w *worker) resumeAborted() {
	if !w.dropped {
		w.host.cluster.invariants.fail("the step is aborted, and w%d has not dropped it", w.id)
	}
	w.resume()
	w.early = false
}

// resume ends the wait of a worker that has dropped the step.
func (w *worker) resume() {
	if len(w.open) > 0 {
		w.host.cluster.invariants.fail(
			"w%d goes on from the start of the step, and has %d calls open",
			w.id, len(w.open))
	}
	w.in, w.dropped, w.failed = true, false, false
}

// refusal is why a host refuses its part in a reshape.
const refusal = "it has no plan"

// refusesReshape reports whether this host cannot take its part in the reshape that it is to
// execute, which it refuses once.
func (h *host) refusesReshape() bool {
	s := h.agent.State().Shape
	if !h.refuses || s == nil || s.Lost != "" || s.KeepsRanks() { // then no plan is needed
		return false
	}
	h.refuses, h.cluster.invariants.meshes.refused = false, true
	return true
}

// planOfReshape returns the plan of the reshape that a batch is, as this host sees it, and checks
// that it is the head's.
func (h *host) planOfReshape() *reshapePlan {
	known := h.agent.State()
	if known.Shape == nil || known.Shape.Next == "" {
		h.cluster.invariants.fail(
			"%s is to execute a reshape, and the job is on its way to no mesh",
			h.name)
		return nil
	}
	if s := known.Shape; s.Lost == "" && s.KeepsRanks() {
		m, _ := h.cluster.parseMesh(s.Mesh)
		return &reshapePlan{old: m, new: m, workers: s.Workers, order: s.Order,
			takers: rankCandidates(s, known.View)}
	}
	p, err := h.cluster.planReshape(known.Shape, known.Shape.Next, known.View)
	if err != nil && known.Shape.Lost == "" || !slices.Equal(p.order, known.Shape.Order) {
		h.cluster.invariants.fail("%s plans another reshape than the head: %v, not %v; %v", h.name,
			p.order, known.Shape.Order, err)
		return nil
	}
	return &p
}

// executeReshape carries out a reshape, part of the batch run, from the inputs of all calls: it
// sets run.moved, and run.proof as far as this host has a part in it.
func (h *host) executeReshape(run *execution, part *head.Part, all map[callID][]byte) {
	memory := map[topo.WorkerID][]uint64{}
	for _, p := range part.Calls {
		memory[p.Worker] = unpackBoxes(all[callID{p.Worker, p.Ticket}])
	}
	var err error
	if run.moved, err = run.way.moveBoxes(memory); err != nil {
		h.cluster.invariants.fail("%s executes a reshape from mesh %s to %s: %v", h.name,
			run.way.old,
			run.way.new, err)
		return
	}
	run.proof = run.way.prove(memory, run.moved, func(w topo.WorkerID) bool {
		return slices.ContainsFunc(part.Calls, func(p *collective.Posted) bool {
			return p.Worker == w && p.Call.Far == nil
		})
	})
}

// isReshape reports whether a part of a batch brings the state to another mesh.
func isReshape(part *head.Part) bool {
	return part.Err == nil && part.Calls[0].Call.Kind == collective.Reshape
}
