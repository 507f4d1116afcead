package pool

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// What goes wrong in the world of the tests, and what is checked there.

// lose loses a host with all that runs on it.
func (w *world) lose(h *worldHost) {
	w.note("%s is lost", h.name)
	h.lost, h.keeper = true, false
	w.unlink(h)
	for _, id := range w.jobIDs() {
		w.killOn(id, h.name, w.runs[id].attempt)
	}
	h.parts = map[string]*part{}
}

// killAll kills all that runs on a host, with its keeper.
func (w *world) killAll(h *worldHost) {
	for _, id := range w.jobIDs() {
		if p := h.parts[id]; p != nil && p.live {
			w.killOn(id, h.name, p.attempt)
			p.end.Lost = true
		}
	}
}

// person has a person do something that is seldom done.
func (w *world) person() {
	switch k := w.r.IntN(11); {
	case k >= 8:
		if len(w.m.order) > 0 {
			id := w.m.order[w.r.IntN(len(w.m.order))]
			if w.m.jobs[id].ParkBy != "" {
				w.note("resume %s: %v", id, w.m.Resume(w.now, id, "x"))
			} else {
				w.note("park %s: %v", id, w.m.Park(w.now, id, "x"))
			}
		}
	case k < 5:
		if len(w.m.order) > 0 {
			id, n := w.m.order[w.r.IntN(len(w.m.order))], w.r.IntN(5)
			w.note("resize %s %d: %v", id, n, w.m.Resize(w.now, id, n, "x"))
		}
	case k < 7:
		if h := w.pick(func(h *worldHost) bool { return true }); h != nil {
			leaves := w.r.IntN(2) == 0
			w.note("leave %s %t: %v", h.name, leaves, w.m.Leave(w.now, h.name, leaves))
		}
	default:
		h := w.pick(func(h *worldHost) bool { return !h.linked && !h.keeper && !h.lost })
		if h != nil && w.r.IntN(4) == 0 {
			w.forget(h)
		}
	}
}

// unlink ends the link with a keeper; what is under way is lost.
func (w *world) unlink(h *worldHost) {
	if h.linked {
		h.linked, h.in, h.out = false, nil, nil
		w.m.HostDown(w.now, h.name)
	}
}

// mishap kills an agent, loses a report, or lets parts of jobs that have ended go.
func (w *world) mishap() {
	switch w.r.IntN(4) {
	case 0:
		h := w.pick(func(h *worldHost) bool { return len(h.parts) > 0 })
		if h == nil {
			return
		}
		for _, id := range w.jobIDs() {
			if p := h.parts[id]; p != nil && p.live && w.r.IntN(2) == 0 {
				w.note("the agent of %s on %s is killed", id, h.name)
				w.faults[id]++
				w.killOn(id, h.name, p.attempt)
			}
		}
	case 1:
		if h := w.pick(func(h *worldHost) bool { return len(h.out) > 1 }); h != nil {
			h.out = h.out[1:]
		}
	case 2:
		if h := w.pick(func(h *worldHost) bool { return true }); h != nil {
			w.exit(h)
		}
	case 3:
		for _, id := range w.jobIDs() {
			run := w.runs[id]
			h := w.pick(func(h *worldHost) bool { return run.agents[h.name] && h.name != run.lead })
			if h != nil && run.began && !run.over && !run.stuck && w.r.IntN(2) == 0 {
				w.note("%s is cut off from the others of %s", h.name, id)
				h.parts[id].workers = run.workers[h.name]
				run.workers[h.name], run.agents[h.name], run.hurt = 0, false, true
			}
		}
	}
}

// killHead starts another head from what the store has.
func (w *world) killHead() {
	w.note("the head is killed")
	for i := w.r.IntN(len(w.writes) + 1); i > 0; i-- { // some of what is under way is done
		w.store[w.writes[0].Key] = w.writes[0].Value
		w.writes = w.writes[1:]
	}
	if len(w.writes) == 0 {
		w.audit()
	}
	w.writes, w.asked = nil, nil
	m, err := Restore(w.cfg, w.now, w.store)
	if err != nil {
		w.fail("restore: %v", err)
		return
	}
	w.m = m
	for _, name := range w.names() {
		if h := w.hosts[name]; h.linked || h.keeper {
			h.linked, h.out = false, nil // what was said to the old head
			if h.keeper && w.r.IntN(3) > 0 {
				w.link(h)
			}
		}
	}
	for id := range w.kept {
		if w.m.jobs[id] == nil {
			w.fail("Q3: job %s is forgotten", id)
		}
	}
}

// anyForgot reports whether a person has ever said of a host of a run that it is gone for good.
func (w *world) anyForgot(run *worldRun) bool {
	for host := range run.names {
		if w.forgot[host] {
			return true
		}
	}
	return false
}

