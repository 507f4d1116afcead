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
// want becomes orders, as far as slots are free and the store knows. All of it runs within Settle,
// or the methods of the Machine that take events, on the goroutine that uses it.

// Settle decides, and makes the orders that follow. It is called after one event or several.
func (m *Machine) Settle(now int64) {
	m.at(now)
	m.closeAway()
	m.endAwaits()
	m.takeGrants()
	for _, e := range m.byGrant() { // what frees slots comes first
		if e.State == Starting {
			m.advanceStarting(e)
		} else if e.started() {
			m.advanceRunning(e)
		}
	}
	for _, e := range m.byGrant() {
		if !e.started() && e.Want.total() > 0 {
			m.start(e)
		}
	}
	m.settleMarkets()
	for _, e := range slices.Clone(m.busy) {
		m.instruct(e)
	}
	m.dropIdle()
}

// byGrant returns the busy jobs, in the order in which they got what they want.
func (m *Machine) byGrant() []*entry {
	list := slices.Clone(m.busy)
	slices.SortStableFunc(list, func(a, b *entry) int { return cmp.Compare(a.granted, b.granted) })
	return list
}

// takeGrants makes what the core grants what jobs want.
func (m *Machine) takeGrants() {
	grants := m.core.Ready()
	for _, fault := range m.core.Faults() {
		m.notef("%s", fault)
	}
	m.writeMemory()
	for _, g := range grants {
		e := m.jobs[string(g.Job)]
		if e == nil || e.State.Over() {
			continue
		}
		if g.Verb == sched.Refuse {
			m.refuse(e, g.Because)
			continue
		}
		want := Slots{}
		for _, p := range g.Places {
			want[p.Host] += p.Slots
		}
		m.touch(e) // the core has decided, if only for another reason
		if want.equal(e.Want) {
			continue
		}
		if e.State == Stopping {
			e.Want = want
			continue
		}
		m.seq++
		e.granted = m.seq
		x := expectation(g.Expect)
		e.foreseen = foreseen{}
		if !m.knowsWork(e) {
			x = Expectation{Pause: x.Pause}
		} else {
			end := x.End
			x = m.correct(e, x, whenDecided)
			e.foreseen = foreseen{look: look{m.now, end, x.Low, x.High}}
		}
		m.recordChange(e, want.total(), g.Because, x)
		e.Want, e.Because, e.Expect = want.clone(), g.Because, x
		e.intent = e.version
		m.addBusy(e)
	}
	for _, g := range grants { // after all, since a job may be parked and get slots elsewhere
		if e := m.jobs[string(g.Job)]; e != nil && !e.State.Over() && e.Want.total() == 0 {
			_ = m.coreUpdate(e) // it can have other sizes when it starts again
		}
	}
	m.undoAway()
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
	if c := e.change(); c != nil {
		c.Outcome = "something else was decided before it came"
		from = e.Held.total()
	}
	e.Changes = append(e.Changes, Change{At: m.now, From: from, To: to, Because: because,
		Before: m.expectNow(e).End, Expected: x})
	if n := len(e.Changes) - maxChanges; n > 0 {
		e.Changes = slices.Delete(e.Changes, 0, n)
	}
}

// changeDone enters that what was decided has come.
func (m *Machine) changeDone(e *entry) {
	if c := e.change(); c != nil {
		c.Done = m.now
		m.touch(e)
	}
}

// startDone enters that a job has begun, unless something else was decided since.
func (m *Machine) startDone(e *entry) {
	if c := e.change(); c != nil && c.starts() && c.To > 0 {
		m.changeDone(e)
	}
}

// change returns the last change of a job if it is still to come, nil otherwise.
func (e *entry) change() *Change {
	n := len(e.Changes)
	if n == 0 || e.Changes[n-1].Done != 0 || e.Changes[n-1].Outcome != "" {
		return nil
	}
	return &e.Changes[n-1]
}

// starts reports whether a change gives a job its first workers, or those after it was parked.
func (c *Change) starts() bool { return c.From == 0 }

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
	e.State, e.Attempt = Starting, e.Attempt+1
	e.Elastic, e.Pinned, e.Unparkable = false, false, false
	e.Lead = largest(e.Want)
	e.Held, e.Target = e.Want.clone(), e.Want.clone()
	e.Parts, e.Names, e.Parted = map[string]int{e.Lead: 1}, map[string]string{}, 1
	e.init()
	e.crashed, e.stepped, e.Lost, e.Hurt, e.seen, e.failed = false, false, false, false, seen{}, ""
	e.join, e.token, e.led = "", "", 0
	e.traffic, e.Share = traffic{}, nil
	if e.Began == 0 {
		e.Began = m.now
	}
	m.nameParts(e)
	_ = m.coreUpdate(e)
}

