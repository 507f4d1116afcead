package simtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/topo"
)

// meshRecord is what the invariants knows of a job with a mesh:
//
//   - a step counts when every rank of the mesh has a part in it, and nobody who had dropped it
//     (V1);
//   - an aborted step counts nowhere (V2);
//   - the mesh changes with a reshape and with nothing else, alike on all hosts (R1);
//   - after a reshape every box of every rank is what it was after the last step, handed over from
//     a worker that had it (R2);
//   - when a box is lost, the job goes back to one sealed checkpoint: to its place in the data, all
//     ranks with its boxes, and no step counts before (R4);
//   - a worker that begins a step is the rank of the mesh whose boxes it has (R3);
//   - after a reshape of a redundant job no part with replicas is on one host alone, if the
//     members can be placed so (K1);
//   - after a reshape every rank is on a host of the kind that the mesh says (K2);
//   - a job is broken, or its state lost, only when the members that are left have not all boxes,
//     or when it begins with too few workers on hosts of the kinds that its mesh names, or when a
//     worker is lost and a host cannot take its part in the reshape; a broken one says so on every
//     host, and takes no step any more (B1).
//
// One goroutine uses it, that of its Cluster; a check that fails is recorded by invariants.fail. In
// all checks, made is the step of which the state is with the entry.
type meshRecord struct {
	dropped map[callID]bool         // calls of a step that their worker has dropped
	shape   map[string]*head.Shape  // by host: the shape that it knows
	reached map[head.BatchID]string // what a reshape has led to
	broken  string                  // why the job is broken
	last    uint64                  // the step after which it is
	lost    map[string]bool         // entries by which the state is lost
	refused bool                    // a host has refused its part in a reshape
}

// reset forgets all that has happened.
func (m *meshRecord) reset() {
	*m = meshRecord{dropped: map[callID]bool{}, shape: map[string]*head.Shape{},
		reached: map[head.BatchID]string{}, lost: map[string]bool{}}
}

// checkMeshEntry checks what an entry of the log that a host applies means for the mesh, and
// records the shape. run is the entry's batch; nil = it has none.
func (l *invariants) checkMeshEntry(h *host, a *head.Apply, run *execution, made uint64) {
	s, before, follows := a.Shape, l.meshes.shape[h.name], l.at[h.name].members
	l.meshes.shape[h.name] = s
	if s == nil {
		return
	}
	if steps := l.at[h.name].steps; a.Aborted && follows && a.Steps != steps {
		l.fail("%s counts a step that is aborted: %d after %d", h.name, a.Steps, steps)
	}
	went := false
	for _, part := range a.Parts {
		if part.Err != nil || !part.Calls[0].Call.Step {
			continue
		}
		for _, p := range part.Calls {
			if l.meshes.dropped[callID{p.Worker, p.Ticket}] {
				l.fail("entry %d counts call %d of w%d on %s, and w%d has dropped the step",
					a.Index, p.Ticket, p.Worker, h.name, p.Worker)
			}
		}
		if isReshape(&part) {
			went = a.AllReleased == ""
		} else if before != nil && follows &&
			(before.Next != "" || before.Broken != "" || before.Lost != "") {
			l.fail("step %d counts on %s, and the job was on its way to mesh %q, or broken: %q, "+
				"or its state lost: %q", a.Steps, h.name, before.Next, before.Broken, before.Lost)
		}
	}
	switch same := before != nil && before.Mesh == s.Mesh &&
		slices.Equal(before.Workers, s.Workers); {
	case went:
		l.checkReshape(h, a, run, before, made)
	case before != nil && follows && !same:
		l.fail("entry %d changes the mesh on %s without a reshape: from %v to %v", a.Index, h.name,
			before, s)
	}
	if s.Broken != "" && (before == nil || before.Broken == "") {
		l.meshes.broken, l.meshes.last = a.Shape.Broken, max(a.Steps, l.meshes.last)
		h.cluster.print("%s is broken: %s", h.name, a.Shape.Broken)
		l.checkBoxMissing(h, a, run, made)
	}
	if s.Lost != "" && follows && before != nil && before.Lost == "" {
		// when a host that lags behind applies it, the members may have read a checkpoint
		if entry := fmt.Sprint(a.Index, shapeText(s)); !l.meshes.lost[entry] {
			l.meshes.lost[entry] = true
			l.checkBoxMissing(h, a, run, made)
		}
	}
}

