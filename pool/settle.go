package pool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What follows from what has happened: what the core grants becomes what jobs want, and what they
// want becomes orders, as far as slots are free and the store knows.

// Settle decides, and makes the orders that follow. It is called after one event or several.
func (m *Machine) Settle(now int64) {
	m.at(now)
	m.takeGrants()
	for _, id := range m.byGrant() { // what frees slots comes first
		if e := m.jobs[id]; e.started() {
			m.advanceRunning(e)
		}
	}
	for _, id := range m.byGrant() {
		if e := m.jobs[id]; !e.started() && e.Want.total() > 0 {
			m.start(e)
		}
	}
	for _, id := range slices.Clone(m.order) {
		m.instruct(m.jobs[id])
	}
}

// byGrant returns the jobs that are not over, in the order in which they got what they want.
func (m *Machine) byGrant() []string {
	list := slices.Clone(m.order)
	slices.SortStableFunc(list, func(a, b string) int {
		return cmp.Compare(m.jobs[a].granted, m.jobs[b].granted)
	})
	return list
}

// takeGrants makes what the core grants what jobs want.
func (m *Machine) takeGrants() {
	for _, g := range m.core.Ready() {
		e := m.jobs[string(g.Job)]
		if e == nil || e.State.Over() || e.State == Stopping {
			continue
		}
		if g.Verb == sched.Refuse {
			m.end(e, Failed, g.Because)
			continue
		}
		want := Slots{}
		for _, p := range g.Places {
			want[p.Host] += p.Slots
		}
		if want.equal(e.Want) {
			continue
		}
		m.seq++
		e.granted = m.seq
		m.recordChange(e, want.total(), g.Because, expectation(g.Expect))
		e.Want, e.Because, e.Expect = want.clone(), g.Because, expectation(g.Expect)
		m.touch(e)
		e.intent = e.version
	}
}

// expectation returns what the core expects, where 0 is what it does not know.
func expectation(x sched.Expect) Expectation {
	known := func(at int64) int64 {
		if at == sched.Never {
			return 0
		}
		return at
	}
	return Expectation{Pause: x.Pause, End: known(x.End), Low: known(x.Lo), High: known(x.Hi)}
}

// recordChange enters a change into the list of a job. One that has not come by now never will.
func (m *Machine) recordChange(e *entry, to int, because string, x Expectation) {
	from := e.Want.total()
	if n := len(e.Changes); n > 0 && e.Changes[n-1].Done == 0 && e.Changes[n-1].Outcome == "" {
		e.Changes[n-1].Outcome = "something else was decided before it came"
		from = e.Held.total()
	}
	e.Changes = append(e.Changes, Change{At: m.now, From: from, To: to, Because: because,
		Expected: x})
	if n := len(e.Changes) - maxChanges; n > 0 {
		e.Changes = slices.Delete(e.Changes, 0, n)
	}
}

// changeDone enters that what was decided has come.
func (m *Machine) changeDone(e *entry) {
	if n := len(e.Changes); n > 0 && e.Changes[n-1].Done == 0 && e.Changes[n-1].Outcome == "" {
		e.Changes[n-1].Done = m.now
		m.touch(e)
	}
}

// start begins a job whose slots are all free: the whole gang or nobody.
func (m *Machine) start(e *entry) {
	if e.Held.total() > 0 {
		return // what it was is not gone yet
	}
	for host, n := range e.Want {
		if m.free(host) < n {
			return
		}
	}
	e.State, e.Attempt, e.Elastic = Starting, e.Attempt+1, false
	e.Lead = largest(e.Want)
	e.Held, e.Names, e.join, e.token = e.Want.clone(), map[string]string{}, "", ""
	e.target = e.Want.clone()
	e.sent, e.reports = map[string]sent{}, map[string]Report{}
	if e.Began == 0 {
		e.Began = m.now
	}
	m.touch(e)
	e.intent = e.version
	_ = m.coreUpdate(e)
}

// largest returns the host with the most slots, the first by name among equals.
func largest(s Slots) (best string) {
	for _, p := range s.places() {
		if best == "" || p.Slots > s[best] {
			best = p.Host
		}
	}
	return best
}

// advanceRunning brings a job that has processes nearer to what it wants.
func (m *Machine) advanceRunning(e *entry) {
	switch {
	case e.State == Stopping, e.State == Starting:
		return
	case e.Want.total() == 0:
		if e.State != Parking {
			e.State = Parking
			m.touch(e)
			e.intent = e.version
		}
		return
	case e.State == Parking:
		return // a checkpoint is under way; it starts again when that is over
	}
	target := m.nextTarget(e)
	if !target.equal(e.target) {
		e.target = target
		for host, n := range target {
			e.Held[host] = max(e.Held[host], n)
		}
		m.touch(e)
		e.intent = e.version
	}
	state := Running
	if !e.Want.equal(e.Held) {
		state = Resizing
	}
	if state != e.State {
		e.State = state
		m.touch(e)
	}
	if state == Running {
		m.changeDone(e)
	}
}

// nextTarget returns the slots that a running job can be given now: what it wants, as far as no
// other job is still there. A job that has to grow elsewhere before it can shrink here waits.
func (m *Machine) nextTarget(e *entry) Slots {
	target := Slots{}
	for host, n := range e.Want {
		have := e.Held[host]
		if k := min(n, have+max(0, m.free(host))); k > 0 {
			target[host] = k
		}
	}
	if target.total() < e.Submission.Min {
		return e.target
	}
	return target
}

