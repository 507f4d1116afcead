package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
)

// A pool in a small world: hosts with processes, keepers that die and come back, messages that are
// lost, a store that is slow, heads that are killed. The world knows the truth, by which it checks
// what the machine promises.

// world is a pool with all that it acts on. Its random numbers decide what happens next.
type world struct {
	r      *rand.Rand
	now    int64
	m      *Machine
	cfg    Config
	store  map[string][]byte
	hosts  map[string]*worldHost
	runs   map[string]*worldRun // by job
	kept   map[string]bool      // ids of jobs that were accepted, and which the store has
	faults map[string]int       // by job, how often processes of it have ended by themselves
	forgot map[string]bool      // hosts that were ever forgotten
	asked  []string             // ids whose submission is not yet answered
	writes []Write              // under way
	log    []string
	n      int // submissions
	// broken is the first promise that was broken; "" = none.
	broken string
}

// worldHost is a host, and what its keeper knows.
type worldHost struct {
	name   string
	slots  int
	lost   bool // whether the machine is gone
	keeper bool // whether the keeper runs
	linked bool
	acked  uint64
	in     []Order
	out    []Report
	parts  map[string]*part // by job; on the disk of the host
}

// part is what a keeper knows of a job on its host.
type part struct {
	attempt int
	number  int
	live    bool
	// workers are its processes when its job has ended already, which it has not heard.
	workers  int
	allotted uint64
	end      *End
	refused  string
	token    bool
	invited  uint64 // the last order to invite on this link
}

// worldRun is one attempt of a job, in truth.
type worldRun struct {
	attempt int
	lead    string
	names   map[string]string // host by name in the job
	workers map[string]int    // processes by host
	agents  map[string]bool   // hosts with an agent or launcher
	room    map[string]int    // slots of its agents
	allot   map[string]int    // slots by the names of hosts in the job, also of those to come
	total   int               // workers with which it starts
	began   bool              // whether all of the first workers are there
	least   int
	elastic bool
	parks   bool // whether it has checkpoints
	parking bool
	stop    bool
	hurt    bool // whether it has lost processes to faults
	stuck   bool // whether its lead is lost, and those that are left are not sure of that
	over    bool // whether it has ended
	steps   uint64
	goal    uint64
	limit   uint64 // of what it sends
}

// newWorld returns a world whose events follow from a seed.
func newWorld(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), now: 1_000_000, store: map[string][]byte{},
		hosts: map[string]*worldHost{}, runs: map[string]*worldRun{}, kept: map[string]bool{},
		faults: map[string]int{}, forgot: map[string]bool{}}
	policies := policyNames()
	w.cfg = Config{Name: "lab", Policy: policies[w.r.IntN(len(policies))]}
	switch w.r.IntN(8) {
	case 0:
		w.cfg.Policy = "deadline" // the one that refuses jobs
	case 1, 2, 3, 4:
		w.cfg.Policy = "elastic" // the one that a pool has by itself
	}
	w.m, _ = New(w.cfg, w.now)
	for i := range 1 + w.r.IntN(4) {
		h := &worldHost{name: fmt.Sprintf("h%d", i), slots: 1 + w.r.IntN(4), keeper: true,
			parts: map[string]*part{}}
		w.hosts[h.name] = h
		w.link(h)
	}
	return w
}

// note writes an event into the log of the world.
func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%d ", w.now)+fmt.Sprintf(format, args...))
}

