package sched

import "slices"

// This file changes what jobs have. Every change of slots goes through assign. The methods run
// within those of the Machine that take events and within Ready, on the goroutine that uses it. An
// entry is a job that waits or runs; because is the reason that people read in a Grant.

// growTo has a job have n slots, more than it has, which are free: on places that the machine
// chooses.
func (m *Machine) growTo(e *entry, n int, because string) {
	verb := Resize
	if e.slots == 0 {
		verb = Start
		if e.job.Started != Never {
			verb = Resume
		}
		m.dequeue(e)
		if m.policy.Packs {
			m.makeRoom(e, n)
		}
	}
	places, ok := m.place.choose(&e.job, e.job.Has, n-e.slots)
	if !ok {
		panic("sched: slots are given that are not free")
	}
	m.assign(e, verb, places, because)
}

// assign has a job that waits nowhere any more run on some places, and grants that.
func (m *Machine) assign(e *entry, verb Verb, places []Place, because string) {
	from, before := e.job.Has, e.slots
	m.place.changeTaken(from, -1)
	e.countSlotSeconds(m.now)
	e.job.Has = places
	pause := m.cfg.Costs
	cost := pause.Resize.Mean
	switch {
	case verb == Start:
		cost, e.job.Started = pause.Start.Mean, m.now
	case verb == Resume:
		cost = pause.Resume.Mean
	default:
		e.job.Moves++
	}
	m.place.changeTaken(places, 1)
	if before == 0 {
		m.addRunning(e)
	}
	e.job.MovedAt, e.changedIn, e.direction = m.now, m.events, 0
	e.slots = countSlots(places)
	if before > 0 && e.slots != before {
		e.direction = 1
		if e.slots < before {
			e.direction = -1
		}
	}
	e.runsFrom = AddMillis(m.now, cost/1000)
	m.setRate(e)
	m.grants = append(m.grants, Grant{Job: e.job.ID, Verb: verb, From: from, Places: places,
		Workers: e.job.placesOfWorkers(places), Because: because, Expect: m.expect(e)})
}

// park takes all slots of a job, which waits from then on.
func (m *Machine) park(e *entry, because string) {
	from := e.job.Has
	m.releaseSlots(e)
	e.job.Moves++
	e.job.MovedAt, e.changedIn, e.direction = m.now, m.events, -1
	m.grants = append(m.grants, Grant{Job: e.job.ID, Verb: Park, From: from, Because: because,
		Expect: Expect{End: Never, Lo: Never, Hi: Never}})
	m.beginWaiting(e)
}

// run has a job run on the places that it has, without a grant; from is when the change is over
// that is under way.
func (m *Machine) run(e *entry, from int64) {
	e.slots, e.runsFrom = e.job.Slots(), from
	m.short = m.short || e.slots < e.job.Asked
	if e.job.Started == Never {
		e.job.Started = m.now
	}
	m.place.changeTaken(e.job.Has, 1)
	e.countedAt = m.now
	m.addRunning(e)
	m.setRate(e)
}

// addRunning puts a job among those that run.
func (m *Machine) addRunning(e *entry) {
	e.waitedBefore += m.now - e.waitsSince
	e.turn = 1
	if n := len(m.running); n > 0 {
		e.turn += m.running[n-1].turn
	}
	m.running = append(m.running, e)
}

// releaseSlots takes its slots from a job that has some.
func (m *Machine) releaseSlots(e *entry) {
	if e.slots == 0 {
		return
	}
	e.countSlotSeconds(m.now)
	m.place.changeTaken(e.job.Has, -1)
	e.job.Has, e.slots, e.rate, e.waitsSince = nil, 0, 0, m.now
	i := slices.Index(m.running, e)
	m.running = slices.Delete(m.running, i, i+1)
}

// setRate computes how fast a job runs where it is.
func (m *Machine) setRate(e *entry) {
	e.rate = e.job.Speed.Rate(e.slots) / m.place.stretch(&e.job, e.job.Has)
}

// beginWaiting puts a job among those that wait, from now on.
func (m *Machine) beginWaiting(e *entry) {
	e.waitsSince = m.now
	if m.policy.Order != nil && !e.job.held() {
		m.unkeyed = append(m.unkeyed, e)
	}
}

// dequeue takes a job from among those that wait.
func (m *Machine) dequeue(e *entry) {
	if e.heap >= 0 {
		m.waiting.remove(e)
		return
	}
	m.unkeyed = slices.DeleteFunc(m.unkeyed, func(x *entry) bool { return x == e })
}

// rekey has the key of a job that waits computed anew.
func (m *Machine) rekey(e *entry) {
	m.dequeue(e)
	m.enqueue(e)
}

// enqueue has a job among those that wait, of which another key is to be computed, and a decision
// made.
func (m *Machine) enqueue(e *entry) {
	if m.policy.Order != nil && !e.job.held() {
		m.unkeyed = append(m.unkeyed, e)
	}
	m.dirty = true
}

// forget drops a job that has ended.
func (m *Machine) forget(e *entry) {
	m.dequeue(e)
	e.ended = true
	m.gone++
	delete(m.jobs, e.job.ID)
	m.markChanged()
}

// relocate moves what can move and is on hosts that are leaving to others, as far as these have
// room.
func (m *Machine) relocate() {
	if m.place.leaving == 0 {
		return
	}
	for _, e := range slices.Clone(m.running) {
		if e.job.Park.stays() {
			continue
		}
		stay := m.place.stayingPlaces(e.job.Has)
		more := e.slots - countSlots(stay)
		if places, ok := m.place.grow(stay, more); ok && more > 0 {
			m.assign(e, Move, places, "its host is leaving")
		}
	}
}
