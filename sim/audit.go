package sim

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/topo"
)

// meshes is what the ledger knows of a job with a mesh:
//
//   - a step counts when every rank of the mesh has a part in it, and nobody who had dropped it (V1);
//   - a void step counts nowhere (V2);
//   - the mesh changes with a reshape and with nothing else, alike on all hosts (R1);
//   - behind a reshape every box of every rank is what it was after the last step, handed over from a worker that had it (R2);
//   - a worker that begins a step is the rank of the mesh whose boxes it has (R3);
//   - a job is broken only when the members that are left cannot hold its mesh, says so on every host, and takes no step any more (B1).
type meshes struct {
	dropped map[callID]bool        // calls of a step that their worker has dropped
	shape   map[string]*head.Shape // of each host
	counted map[string]uint64      // steps, of each host
	reached map[head.Flight]string // what a reshape has led to
	broken  string                 // why the job is broken
	last    uint64                 // the step after which it is
}

func (m *meshes) init() {
	*m = meshes{dropped: map[callID]bool{}, shape: map[string]*head.Shape{}, counted: map[string]uint64{}, reached: map[head.Flight]string{}}
}

// meshed checks what an entry of the log means for the mesh.
func (l *ledger) meshed(h *host, a *head.Apply, run *execution) {
	s, before, follows := a.Shape, l.meshes.shape[h.name], l.at[h.name].members
	steps := l.meshes.counted[h.name]
	l.meshes.shape[h.name], l.meshes.counted[h.name] = s, a.Steps
	if s == nil {
		return
	}
	if a.Void && follows && a.Steps != steps {
		l.fail("%s counts a step that is void: %d after %d", h.name, a.Steps, steps)
	}
	went := false
	for _, part := range a.Parts {
		if part.Err != nil || !part.Calls[0].Call.Step {
			continue
		}
		for _, p := range part.Calls {
			if l.meshes.dropped[callID{p.Worker, p.Ticket}] {
				l.fail("entry %d counts call %d of w%d on %s, and w%d has dropped the step", a.Index, p.Ticket, p.Worker, h.name, p.Worker)
			}
		}
		if reshapes(&part) {
			went = a.Parted == ""
		} else if before != nil && follows && (before.Next != "" || before.Broken != "") {
			l.fail("step %d counts on %s, and the job was on its way to mesh %q, or broken: %q", a.Steps, h.name, before.Next, before.Broken)
		}
	}
	switch same := before != nil && before.Mesh == s.Mesh && slices.Equal(before.Workers, s.Workers); {
	case went:
		l.went(h, a, run, before)
	case before != nil && follows && !same:
		l.fail("entry %d changes the mesh on %s without a reshape: from %v to %v", a.Index, h.name, before, s)
	}
	if s.Broken != "" && (before == nil || before.Broken == "") {
		l.breaks(h, a, run)
	}
}

// went checks a reshape that counts.
func (l *ledger) went(h *host, a *head.Apply, run *execution, before *head.Shape) {
	s := a.Shape
	if before == nil || run == nil || run.way == nil || s.Mesh != run.way.new.String() || !slices.Equal(s.Workers, run.way.order) {
		l.fail("a reshape counts on %s, and the shape is %v after %v", h.name, s, before)
		return
	}
	text := fmt.Sprint(s.Mesh, s.Workers, run.moved)
	if other, known := l.meshes.reached[a.Flight]; known && other != text {
		l.fail("a reshape leads to %s, and on %s to %s", other, h.name, text)
	} else if !known {
		h.cluster.print("the state is on mesh %s with %v, says %s", s.Mesh, s.Workers, h.name)
	}
	l.meshes.reached[a.Flight] = text
	for r, w := range s.Workers {
		for i, b := range run.way.new.part(r) {
			if run.moved[w][i] != box(b, a.Steps) {
				l.fail("w%d gets %x as box %d after step %d", w, run.moved[w][i], b, a.Steps)
			}
		}
		if i, _ := a.View.Rank(w); int(i) != r && s.Next == "" && s.Broken == "" {
			l.fail("w%d is rank %d of mesh %s, and of the job %d", w, r, s.Mesh, i)
		}
	}
}

// breaks checks that a job is broken that says so.
func (l *ledger) breaks(h *host, a *head.Apply, run *execution) {
	l.meshes.broken, l.meshes.last = a.Shape.Broken, max(a.Steps, l.meshes.last)
	h.cluster.print("%s is broken: %s", h.name, a.Shape.Broken)
	m, ok := h.cluster.parse(a.Shape.Mesh)
	if !ok || a.View.Size() < m.tp {
		return
	}
	held := map[int]bool{}
	for _, x := range a.View.Members {
		if w := h.cluster.member(x); w != nil && slices.Contains(a.Shape.Workers, x.Worker) {
			has := w.held
			if run != nil && run.way != nil {
				has = run.moved[x.Worker]
			}
			for _, b := range has {
				held[int(b>>48)] = held[int(b>>48)] || b == box(int(b>>48), a.Steps)
			}
		}
	}
	if all(held) {
		l.fail("%s says that the job is broken, and its members have every box: %s", h.name, a.Shape.Broken)
	}
}

// all reports whether every box is held.
func all(held map[int]bool) bool {
	for b := range boxes {
		if !held[b] {
			return false
		}
	}
	return true
}

// parts checks that every rank of the mesh has a part in a step.
func (l *ledger) parts(h *host, a *head.Apply, contributors []topo.Worker) {
	if a.Shape != nil && !slices.Equal(contributors, a.Shape.Workers) {
		l.fail("step %d counts on %s with %v, and mesh %s is on %v", a.Steps, h.name, contributors, a.Shape.Mesh, a.Shape.Workers)
	}
	if l.meshes.broken != "" && a.Steps > l.meshes.last {
		l.fail("step %d counts on %s, and the job was broken after step %d: %s", a.Steps, h.name, l.meshes.last, l.meshes.broken)
	}
}

// saysSo checks that every host that follows the head knows whether the job is broken.
func (l *ledger) saysSo(c *Cluster) {
	head := c.host(c.newest().Head)
	if head == nil || !head.alive || !head.agent.Leads() || head.agent.Known().Shape == nil || head.agent.Known().Shape.Broken == "" {
		return
	}
	for _, h := range c.living() {
		if slices.ContainsFunc(c.living(), func(o *host) bool { return o != h && c.net.closed(h.name, o.name) }) {
			continue // one of the two goes
		}
		if r := h.agent.Record(); !r.Belongs(h.name) || !r.Equal(c.newest()) {
			continue
		}
		if s := h.agent.Known().Shape; s == nil || s.Broken != head.agent.Known().Shape.Broken {
			l.fail("%s knows the shape %v, and the head %v", h.name, s, head.agent.Known().Shape)
		}
	}
}