// nameParts gives the hosts on which a job is to have slots and has no part their numbers and
// names, and has all that written before an order goes out.
func (m *Machine) nameParts(e *entry) {
	for _, p := range e.Target.places() {
		if e.Parts[p.Host] == 0 {
			e.Parted++
			e.Parts[p.Host] = e.Parted
			e.Names[p.Host] = fmt.Sprintf("%.40s-%d-%d", p.Host, e.Attempt, e.Parted)
		}
	}
	m.touch(e)
	e.intent = e.version
}

// Pauses, in milliseconds.
const (
	joinPause = 2_000  // until a host whose part is gone joins a job again
	leadPause = 30_000 // how long a job that is starting is waited for when nobody leads it
)

// advanceStarting gives a start up that cannot come to anything, since nobody leads it.
func (m *Machine) advanceStarting(e *entry) {
	if e.Lead != "" || m.now < e.alone+leadPause {
		return
	}
	if host := m.stuckAt(e); host != "" && !e.sent[sentKey{host, toRecover}].done {
		return // it has trained, and is about to be told to lead
	}
	for host := range e.Parts {
		if h := m.hosts[host]; h == nil || !h.Up || !h.heard || h.reported <= e.alone {
			return // it may lead
		}
		if s, told := e.sent[sentKey{host, toRecover}]; told && !s.done {
			return // it is to lead
		}
	}
	m.giveUp(e, "its hosts did not come together")
}

// giveUp ends an attempt that has not begun to train: what is left of it is killed. why counts
// where no part has said what has failed.
func (m *Machine) giveUp(e *entry, why string) {
	m.requeue(e, Waiting, cmp.Or(e.failed, why))
	e.gone = m.now - grace
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
	case e.State == Stopping:
		m.checkGone(e)
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
	if !target.equal(e.Target) {
		e.Target = target
		for host, n := range target {
			e.Held[host] = max(e.Held[host], n)
		}
		m.nameParts(e)
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
		have, free := e.Held[host], m.free(host)
		if e.Parts[host] == 0 && m.now < e.away[host]+joinPause {
			free = 0
		}
		if e.Target[host] == 0 && e.Parts[host] != 0 {
			have, free = 0, 0 // its part there is leaving, and must be gone before another comes
		}
		if k := min(n, have+free); k > 0 {
			target[host] = k
		}
	}
	if target.total() < e.Submission.Min {
		return e.Target
	}
	return target
}

// instruct makes the orders for a job that its hosts have not got yet.
func (m *Machine) instruct(e *entry) {
	if e.written < e.intent || !e.started() {
		return // the store comes first
	}
	o := Order{Job: e.ID, Attempt: e.Attempt, Because: e.Because}
	if host := m.stuckAt(e); host != "" {
		o.Verb, o.Host, o.Because = RecoverRun, host, ""
		m.send(e, toRecover, o)
	}
	switch e.State {
	case Starting:
		m.instructStart(e, o)
	case Running, Resizing:
		m.instructSize(e, o)
		if e.Share != nil {
			o.Verb, o.Host, o.Limit, o.Because = LimitRun, e.Lead, e.Share.Limit, ""
			m.send(e, toLimit, o)
		}
	case Parking:
		o.Verb, o.Host = ParkRun, e.Lead
		m.send(e, toLead, o)
	case Stopping:
		o.Verb, o.Host, o.Who, o.Now = StopRun, e.Lead, e.StopBy, e.StopNow
		m.send(e, toLead, o)
	}
}

// stuckAt returns the host that is to go on with a job that nobody leads: one of those that are
// left and cannot be sure of the others, which the pool is, since their keepers have said that
// nothing is left there. It returns "" where that is not so of all.
func (m *Machine) stuckAt(e *entry) (first string) {
	if len(e.stuck) == 0 {
		return ""
	}
	for host := range e.Parts {
		h := m.hosts[host]
		switch {
		case !e.begun[host]:
		case !e.stuck[host] || h == nil || !h.Up || !h.heard:
			return "" // it may lead, or be about to
		case first == "" || host < first:
			first = host
		}
	}
	return first
}

// instructStart has the host that leads a job start it, and the others join it.
func (m *Machine) instructStart(e *entry, o Order) {
	if e.Parts[e.Lead] == 1 && !e.begun[e.Lead] {
		o.Verb, o.Host, o.Part = StartRun, e.Lead, 1
		o.Spec, o.Dir, o.Env = e.Submission.Spec, e.Submission.Dir, e.Submission.Env
		o.Workers, o.Slots, o.Shared = e.Target.total(), e.Target[e.Lead], true
		m.send(e, toBegin, o)
		return
	}
	if e.Hurt {
		o.Verb, o.Host = InviteRun, e.Lead // which changes nothing
		m.send(e, toAsk, o)
		return
	}
	m.instructJoins(e, o)
}