// checkReshape checks a reshape that counts on a host (R1, R2, K1, K2); before is the host's shape
// before the entry.
func (l *invariants) checkReshape(h *host, a *head.Apply, run *execution, before *head.Shape,
	made uint64) {
	s := a.Shape
	if before == nil || run == nil || run.way == nil || s.Mesh != run.way.new.String() ||
		!slices.Equal(s.Workers, run.way.order) {
		l.fail("a reshape counts on %s, and the shape is %v after %v", h.name, s, before)
		return
	}
	text := fmt.Sprint(s.Mesh, s.Workers, run.moved)
	if other, known := l.meshes.reached[a.Batch]; known && other != text {
		l.fail("a reshape leads to %s, and on %s to %s", other, h.name, text)
	} else if !known {
		h.cluster.print("the state is on mesh %s with %v, says %s", s.Mesh, s.Workers, h.name)
	}
	l.meshes.reached[a.Batch] = text
	kept := l.meshes.refused && before.KeepsRanks() // since a reshape was called off
	if alone := loneReplicaText(run.way.new, s.Workers, run.way.takers); s.Redundant &&
		alone != "" && !kept {
		l.fail("a reshape counts on %s, and %s", h.name, alone)
	}
	if kinds := otherKindText(run.way.new, before, s.Workers, run.way.takers); kinds != "" &&
		!kept {
		l.fail("a reshape counts on %s, and %s", h.name, kinds)
	}
	for r, w := range s.Workers {
		for i, b := range run.way.new.boxesOf(r) {
			if before.Lost == "" && run.moved[w][i] != boxContent(b, made) {
				l.fail("w%d gets %x as box %d after step %d", w, run.moved[w][i], b, made)
			}
		}
		if i, _ := a.View.Rank(w); int(i) != r && s.Next == "" && s.Broken == "" {
			l.fail("w%d is rank %d of mesh %s, and of the job %d", w, r, s.Mesh, i)
		}
	}
}

// otherKindText says which rank of a mesh is on a host of another kind than the mesh says; "" =
// none is. s is a shape that has the kinds of hosts.
func otherKindText(m mesh, s *head.Shape, order []topo.WorkerID, members topo.View) string {
	for rank, w := range order {
		i, member := members.Rank(w)
		if kind := m.KindOf(rank); kind != "" && member &&
			kind != kindOf(s, members.Members[i].Host) {
			return fmt.Sprintf("rank %d of mesh %s is on %s, which is not of kind %s", rank, m,
				members.Members[i].Host, kind)
		}
	}
	return ""
}

// lacksKinds reports whether a mesh names kinds of hosts on which members lack.
func (c *Cluster) lacksKinds(m mesh, members topo.View) bool {
	have := map[string]int{}
	for _, x := range members.Members {
		if h := c.findHost(x.Host); h != nil {
			have[h.kind]++
		}
	}
	return m.CheckKinds(have) != nil
}

