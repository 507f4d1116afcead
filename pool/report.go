package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/shorten"
)

// What keepers report, and what follows for the slots that jobs hold.
//
// A job holds slots on a host from the moment on at which it is decided that it gets them. It holds
// fewer only in three cases. The keeper of the host says that the part of the job there is gone.
// The host that leads the job says how many workers there are, and that the job has taken the last
// order to allot, so that there will not be more. Or the part was never begun, and is not wanted.
// Reported calls all else here, on the goroutine that uses the Machine.

// Reported takes the report of a keeper on the link that HostUp told of last.
func (m *Machine) Reported(now int64, r Report) {
	m.at(now)
	h := m.hosts[r.Host]
	if h == nil || h.Forgot || !h.Up {
		return
	}
	h.heard, h.foreign, h.reported = true, false, m.now
	by := make(map[string]JobReport, len(r.Jobs))
	for _, j := range r.Jobs {
		by[j.Job] = j
	}
	for _, e := range m.unfinished() {
		if j, there := by[e.ID]; there && e.isPart(r.Host, j) {
			m.takePart(e, r, j)
		} else if e.Parts[r.Host] != 0 || e.Held[r.Host] > 0 {
			m.takeAbsence(e, r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(by)) {
		m.takeRest(h, r, by[id])
	}
}

// isPart reports whether a report is of the part that a job has on a host now.
func (e *entry) isPart(host string, j JobReport) bool {
	return j.Attempt == e.Attempt && j.Part != 0 && j.Part == e.Parts[host]
}

// takePart takes what a keeper says of the part of a job on its host.
func (m *Machine) takePart(e *entry, r Report, j JobReport) {
	e.begun[r.Host] = true
	if !j.Live {
		if x := j.End; x != nil && e.started() {
			e.crashed, e.Lost = e.crashed || !x.Lost, e.Lost || x.Lost
		}
		if j.Led != nil { // its last words
			e.noteSteps(j.Led.Steps)
			e.Steps = max(e.Steps, j.Led.Steps)
		}
		m.partGone(e, r.Host)
		e.failed = ""
		if j.End != nil && !j.End.Final && j.End.Error != "" {
			m.notef("job %s has no processes on host %s any more: %s", e.ID, r.Host, j.End.Error)
			line, _, _ := strings.Cut(j.End.Error, "\n")
			e.failed = fmt.Sprintf("on host %s: %s", r.Host, shorten.Text(line, maxFailed))
		}
		switch {
		case j.End != nil && j.End.Final && e.started():
			m.takeEnd(e, r.Host, j.End)
		default:
			m.checkGone(e)
		}
		return
	}
	if !e.started() {
		m.kill(e, r.Host, j)
		return
	}
	m.takeStuck(e, r, j.Stuck)
	if j.Led != nil {
		m.takeLed(e, r, j.Led)
	}
	if s := e.sent[sentKey{r.Host, toLead}]; j.Refused != "" && s.seq > e.refused &&
		r.Acked >= s.seq {
		e.refused = s.seq
		m.takeRefusal(e, j)
	}
}

// maxFailed bounds what is kept of why a part has failed, in bytes: each change may have it.
const maxFailed = 500

// takeStuck takes whether the part of a job on a host waits to be told that others are gone.
func (m *Machine) takeStuck(e *entry, r Report, stuck bool) {
	key := sentKey{r.Host, toRecover}
	s, told := e.sent[key]
	switch {
	case !stuck:
		delete(e.stuck, r.Host)
		delete(e.sent, key) // another loss is another matter
		if told {
			e.alone = m.now // it is soon to say that it leads
		}
	case told && r.Acked >= s.seq && !s.done:
		s.done, e.alone = true, m.now // it has taken the order, and has time now to lead
		e.sent[key] = s
		fallthrough
	default:
		e.stuck[r.Host] = true
	}
}

// takeAbsence takes that a keeper does not know the part that a job is to have on its host.
func (m *Machine) takeAbsence(e *entry, r Report) {
	if e.Parts[r.Host] == 0 {
		if e.Target[r.Host] == 0 || !e.started() {
			m.partGone(e, r.Host)
			m.checkGone(e)
		}
		return
	}
	s, told := e.sent[sentKey{r.Host, toBegin}]
	switch {
	case told && r.Acked < s.seq:
		return // the order is under way
	case !told && !e.begun[r.Host] && e.Target[r.Host] > 0 && e.started():
		return // the order is still to come
	}
	e.Lost = true // the order with its link, or the part with its host
	m.partGone(e, r.Host)
	m.checkGone(e)
}

// takeRest takes what a keeper says of parts that no job has now. Those that live are killed, and
// until they are gone nothing starts on the host; those that have ended are dropped.
func (m *Machine) takeRest(h *Host, r Report, j JobReport) {
	e := m.jobs[j.Job]
	switch {
	case e != nil && e.isPart(h.Name, j):
	case j.Live:
		h.foreign = true
		if e != nil {
			m.kill(e, h.Name, j)
		}
	case e == nil || e.written >= e.version: // else once the store knows
		m.seq++
		m.orders = append(m.orders, Order{Seq: m.seq, Host: h.Name, Verb: DropRun, Job: j.Job,
			Attempt: j.Attempt, Part: j.Part})
	}
}

// grace is how long parts of a job that has ended may live on, in milliseconds.
const grace = 10_000

// kill has what is left of a job killed on a host, after a time in which it may end by itself.
func (m *Machine) kill(e *entry, host string, j JobReport) {
	if j.Attempt == e.Attempt && !e.started() && m.now < e.gone+grace {
		return
	}
	m.send(e, toKill, Order{Host: host, Verb: KillRun, Job: e.ID, Attempt: j.Attempt,
		Part: j.Part})
}

// partGone takes that a job has no process on a host any more.
func (m *Machine) partGone(e *entry, host string) {
	e.Hurt = e.Hurt || e.Target[host] > 0
	delete(e.Held, host)
	delete(e.Target, host)
	delete(e.Parts, host)
	delete(e.Names, host)
	delete(e.begun, host)
	delete(e.stuck, host)
	if (e.State == Running || e.State == Resizing) && e.Target.total() < e.Submission.Min {
		e.Target = e.Held.clone() // with so few no part leaves that was to
	}
	e.away[host] = m.now
	for key := range e.sent {
		if key.host == host {
			delete(e.sent, key)
		}
	}
	if e.Lead == host {
		e.Lead, e.token, e.alone = "", "", m.now
	}
	m.touch(e)
	e.intent = e.version
}

// takeLed takes what the host that leads a job says of it.
func (m *Machine) takeLed(e *entry, r Report, l *Led) {
	if e.Lead != r.Host {
		e.Lead, e.token = r.Host, ""
		m.touch(e)
	}
	if e.Names[r.Host] != l.Host {
		e.Names[r.Host] = l.Host
		m.touch(e)
	}
	e.led, e.join, e.Dir = m.now, l.Join, l.Dir
	if l.Token != "" {
		e.token = l.Token
	}
	m.takeProgress(e, l)
	e.traffic.watch(m.now, fmt.Sprint(e.Attempt, e.Held.places()), l)
	m.takeWorkers(e, r, l)
	if e.State == Starting && l.Size > 0 && l.Size >= min(e.Target.total(), l.Want) {
		e.State = Running
		m.touch(e)
		m.startDone(e)
		_ = m.coreUpdate(e)
	}
	// What the lead said before it was asked may be of a time when all were there soon after.
	if s, told := e.sent[sentKey{r.Host, toAsk}]; e.State == Starting && l.Size == 0 && e.Hurt &&
		told && l.Invited >= s.seq {
		m.giveUp(e, "a host of it was lost before all were there")
		return
	}
	if e.Elastic != l.Elastic {
		// what it refused before all its workers had joined says nothing of it as it is now
		e.Elastic, e.Pinned = l.Elastic, e.Pinned && !l.Elastic
		e.Unparkable = e.Unparkable && !l.Elastic
		m.touch(e)
		_ = m.coreUpdate(e)
	}
}

// takeWorkers takes how many workers a job has on its hosts, if there will not be more. A part
// without workers may be cut off from the others, and have some of which the host that leads the
// job does not know any more: it holds its slots until its own keeper says that it is gone.
func (m *Machine) takeWorkers(e *entry, r Report, l *Led) {
	s := e.sent[sentKey{r.Host, toLead}]
	if e.State != Running && e.State != Resizing || s.verb != AllotRun || l.Allotted != s.seq ||
		r.Acked < s.seq || !s.slots.equal(e.Target) {
		return
	}
	for host, held := range e.Held {
		there := l.Workers[e.Names[host]]
		if n := max(e.Target[host], there); there > 0 && n < held {
			e.Held[host] = n
			m.touch(e)
		}
	}
}

// noteSteps notes that this attempt has made a step, if its steps are more than those that are
// known.
func (e *entry) noteSteps(steps uint64) {
	if steps > e.Steps {
		e.Fails, e.stepped = 0, true
	}
}

// takeProgress takes how far a job is and how fast. One that was started again has made no step
// until its program has read its checkpoint, and keeps until then what is known of it.
func (m *Machine) takeProgress(e *entry, l *Led) {
	e.noteSteps(l.Steps)
	pace := l.Pace
	if !l.Elastic {
		pace = e.measure(m.now, l)
	}
	if l.Steps > 0 || e.Steps == 0 {
		e.Steps, e.Goal = l.Steps, l.Goal
	}
	if pace > 0 && l.Size > 0 {
		if e.Speeds[l.Size] == 0 {
			e.speedAt = 0 // what is new is told at once
		}
		e.Speeds[l.Size] = 1 / pace
	}
	if rate := m.core.Rate(jobID(e)); rate > 0 && m.knowsWork(e) {
		m.foresee(e, m.after(m.left(e, rate).Mean/rate*1000))
	}
	m.coreProgress(e)
}

// seen is what was reported first of the steps of a job whose program makes them by itself.
type seen struct {
	steps uint64 // that were made then; 0 = nothing was reported
	at    int64  // when
	size  int    // with so many workers
}

// measure returns the seconds that a step of a job takes whose program makes its steps by itself,
// and reports them now and then; 0 = nothing new is known.
func (e *entry) measure(now int64, l *Led) float64 {
	s := &e.seen
	switch {
	case l.Steps == 0:
	case s.steps == 0 || l.Steps < s.steps || l.Size != s.size:
		*s = seen{l.Steps, now, l.Size}
	case l.Steps > e.Steps && now > s.at:
		return float64(now-s.at) / 1000 / float64(l.Steps-s.steps)
	}
	return 0
}

// takeRefusal takes that a job did not do what it was told. Where it cannot get smaller, somebody
// else must make room. It keeps the workers that it has, whatever a person has asked for.
func (m *Machine) takeRefusal(e *entry, j JobReport) {
	if e.State != Running && e.State != Resizing && e.State != Parking {
		return
	}
	if e.State != Parking && e.ParkBy != "" {
		return // what was ordered before a person parked it
	}
	m.notef("job %s: %s", e.ID, j.Refused)
	// A job that cannot be parked can still get smaller, unless the pool takes all of its slots or
	// none.
	e.Pinned = e.Pinned || e.State != Parking
	e.Unparkable = e.Unparkable || e.State == Parking && e.Submission.Preempt == "park"
	if j.Led != nil {
		has := Slots{}
		for host, name := range e.Names {
			if n := min(j.Led.Workers[name], e.Held[host]); n > 0 {
				has[host] = n
			}
		}
		if has.total() > 0 {
			e.Target, e.Hurt = has, e.Hurt || has.total() < e.Submission.Min
		}
	}
	if n := len(e.Changes); n > 0 { // growth is said to have come when its slots are free
		c := &e.Changes[n-1]
		came := c.Done > 0 && (c.starts() || c.To == e.Target.total())
		if c.Outcome == "" && !came {
			c.Done, c.Outcome = 0, "refused: "+j.Refused
		}
	}
	switch {
	case e.State == Parking:
		e.State, e.ParkBy, e.Because = Running, "", "it was not parked: "+
			strings.TrimPrefix(j.Refused, "it could not be parked: ")
	case !e.Want.equal(e.Target):
		e.Because = "it was not resized: " + j.Refused
		if e.Asks != e.Target.total() {
			e.Asks = 0
		}
	}
	e.Want = e.Target.clone()
	m.touch(e)
	e.intent = e.version
	m.coreKeep(e, j.Refused)
	_ = m.coreUpdate(e)
}

// takeEnd takes the end of a job on the host that led it. Other parts of it may still be there.
func (m *Machine) takeEnd(e *entry, host string, x *End) {
	e.Dir, e.Lead = x.Dir, host
	switch {
	case x.Parked && e.StopBy == "":
		if e.State != Parking && e.ParkBy == "" { // whoever it was has not asked the pool
			m.hold(e, "somebody")
		}
		m.requeue(e, Parked, e.Because)
	case e.StopBy != "" || x.Stopped != "":
		if e.StopBy == "" {
			e.StopBy = x.Stopped
		}
		m.end(e, Stopped, "")
	case x.OK:
		if e.State == Starting { // and had all its workers between two reports
			m.startDone(e)
		}
		m.end(e, Ended, "")
	default:
		m.end(e, Failed, x.Error)
	}
}

// checkGone puts a job among those that wait when all of its processes are gone without an end.
func (m *Machine) checkGone(e *entry) {
	if e.State.Over() {
		m.checkEnding(e)
		return
	}
	if !e.started() {
		return
	}
	for host := range e.Parts {
		if e.begun[host] {
			return
		}
	}
	for host := range maps.Clone(e.Held) { // what was to be begun has nobody to join
		m.partGone(e, host)
	}
	if e.StopBy != "" {
		m.end(e, Stopped, "")
		return
	}
	m.requeue(e, Waiting, cmp.Or(e.failed,
		"all of its processes were killed, or their hosts are lost"))
}