// instructJoins has hosts join a job that are to have workers of it and are not in it. The one that
// leads makes the token.
func (m *Machine) instructJoins(e *entry, o Order) {
	for _, p := range e.Target.places() {
		if p.Host == e.Lead || e.begun[p.Host] {
			continue
		}
		if e.join == "" || e.token == "" {
			if e.led > 0 {
				o.Verb, o.Host = InviteRun, e.Lead
				m.send(e, toInvite, o)
			}
			return
		}
		j := o
		j.Verb, j.Host, j.Join, j.Token, j.Name = JoinRun, p.Host, e.join, e.token, e.Names[p.Host]
		j.Dir, j.Env, j.Slots = e.Submission.Dir, e.Submission.Env, p.Slots
		j.Part = e.Parts[p.Host]
		m.send(e, toBegin, j)
	}
}

// instructSize gives a running job the slots of its target.
func (m *Machine) instructSize(e *entry, o Order) {
	m.instructJoins(e, o)
	allot := Slots{}
	for host, n := range e.Target {
		if e.Names[host] == "" {
			return // it is not known yet how the host is called there
		}
		allot[e.Names[host]] = n
	}
	if allot.total() < e.Submission.Min {
		return // no job takes fewer: where it has lost a host, it keeps what it had until then
	}
	o.Verb, o.Host, o.Allot = AllotRun, e.Lead, allot
	m.send(e, toLead, o)
}

// send makes an order that its host can get now, unless that got the same last of its stream.
func (m *Machine) send(e *entry, stream stream, o Order) {
	h := m.hosts[o.Host]
	if h == nil || !h.Up || h.Forgot || !h.heard {
		return
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // texts and numbers
	}
	key := sentKey{o.Host, stream}
	if e.sent[key].text == string(text) {
		return
	}
	switch stream {
	case toBegin:
		e.begun[o.Host] = true
	case toLead: // should a host lead again that did before, it needs the orders of now
		for other := range e.sent {
			if other.stream == toLead && other.host != o.Host {
				delete(e.sent, other)
			}
		}
	}
	m.seq++
	s := sent{seq: m.seq, verb: o.Verb, text: string(text)}
	if o.Verb == AllotRun {
		s.slots = e.Target.clone()
	}
	e.sent[key] = s
	m.addBusy(e)
	o.Seq = m.seq
	m.orders = append(m.orders, o)
}

// end ends a job.
func (m *Machine) end(e *entry, state State, why string) {
	if c := e.change(); c != nil {
		c.Outcome = "the job was over before it came"
	}
	e.State, e.Error, e.Over = state, why, m.now
	e.Because = string(state)
	if state == Stopped {
		e.Because = "stopped by " + e.StopBy
	}
	e.Want, e.Target, e.gone, e.Awaits = Slots{}, Slots{}, m.now, false
	_ = m.core.Ended(jobID(e))
	if i, there := m.indexOf(e); there {
		m.order = slices.Delete(m.order, i, i+1)
	}
	m.dropBusy(e)
	m.learn(e)
	m.over = append(m.over, e.ID)
	m.ending[e.ID] = true
	m.dropOld()
	m.touch(e)
}

// requeue puts a job whose attempt has ended among those that wait. It fails a job of which several
// starts in a row have ended by themselves before a step. A start that has made one does not count,
// and neither does one of which a host or a keeper was lost.
func (m *Machine) requeue(e *entry, state State, why string) {
	const most = 3 // starts without a step
	if state == Waiting && e.crashed && !e.stepped && !e.Lost {
		e.Fails++
	}
	if e.Fails >= most {
		m.end(e, Failed, fmt.Sprintf("it was started %s and made no step: %s",
			plural.Of(most, "time"), why))
		return
	}
	if c := e.change(); state == Parked && c != nil && c.To == 0 {
		m.changeDone(e)
	} else {
		if state == Parked && e.ParkBy == "" {
			why = "it was parked"
		}
		m.recordChange(e, 0, why, Expectation{})
		m.changeDone(e)
	}
	e.State, e.Because, e.Lead, e.gone = state, why, "", m.now
	e.Want, e.Target = Slots{}, Slots{}
	m.touch(e)
	_ = m.coreUpdate(e)
}

// waitAgain takes from a job that has not begun the slots that were decided for it; why is what
// came of that decision.
func (m *Machine) waitAgain(e *entry, why string) {
	if c := e.change(); c != nil {
		c.Outcome = why
	}
	e.Want = Slots{}
	_ = m.core.Undo(jobID(e), nil, false)
	_ = m.coreUpdate(e) // it has done nothing meanwhile, and asks for what it did before
	m.touch(e)
}
