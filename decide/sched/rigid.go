package sched

import (
	"fmt"
	"math"
	"slices"
)

// This file decides by an Order, where a job gets the slots that it asks for or none. The methods
// run within Machine.Ready, on the goroutine that uses the Machine; what jobs get changes by growTo
// and park.

// keyOf returns the key of a job, less what ageing takes off: a job comes as much sooner as it has
// waited. So that keys of jobs that wait stay the same, what the time takes off all of them is left
// out of all.
func (m *Machine) keyOf(e *entry) float64 {
	key, _ := m.policy.Order.Key(&e.job, m.now)
	if math.IsNaN(key) {
		panic(fmt.Sprintf("the key of %s is not a number", e.job.ID))
	}
	if m.cfg.Age > 0 && !m.policy.Dated {
		key += float64(m.cfg.Age * float64(m.now-e.waited(m.now)) / 1000)
	}
	return key
}

// decideByOrder starts who comes first, and takes slots from those who come later if the policy
// preempts.
func (m *Machine) decideByOrder() {
	m.looked += uint64(len(m.unkeyed))
	for _, e := range m.unkeyed {
		if !e.ended && e.slots == 0 {
			e.key = m.keyOf(e)
			m.waiting.add(e)
		}
	}
	m.unkeyed = m.unkeyed[:0]
	free := m.place.free
	if !m.policy.Preempts || m.waiting.slotsAskedFor(free) <= free {
		m.startWhatFits(free)
	} else {
		m.preempt()
	}
	m.refillShrunk()
	m.keyTimer()
}

// startWhatFits starts jobs that wait, who comes first, in some free slots. A job for which all
// hosts together have too few slots holds up nobody, since it may wait for ever.
func (m *Machine) startWhatFits(free int) {
	for m.waiting.n > 0 {
		limit := free
		if m.policy.Blocks {
			limit = m.place.slots
		}
		e := m.waiting.first(limit)
		if e == nil || e.job.Asked > free || m.passesOverdue(e, free) {
			return
		}
		free -= e.job.Asked
		m.growTo(e, e.job.Asked, "first by "+m.policy.Name)
	}
}

// preempt gives all slots anew to who comes first, whether it waits or runs. A job that runs keeps
// its slots if it is among those, and is parked if not.
func (m *Machine) preempt() {
	free := m.place.free - m.place.excess()
	list := m.sortRunning()
	for _, e := range list {
		free += countSlots(m.place.stayingPlaces(e.job.Has))
	}
	var starting, parked []*entry
	take := func() bool {
		e := m.waiting.first(free)
		if e == nil || len(list) > 0 && list[0].before(e) {
			return false
		}
		m.waiting.remove(e)
		starting = append(starting, e)
		free -= e.job.Asked
		return true
	}
	for {
		if take() {
			continue
		}
		if len(list) == 0 {
			break
		}
		e := list[0]
		if n := countSlots(m.place.stayingPlaces(e.job.Has)); n <= free {
			free -= n
		} else {
			parked = append(parked, e)
		}
		list = list[1:]
	}
	for _, e := range parked {
		m.park(e, "its slots go to jobs that come first by "+m.policy.Name)
	}
	for _, e := range starting {
		m.growTo(e, e.job.Asked, "first by "+m.policy.Name)
	}
}

// sortRunning returns the jobs that run and can be parked, who comes first in front. The list is
// kept from one time to the next, in which little has changed, so that insertion sorts it fast.
func (m *Machine) sortRunning() []*entry {
	list := m.sorted[:0]
	for _, e := range m.sorted {
		if e.slots > 0 && !e.ended && e.placed && e.job.Park.parks() {
			list = append(list, e)
		} else {
			e.placed = false
		}
	}
	for _, e := range m.running {
		if !e.placed && e.job.Park.parks() {
			e.placed = true
			list = append(list, e)
		}
	}
	clear(m.sorted[min(len(list), len(m.sorted)):])
	m.sorted = list
	for _, e := range list {
		e.refresh(m.now)
		e.key = m.keyOf(e)
	}
	for i := 1; i < len(list); i++ {
		e, k := list[i], i
		for ; k > 0 && e.before(list[k-1]); k-- {
			list[k] = list[k-1]
		}
		list[k] = e
	}
	return list
}

// refillShrunk gives slots that are still free to jobs that have lost some with a host.
func (m *Machine) refillShrunk() {
	if !m.short {
		return
	}
	m.short = false
	for _, e := range slices.Clone(m.running) {
		if e.slots >= e.job.Asked {
			continue
		}
		if e.job.Asked-e.slots <= m.place.free {
			m.growTo(e, e.job.Asked, "the slots that it lost with a host are there again")
		} else {
			m.short = true
		}
	}
}

// keyTimer has the machine decide again, by m.again, when the key of a job that runs jumps.
func (m *Machine) keyTimer() {
	if _, fixed := m.policy.Order.(OrderFunc); fixed || !m.policy.Preempts {
		return
	}
	for _, e := range m.running {
		e.refresh(m.now)
		_, until := m.policy.Order.Key(&e.job, m.now)
		m.again = min(m.again, until)
	}
}
