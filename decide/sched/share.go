package sched

import (
	"fmt"
	"slices"
)

// This file decides by a Share, which says of all jobs at once how many slots they are to have.
// Machine.Ready calls it through decide, on the goroutine that uses the Machine.

// decideByShare asks the Share, has the guard look at what it wants, and does what is left of that.
func (m *Machine) decideByShare() {
	v, entries := m.makeView()
	d, memory := m.policy.Share.Decide(v, m.memory)
	if fault := checkDecision(v, d); fault != "" {
		panic(fault)
	}
	m.memory = memory
	if d.Again > 0 {
		m.again = max(d.Again, m.now+1)
	}
	because := func(i int) string {
		if d.Because == nil {
			return "by " + m.policy.Name
		}
		return d.Because(i)
	}
	want := m.guard(v, &d)
	reasons := map[int]string{}
	for i, e := range entries {
		if want[i] != e.slots {
			reasons[i] = because(i)
		}
	}
	for i, e := range entries {
		switch {
		case want[i] == 0 && e.slots > 0:
			m.park(e, reasons[i])
		case want[i] < e.slots:
			m.assign(e, Resize, m.place.shrink(e.job.Has, e.slots-want[i]), reasons[i])
		}
	}
	m.relocate()
	for i, e := range entries {
		if want[i] > e.slots && want[i]-e.slots <= m.place.free {
			m.growTo(e, want[i], reasons[i])
		}
	}
	for _, r := range d.Reject {
		e := entries[r.Job]
		m.grants = append(m.grants, Grant{Job: e.job.ID, Verb: Refuse, Because: r.Because,
			Expect: Expect{End: Never, Lo: Never, Hi: Never}})
		m.forget(e)
	}
	m.dirty, m.lost = false, false
}

// isApart reports whether a Share need not know of a job: one that gets no slots, or that stays on
// hosts that are leaving until it ends. What that has is no part of what there is to share.
func (m *Machine) isApart(e *entry) bool {
	if e.slots == 0 {
		return e.job.held()
	}
	return m.place.leaving > 0 && e.job.Park.stays() && len(m.place.stayingPlaces(e.job.Has)) == 0
}

// makeView returns what a Share may know, and the entries of its jobs.
func (m *Machine) makeView() (*View, []*entry) {
	v := &m.view
	v.Now, v.Slots, v.Costs, v.Age = m.now, m.place.slots, m.cfg.Costs, m.cfg.Age
	v.Jobs, v.Hosts, m.seen = v.Jobs[:0], v.Hosts[:0], m.seen[:0]
	for _, e := range m.list {
		if !e.ended && !m.isApart(e) {
			e.refresh(m.now)
			e.job.Waited = e.waited(m.now)
			v.Jobs = append(v.Jobs, &e.job)
			m.seen = append(m.seen, e)
		}
	}
	m.looked += uint64(len(v.Jobs))
	for _, s := range m.place.hosts {
		v.Hosts = append(v.Hosts, s.Host)
	}
	v.Slots += m.keptBeyond(m.seen)
	return v, m.seen
}

// keptBeyond returns how many slots jobs keep until they end that their hosts have no more, since
// these have got smaller: slots of other hosts are not taken by them.
func (m *Machine) keptBeyond(entries []*entry) (n int) {
	if m.place.excess() == 0 {
		return 0
	}
	kept := map[string]int{}
	for _, e := range entries {
		if slots := e.job.Slots(); slots > 0 && e.job.untakableSlots() == slots {
			for _, p := range e.job.Has {
				kept[p.Host] += p.Slots
			}
		}
	}
	for _, s := range m.place.hosts {
		if !s.Leaving {
			n += max(kept[s.Name]-s.Slots, 0)
		}
	}
	return n
}

// checkDecision returns what is wrong with a decision; "" = nothing.
func checkDecision(v *View, d Decision) string {
	if len(d.Want) != len(v.Jobs) {
		return fmt.Sprintf("it decides of %d jobs, and there are %d", len(d.Want), len(v.Jobs))
	}
	if d.Need != nil && len(d.Need) != len(v.Jobs) {
		return fmt.Sprintf("it says what %d jobs need, and there are %d", len(d.Need), len(v.Jobs))
	}
	sum, kept := 0, 0
	for i, j := range v.Jobs {
		n := d.Want[i]
		if n != 0 && n != j.Slots() && !j.Allows(n) {
			return fmt.Sprintf("it wants %d slots for job %s, which has no such size", n, j.ID)
		}
		if d.Need != nil && d.Need[i] > n {
			return fmt.Sprintf("it wants %d slots for job %s, which needs %d", n, j.ID, d.Need[i])
		}
		if n < j.untakableSlots() {
			return fmt.Sprintf("it wants %d slots for job %s, which must keep %d", n, j.ID,
				j.untakableSlots())
		}
		if n > 0 {
			sum += min(n, v.Slots+1)
		}
		kept += j.untakableSlots()
	}
	if sum > max(v.Slots, kept) {
		return fmt.Sprintf("it gives away more than the %d slots that there are", v.Slots)
	}
	for i, r := range d.Reject {
		if r.Job < 0 || r.Job >= len(v.Jobs) || v.Jobs[r.Job].Slots() > 0 || d.Want[r.Job] > 0 ||
			slices.ContainsFunc(d.Reject[:i], func(x Rejection) bool { return x.Job == r.Job }) {
			return "it refuses a job that it cannot refuse"
		}
	}
	return ""
}

// earlier returns the earlier one of the times a, where 0 stands for none, and b.
func earlier(a, b int64) int64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}