// fail says that a promise is broken.
func (w *world) fail(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

// names returns the names of all hosts in order.
func (w *world) names() (list []string) {
	for name := range w.hosts {
		list = append(list, name)
	}
	sort.Strings(list)
	return list
}

// pick returns a host for which f holds, or nil.
func (w *world) pick(f func(*worldHost) bool) *worldHost {
	var list []*worldHost
	for _, name := range w.names() {
		if h := w.hosts[name]; f(h) {
			list = append(list, h)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[w.r.IntN(len(list))]
}

// link links a keeper with the head.
func (w *world) link(h *worldHost) {
	h.linked, h.in, h.out, h.acked = true, nil, nil, 0
	for _, p := range h.parts {
		p.invited = 0
	}
	w.m.HostUp(w.now, h.name, h.slots, h.name+":1")
	if w.now%2 == 0 { // as after another start of the keeper
		_ = w.m.Leave(w.now, h.name, false)
	}
	w.m.SetLink(w.now, h.name, float64(w.now%4)*1e6)
}

// write lets the store take the oldest write.
func (w *world) write() {
	if len(w.writes) == 0 {
		return
	}
	x := w.writes[0]
	w.writes = w.writes[1:]
	w.store[x.Key] = x.Value
	w.note("written %s %v", x.Job, x.held)
	w.m.Written(w.now, x)
	w.asked = slices.DeleteFunc(w.asked, func(id string) bool {
		if w.m.IsWritten(id) {
			w.kept[id] = true
			return true
		}
		return false
	})
}

// submit submits a job.
func (w *world) submit() {
	least := 1 + w.r.IntN(3)
	most := least + w.r.IntN(3)
	s := Submission{Name: []string{"a", "b"}[w.r.IntN(2)], Spec: "x", Min: least, Max: most,
		Asked: least + w.r.IntN(most-least+1), Priority: w.r.IntN(3) * w.r.IntN(2),
		Preempt: []string{"", "never", "park"}[w.r.IntN(3)], Kind: []string{"", "k"}[w.r.IntN(2)],
		Steps: uint64(w.r.IntN(2) * (1 + w.r.IntN(80)))}
	if w.r.IntN(3) == 0 {
		s.Deadline = 1 + w.r.Int64N(int64(1)<<w.r.IntN(24)) // up to some hours
	}
	if w.r.IntN(4) == 0 {
		s.Sizes = slices.Compact([]int{least, s.Asked, most})
	}
	id, err := w.m.Submit(w.now, s)
	w.note("submit %+v: %s %v", s, id, err)
	if err == nil {
		w.asked = append(w.asked, id)
		w.n++
	}
}

// carryOut has a keeper carry out its next order.
func (w *world) carryOut(h *worldHost) {
	o := h.in[0]
	h.in = h.in[1:]
	w.note("%s carries out %+v", h.name, o)
	p := h.parts[o.Job]
	run := w.runs[o.Job]
	mine := run != nil && run.attempt == o.Attempt
	switch o.Verb {
	case StartRun:
		if p != nil && (p.attempt > o.Attempt || p.attempt == o.Attempt && p.number >= o.Part) {
			break
		}
		if run != nil && !run.over {
			if !w.anyForgot(run) {
				w.fail("Q1: %s starts attempt %d of %s beside attempt %d", h.name, o.Attempt,
					o.Job, run.attempt)
			}
			w.abandon(run, o.Job)
		}
		if p != nil && p.live {
			w.fail("Q1: %s starts attempt %d of %s beside a part", h.name, o.Attempt, o.Job)
		}
		h.parts[o.Job] = &part{attempt: o.Attempt, number: o.Part, live: true}
		before := uint64(0)
		if run != nil && run.parks {
			before = run.steps // it goes on from its checkpoint
		}
		e := w.m.jobs[o.Job]
		w.runs[o.Job] = &worldRun{attempt: o.Attempt, lead: h.name, steps: before,
			names: map[string]string{h.name: "host-" + h.name}, total: o.Workers,
			workers: map[string]int{h.name: min(o.Slots, o.Workers)},
			agents:  map[string]bool{h.name: true}, room: map[string]int{h.name: o.Slots},
			least: e.Submission.Min, elastic: w.r.IntN(4) > 0,
			parks: e.Submission.Preempt == "park" && w.r.IntN(4) > 0,
			goal:  uint64(20 + w.r.IntN(60))}
	case JoinRun:
		if p != nil && (p.attempt > o.Attempt || p.attempt == o.Attempt && p.number >= o.Part) {
			break
		}
		if p != nil && p.live {
			w.fail("Q1: %s joins %s beside a part", h.name, o.Job)
		}
		if h.parts[o.Job] = (&part{attempt: o.Attempt, number: o.Part}); !mine || run.over {
			h.parts[o.Job].end = &End{Error: "nobody answers"}
			break
		}
		h.parts[o.Job].live = true
		run.names[h.name], run.agents[h.name], run.room[h.name] = o.Name, true, o.Slots
	case AllotRun:
		if p == nil || !p.live || !mine || run.lead != h.name {
			break
		}
		p.refused, p.allotted = "", o.Seq
		switch {
		case !run.elastic:
			same := true
			for host, n := range run.workers {
				same = same && o.Allot[run.names[host]] == n
			}
			if !same {
				p.refused, p.allotted = "it does not train in steps", 0
			}
		case Slots(o.Allot).total() < run.least:
			p.refused, p.allotted = "the job's minimum is more", 0
		default:
			run.allot = o.Allot
		}
	case InviteRun:
		if p != nil {
			p.token, p.invited = true, o.Seq
		}
	case RecoverRun:
		if p == nil || !p.live || !mine || run.over {
			break
		}
		if !run.stuck && !run.agents[h.name] && !w.anyForgot(run) {
			w.fail("%s goes on with its part of %s, which %s leads", h.name, o.Job, run.lead)
		}
		if run.stuck {
			run.stuck = false
			w.handOver(o.Job)
		}
	case LimitRun:
		if p != nil && p.live && mine && run.lead == h.name {
			run.limit = o.Limit
		}
	case ParkRun:
		if p == nil || !p.live || !mine || run.lead != h.name {
			break
		}
		if p.refused = ""; !run.parks {
			p.refused = "it writes no checkpoints"
			break
		}
		run.parking = true
	case StopRun:
		if mine && p != nil && p.live {
			run.stop = true
		}
	case DropRun:
		if p != nil && p.attempt == o.Attempt && p.number == o.Part && !p.live {
			delete(h.parts, o.Job)
		}
	case KillRun:
		if p != nil && p.attempt == o.Attempt && p.number == o.Part && p.live {
			if mine && !run.over && run.began && !w.anyForgot(run) {
				w.fail("Q7: %s kills its part of %s, which trains", h.name, o.Job)
			}
			w.killOn(o.Job, h.name, o.Attempt)
		}
	}
	h.acked = o.Seq
}

// killOn ends the part of a job on a host with its processes.
func (w *world) killOn(job, host string, attempt int) {
	if p := w.hosts[host].parts[job]; p != nil && p.live {
		p.live, p.workers, p.end = false, 0, &End{Error: "killed"}
	}
	run := w.runs[job]
	if run == nil || run.attempt != attempt || run.over || !run.agents[host] {
		return
	}
	run.workers[host], run.agents[host], run.hurt = 0, false, true
	led := run.lead == host && run.began && !run.stuck
	if run.stuck = run.stuck || led && w.r.IntN(2) == 0; run.stuck && w.survivors(run) {
		w.note("%s is stuck", job)
		return
	}
	if w.handOver(job); run.lead == host || !run.agents[run.lead] { // nobody can lead
		w.note("nobody leads %s any more", job)
		run.over = true
		w.abandon(run, job)
	}
}

// isPaused reports whether a run has too few workers to make a step.
func (run *worldRun) isPaused() bool {
	n := 0
	for _, workers := range run.workers {
		n += workers
	}
	return run.elastic && n < run.least
}

// survivors reports whether a run has workers on some host.
func (w *world) survivors(run *worldRun) bool {
	for host := range run.agents {
		if run.agents[host] && run.workers[host] > 0 {
			return true
		}
	}
	return false
}

// abandon ends what is left of a run on other hosts than the one that led it, some of it later.
func (w *world) abandon(run *worldRun, id string) {
	for _, host := range w.names() {
		p := w.hosts[host].parts[id]
		if p == nil || !p.live || p.attempt != run.attempt {
			continue
		}
		if w.r.IntN(3) == 0 { // it hears it later
			p.workers = max(p.workers, run.workers[host])
		} else {
			p.live, p.workers, p.end = false, 0, &End{Error: "the head is lost", Lost: true}
		}
	}
	run.workers, run.agents = map[string]int{}, map[string]bool{}
}

// exit ends parts of jobs that have ended.
func (w *world) exit(h *worldHost) {
	for id, p := range h.parts {
		run := w.runs[id] // of which it hears that it is no part of it, perhaps
		if p.live && (run.over || run.attempt != p.attempt || !run.agents[h.name]) {
			p.live, p.workers, p.end = false, 0, &End{OK: true}
		}
	}
}

// report has a keeper say what is on its host.
func (w *world) report(h *worldHost) { h.out = append(h.out, w.say(h)) }

// say returns what a keeper says of its host.
func (w *world) say(h *worldHost) Report {
	r := Report{Host: h.name, Acked: h.acked}
	var ids []string
	for id := range h.parts {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		p := h.parts[id]
		j := JobReport{Job: id, Attempt: p.attempt, Part: p.number, Live: p.live, End: p.end,
			Refused: p.refused}
		if run := w.runs[id]; p.live && run.attempt == p.attempt && !run.over {
			j.Stuck = run.stuck || !run.agents[h.name]
		}
		if run := w.runs[id]; p.live && run.attempt == p.attempt && run.lead == h.name &&
			!run.over && !run.stuck {
			l := &Led{Host: run.names[h.name], Allotted: p.allotted, Workers: map[string]int{},
				Elastic: run.elastic && (run.steps > 0 || run.hurt),
				Steps:   run.steps, Goal: run.goal, Join: "addr", Dir: "/run",
				Sent: 1000 * run.steps * uint64(len(run.names)-1), Limit: run.limit}
			for host, n := range run.workers {
				l.Workers[run.names[host]] = n
				l.Size += n
			}
			if l.Want = run.total; !run.began {
				l.Size = 0
			}
			if l.Invited = p.invited; p.token {
				l.Token = "token"
			}
			if run.steps > 0 && !run.isPaused() {
				l.Pace = 1 / float64(l.Size)
			}
			j.Led = l
		}
		r.Jobs = append(r.Jobs, j)
	}
	return r
}

// step lets a run make a step, with what follows at its end.
func (w *world) step(id string) {
	run := w.runs[id]
	if run == nil || run.over || run.stuck || !run.agents[run.lead] {
		return
	}
	if !run.began {
		room := 0
		for host := range run.agents {
			if run.agents[host] {
				room += run.room[host]
			}
		}
		if run.stop {
			w.finish(id, End{Final: true, Stopped: "x"})
		} else if room >= run.total {
			for host := range run.agents {
				run.workers[host] = run.room[host]
			}
			run.began = true
		}
		return
	}
	if !run.isPaused() {
		run.steps++
	}
	switch {
	case run.stop:
		w.finish(id, End{Final: true, OK: true, Stopped: "x"})
	case run.parking:
		w.finish(id, End{Final: true, OK: true, Parked: true})
	case run.steps >= run.goal:
		w.finish(id, End{Final: true, OK: true})
	case run.allot != nil:
		after := 0
		for host, name := range run.names {
			if run.agents[host] {
				after += run.allot[name]
			}
		}
		if after < run.least {
			return // others must have joined before
		}
		for host, name := range run.names {
			n := run.allot[name]
			if !run.agents[host] {
				continue
			}
			if run.workers[host] = n; n == 0 && host != run.lead {
				run.agents[host] = false
				if p := w.hosts[host].parts[id]; p != nil {
					p.live, p.end = false, &End{}
				}
			}
		}
		w.handOver(id)
	}
}