// checkBoxMissing checks that a job that says that it is broken, or its state lost, lacks a box
// (B1).
func (l *invariants) checkBoxMissing(h *host, a *head.Apply, run *execution, made uint64) {
	m, ok := h.cluster.parseMesh(a.Shape.Mesh)
	if !ok || a.View.Size() < m.tp || a.Shape.Lost == "" && h.cluster.lacksKinds(m, a.View) ||
		strings.Contains(a.Shape.Lost+a.Shape.Broken, refusal) {
		return
	}
	held := map[int]bool{}
	for _, x := range a.View.Members {
		if w := h.cluster.memberOnHost(x); w != nil && slices.Contains(a.Shape.Workers, x.Worker) {
			has := w.held
			if run != nil && run.way != nil {
				has = run.moved[x.Worker]
			}
			for _, b := range has {
				held[int(b>>48)] = held[int(b>>48)] || b == boxContent(int(b>>48), made)
			}
		}
	}
	if allHeld(held) {
		l.fail("%s says that the job cannot go on with what its members have, and they have "+
			"every box: %s%s", h.name, a.Shape.Broken, a.Shape.Lost)
	}
}

// stepOfState returns the step of which the state of the job is after an entry of the log. A host
// that has just come to the job learns it from its head.
func (l *invariants) stepOfState(h *host, a *head.Apply) uint64 {
	before, shape := l.at[h.name], l.meshes.shape[h.name]
	switch other, known := l.logs[h.agent.Head()][a.Index]; {
	case !before.members && known:
		return other.made
	case a.Steps > before.steps:
		return a.Steps
	case shape != nil && shape.Lost != "" && a.Shape.Lost == "":
		return l.checkReturn(h, a)
	}
	return before.made
}

// checkReturn checks that the job goes back to a checkpoint, and all that have read one to the same
// (R4); it returns the step of which that is.
func (l *invariants) checkReturn(h *host, a *head.Apply) uint64 {
	p := h.cluster.disk.sealed[a.Data.Step]
	if p == nil || !cmp.Equal(p.place, *a.Data) {
		l.fail("%s goes back to %+v, and no checkpoint is sealed there", h.name, *a.Data)
		return 0
	}
	for _, w := range h.workers {
		if w.in && w.back.from != nil && w.back.from != p {
			l.fail("%s goes back to step %d of the data, and w%d has gone to step %d", h.name,
				a.Data.Step, w.id, w.back.from.place.Step)
		}
	}
	return p.steps
}

// allHeld reports whether every box is held.
func allHeld(held map[int]bool) bool {
	for b := range boxes {
		if !held[b] {
			return false
		}
	}
	return true
}

// checkContributors checks that every rank of the mesh has a part in a step (V1), and that the job
// is not broken (B1).
func (l *invariants) checkContributors(h *host, a *head.Apply, contributors []topo.WorkerID) {
	if a.Shape != nil && !slices.Equal(contributors, a.Shape.Workers) {
		l.fail("step %d counts on %s with %v, and mesh %s is on %v", a.Steps, h.name, contributors,
			a.Shape.Mesh, a.Shape.Workers)
	}
	if l.meshes.broken != "" && a.Steps > l.meshes.last {
		l.fail("step %d counts on %s, and the job was broken after step %d: %s", a.Steps, h.name,
			l.meshes.last, l.meshes.broken)
	}
}

// checkBrokenIsKnown checks that every host that follows the head knows whether the job is broken,
// unless it was told that the job is over.
func (l *invariants) checkBrokenIsKnown(c *Cluster) {
	head := c.findHost(c.newestRecord().Head)
	if head == nil || !head.alive || !head.agent.Leads() || head.agent.State().Shape == nil ||
		head.agent.State().Shape.Broken == "" {
		return
	}
	for _, h := range c.livingHosts() {
		if slices.ContainsFunc(c.livingHosts(), func(o *host) bool {
			return o != h && c.net.isClosed(h.name, o.name)
		}) {
			continue // one of the two goes
		}
		if r := h.agent.Record(); h.ended || !r.Belongs(h.name) || !r.Equal(c.newestRecord()) {
			continue
		}
		if s := h.agent.State().Shape; s == nil || s.Broken != head.agent.State().Shape.Broken {
			l.fail("%s knows the shape %v, and the head %v", h.name, s, head.agent.State().Shape)
		}
	}
}
