package pool

import (
	"maps"
	"slices"
)

// What keepers report.

// Reported takes the report of a keeper. What it says of orders that it had not got yet is old: a
// slot is free only when the keeper, having got the last order for it, says that no process is in
// it.
func (m *Machine) Reported(now int64, r Report) {
	m.at(now)
	h := m.hosts[r.Host]
	if h == nil || h.Forgot {
		return
	}
	by := make(map[string]JobReport, len(r.Jobs))
	for _, j := range r.Jobs {
		by[j.Job] = j
	}
	for _, id := range slices.Clone(m.order) {
		e := m.jobs[id]
		j, there := by[id]
		if !there && e.Held[r.Host] == 0 && e.Lead != r.Host {
			continue
		}
		m.takeJobReport(e, r, j, there)
	}
	for _, id := range slices.Sorted(maps.Keys(by)) {
		m.acknowledge(r.Host, by[id])
	}
}

// acknowledge tells a keeper that an end need not be reported any more.
func (m *Machine) acknowledge(host string, j JobReport) {
	e := m.jobs[j.Job]
	if j.End == nil || e != nil && !e.State.Over() && e.Attempt == j.Attempt && e.Held[host] > 0 {
		return
	}
	if e != nil && e.written < e.version {
		return // once the store knows
	}
	m.seq++
	m.orders = append(m.orders, Order{Seq: m.seq, Host: host, Verb: DropRun, Job: j.Job,
		Attempt: j.Attempt})
}

// takeJobReport takes what a keeper says of one job; there is whether it says anything.
func (m *Machine) takeJobReport(e *entry, r Report, j JobReport, there bool) {
	if there && j.Attempt != e.Attempt {
		if j.Live && e.Held[r.Host] == 0 { // of an earlier attempt, which must end
			m.seq++
			m.orders = append(m.orders, Order{Seq: m.seq, Host: r.Host, Verb: KillRun, Job: e.ID,
				Attempt: j.Attempt})
		}
		return
	}
	if s, told := e.sent[r.Host]; told && r.Acked < s.seq && !(there && j.Attempt == e.Attempt) {
		return // it was said before the order was there
	}
	part := r
	part.Jobs = []JobReport{j}
	e.reports[r.Host] = part
	if j.Led != nil {
		m.takeLed(e, r, j.Led)
	}
	if j.Refused != "" && there {
		m.takeRefusal(e, j.Refused)
	}
	if there && j.Live {
		return
	}
	if _, told := e.sent[r.Host]; !there && !told && e.State == Starting {
		return // it was not asked to start it yet
	}
	// no process of it is on this host
	if e.Held[r.Host] > 0 {
		delete(e.Held, r.Host)
		m.touch(e)
	}
	if j.End != nil && j.End.Final {
		m.takeEnd(e, j.End)
		return
	}
	m.checkGone(e)
}

// takeLed takes what the host that leads a job says of it.
func (m *Machine) takeLed(e *entry, r Report, l *Led) {
	before := e.Job
	if e.Lead != r.Host {
		e.Lead = r.Host
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
	stale := r.Acked < e.sent[r.Host].seq
	for host := range maps.Clone(e.Held) {
		name := e.Names[host]
		if name == "" || stale || e.State == Starting {
			continue
		}
		least := e.target[host]
		if n := max(least, l.Workers[name]); n < e.Held[host] {
			e.Held[host] = n
			if n == 0 && host != r.Host && !e.reported(host) {
				e.Held[host] = 1 // its agent is there until its own keeper says otherwise
			}
			if e.Held[host] == 0 {
				delete(e.Held, host)
			}
			m.touch(e)
		}
	}
	if e.State == Starting && l.Size > 0 && l.Size >= min(e.target.total(), l.Want) {
		e.State = Running
		m.touch(e)
		m.changeDone(e)
		_ = m.coreUpdate(e)
	}
	if before.Elastic != l.Elastic {
		e.Elastic = l.Elastic
		m.touch(e)
		_ = m.coreUpdate(e)
	}
}

// takeProgress takes how far a job is and how fast.
func (m *Machine) takeProgress(e *entry, l *Led) {
	if l.Steps > e.Steps {
		e.Fails = 0
	}
	e.Steps, e.Goal = l.Steps, l.Goal
	if l.Pace > 0 && l.Size > 0 {
		e.Speeds[l.Size] = 1 / l.Pace
	}
	m.coreProgress(e)
}

// takeRefusal takes that a job did not do what it was told. Where it cannot get smaller, somebody
// else must make room.
func (m *Machine) takeRefusal(e *entry, why string) {
	if e.asked[why] {
		return
	}
	e.asked[why] = true
	if n := len(e.Changes); n > 0 && e.Changes[n-1].Done == 0 {
		e.Changes[n-1].Outcome = "refused: " + why
	}
	m.notef("job %s: %s", e.ID, why)
	m.touch(e)
	if e.State == Parking {
		e.State = Running
	}
	e.Want = e.Held.clone()
	e.target = e.Want.clone()
	m.coreKeep(e)
}

// takeEnd takes the end of a job.
func (m *Machine) takeEnd(e *entry, x *End) {
	e.Dir = x.Dir
	switch {
	case x.Parked && e.StopBy == "":
		m.requeue(e, Parked, e.Because)
	case e.StopBy != "" || x.Stopped != "":
		if e.StopBy == "" {
			e.StopBy = x.Stopped
		}
		m.end(e, Stopped, "")
	case x.OK:
		m.end(e, Ended, "")
	default:
		m.end(e, Failed, x.Error)
	}
}

// checkGone puts a job among those that wait when all of its processes are gone without an end.
func (m *Machine) checkGone(e *entry) {
	if !e.started() || e.Held.total() > 0 {
		return
	}
	if e.StopBy != "" {
		m.end(e, Stopped, "")
		return
	}
	m.requeue(e, Waiting, "all of its processes were killed, or their hosts are lost")
}