// instruct makes the orders for a job that its hosts have not got yet.
func (m *Machine) instruct(e *entry) {
	if e.written < e.intent || !e.started() {
		return // the store comes first
	}
	o := Order{Job: e.ID, Attempt: e.Attempt, Because: e.Because}
	switch e.State {
	case Starting:
		m.instructStart(e, o)
	case Running, Resizing:
		m.instructSize(e, o)
	case Parking:
		o.Verb, o.Host = ParkRun, e.Lead
		m.send(e, o)
	case Stopping:
		o.Verb, o.Host, o.Who, o.Now = StopRun, e.Lead, e.StopBy, e.StopNow
		m.send(e, o)
	}
}

// instructStart has the host that leads a job start it, and the others join it.
func (m *Machine) instructStart(e *entry, o Order) {
	if e.Lead == "" {
		return
	}
	if _, told := e.sent[e.Lead]; !told {
		o.Verb, o.Host = StartRun, e.Lead
		o.Spec, o.Dir, o.Env = e.Submission.Spec, e.Submission.Dir, e.Submission.Env
		o.Workers, o.Slots, o.Shared = e.target.total(), e.target[e.Lead], true
		m.send(e, o)
	}
	m.instructJoins(e, o)
}

// instructJoins has hosts join a job that are to have workers of it and are not in it. The one that
// leads makes the token.
func (m *Machine) instructJoins(e *entry, o Order) {
	for _, p := range e.target.places() {
		if p.Host == e.Lead || e.Names[p.Host] != "" && e.hasPart(p.Host) {
			continue
		}
		if e.join == "" || e.token == "" {
			if e.led > 0 {
				o.Verb, o.Host = InviteRun, e.Lead
				m.send(e, o)
			}
			return
		}
		if e.Names[p.Host] == "" || e.reported(p.Host) {
			e.Names[p.Host] = m.freshName(e, p.Host)
			delete(e.reports, p.Host)
			delete(e.sent, p.Host)
			m.touch(e)
			e.intent = e.version
			continue // the name is written first
		}
		j := o
		j.Verb, j.Host, j.Join, j.Token, j.Name = JoinRun, p.Host, e.join, e.token, e.Names[p.Host]
		j.Dir, j.Env, j.Slots = e.Submission.Dir, e.Submission.Env, p.Slots
		m.send(e, j)
	}
}

// hasPart reports whether the keeper of a host has said that its part of the job runs, or has not
// answered yet the order to join.
func (e *entry) hasPart(host string) bool {
	r, known := e.reports[host]
	if s, told := e.sent[host]; told && (!known || r.Acked < s.seq) {
		return true
	}
	return known && len(r.Jobs) > 0 && r.Jobs[0].Live
}

// reported reports whether the keeper of a host has said that its part of the job is over.
func (e *entry) reported(host string) bool {
	r, known := e.reports[host]
	return known && len(r.Jobs) > 0 && !r.Jobs[0].Live
}

// freshName returns a name for a host in a job, which none of its hosts has had.
func (m *Machine) freshName(e *entry, host string) string {
	m.seq++
	return fmt.Sprintf("%.40s-%d-%d", host, e.Attempt, m.seq)
}

// instructSize gives a running job the slots of its target.
func (m *Machine) instructSize(e *entry, o Order) {
	m.instructJoins(e, o)
	allot := Slots{}
	for host, n := range e.target {
		if e.Names[host] == "" {
			return // it is not known yet how the host is called there
		}
		allot[e.Names[host]] = n
	}
	o.Verb, o.Host, o.Allot = AllotRun, e.Lead, allot
	m.send(e, o)
}

// send makes an order, unless the host has got the same one last.
func (m *Machine) send(e *entry, o Order) {
	h := m.hosts[o.Host]
	if h == nil || !h.Up || h.Forgot {
		return
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // texts and numbers
	}
	key := o.Host
	if o.Verb == InviteRun {
		key += "/invite"
	}
	if e.sent[key].text == string(text) {
		return
	}
	m.seq++
	e.sent[key] = sent{m.seq, string(text)}
	o.Seq = m.seq
	m.orders = append(m.orders, o)
}

// end ends a job.
func (m *Machine) end(e *entry, state State, why string) {
	e.State, e.Error, e.Over = state, why, m.now
	e.Because = string(state)
	if state == Stopped {
		e.Because = "stopped by " + e.StopBy
	}
	e.Want, e.Held = Slots{}, Slots{}
	m.learn(e)
	m.core.Ended(jobID(e))
	m.order = slices.DeleteFunc(m.order, func(id string) bool { return id == e.ID })
	m.over = append(m.over, e.ID)
	m.ending[e.ID] = true
	if len(m.over) > maxOver {
		if old := m.over[0]; !m.ending[old] {
			delete(m.jobs, old)
			m.over = m.over[1:]
		}
	}
	m.touch(e)
}

// requeue puts a job whose processes are gone among those that wait. It fails a job that was
// started several times and made no step.
func (m *Machine) requeue(e *entry, state State, why string) {
	const most = 3 // starts without a step
	if state == Waiting {
		e.Fails++
	}
	if e.Fails >= most {
		m.end(e, Failed, fmt.Sprintf("it was started %s and made no step: %s",
			plural.Of(most, "time"), why))
		return
	}
	e.State, e.Because, e.Lead = state, why, ""
	e.Want, e.Held, e.target = Slots{}, Slots{}, Slots{}
	e.sent, e.reports, e.Names = map[string]sent{}, map[string]Report{}, map[string]string{}
	m.touch(e)
	m.coreAgain(e)
}