// forget has a person say that a host is gone for good, which may be wrong.
func (w *world) forget(h *worldHost) {
	err := w.m.Forget(w.now, h.name)
	w.note("forget %s: %v", h.name, err)
	if err == nil {
		w.forgot[h.name] = true
	}
}

// check checks what is promised after every event.
func (w *world) check() {
	if err := w.m.Check(); err != nil {
		w.fail("%v\n%s", err, w.describe())
	}
	for _, name := range w.names() {
		n := 0
		for _, run := range w.runs {
			n += run.workers[name]
		}
		for _, p := range w.hosts[name].parts {
			n += p.workers
		}
		if n > w.hosts[name].slots {
			w.fail("Q1: %d processes on %s, which has %d slots", n, name, w.hosts[name].slots)
		}
	}
	for id, e := range w.m.jobs {
		if e.Fails > w.faults[id] {
			w.fail("job %s is said to have ended by itself %d times, and has %d times", id, e.Fails,
				w.faults[id])
		}
		if e.ParkBy != "" && !e.State.Over() && e.Want.total() > 0 {
			w.fail("job %s is to have slots, and %s has parked it", id, e.ParkBy)
		}
		if e.State.Over() && e.change() != nil {
			w.fail("job %s is over, and a change of it is still to come", id)
		}
		if e.State == Ended && len(e.Changes) == 1 && e.Changes[0].Done == 0 {
			w.fail("job %s has ended, and its only start is said not to have come", id)
		}
	}
	for id, run := range w.runs {
		e := w.m.jobs[id]
		if run.began && !run.over && !w.anyForgot(run) &&
			(e == nil || !e.started() || e.Attempt != run.attempt) {
			w.fail("Q7: job %s trains, and is given up", id)
		}
		n := 0
		for _, k := range run.workers {
			n += k
		}
		if run.began && n > 0 && n < run.least && !run.hurt {
			w.fail("Q2: job %s has %d workers, fewer than %d", id, n, run.least)
		}
	}
}

// calm lets everything that is under way come to its end, without new faults, and checks Q5.
func (w *world) calm() {
	for _, name := range w.names() {
		h := w.hosts[name]
		if h.lost {
			h.lost = false
		}
		if h.keeper = true; !h.linked {
			w.link(h)
		}
		_ = w.m.Leave(w.now, h.name, false)
	}
	for i := range 3000 {
		w.now += 1000
		if i == 20 {
			for _, id := range slices.Clone(w.m.order) {
				w.note("resume %s: %v", id, w.m.Resume(w.now, id, "x"))
			}
		}
		for _, name := range w.names() {
			w.exit(w.hosts[name])
		}
		w.settle()
		for n := 0; len(w.writes) > 0; n++ {
			if w.write(); n > 5000 {
				w.fail("it writes for ever: %s", w.describe())
				return
			}
			w.settle()
		}
		for _, name := range w.names() {
			h := w.hosts[name]
			for len(h.in) > 0 {
				w.carryOut(h)
			}
			w.report(h)
			for len(h.out) > 0 {
				r := h.out[0]
				h.out = h.out[1:]
				w.m.Reported(w.now, r)
				w.check()
			}
		}
		for _, id := range w.jobIDs() {
			for range 8 {
				w.step(id)
			}
		}
		w.check()
		if len(w.m.order) == 0 || w.broken != "" {
			return
		}
	}
	w.fail("Q5: these never end:\n%s", w.describe())
}

// describe says what jobs that are not over do.
func (w *world) describe() string {
	var left []string
	for _, id := range w.m.order {
		e := w.m.jobs[id]
		left = append(left, fmt.Sprintf("%s %s: %s, %+v begun %v, in truth %+v", id, e.State,
			e.Because, e.Gang, e.begun, w.runs[id]))
	}
	return strings.Join(left, "\n")
}

// jobIDs returns the names of all runs in order.
func (w *world) jobIDs() (list []string) {
	for id := range w.runs {
		list = append(list, id)
	}
	sort.Strings(list)
	return list
}

// handOver has another host lead a run whose leader is to have no workers.
func (w *world) handOver(id string) {
	run := w.runs[id]
	if run.workers[run.lead] > 0 {
		return
	}
	for _, host := range w.names() {
		if run.agents[host] && run.workers[host] > 0 {
			run.agents[run.lead] = false
			if p := w.hosts[run.lead].parts[id]; p != nil {
				p.live, p.end = false, &End{}
			}
			run.lead = host
			return
		}
	}
}

// finish ends a run on all of its hosts.
func (w *world) finish(id string, x End) {
	run := w.runs[id]
	w.note("%s ends: %+v", id, x)
	run.over = true
	if p := w.hosts[run.lead].parts[id]; p != nil && p.attempt == run.attempt {
		p.live, p.end = false, &x
	}
	w.abandon(run, id)
}
