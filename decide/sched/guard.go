package sched

import (
	"cmp"
	"slices"
)

// This file refuses changes of jobs that run which are not worth what they cost. Starts pass, with
// exactly the slots that they need; so does what a policy says that a job needs, or gives to one
// that stands still, and what follows a lost or leaving host. What a policy wants beyond that must
// gain more than it costs, and must not undo the last change of a job unless something has happened
// since. Only decideByShare calls it, within Machine.Ready, on the goroutine that uses the Machine.
// Lists have an element for each job of the view.

// change is that a job of a view that runs gets another number of slots.
type change struct {
	index    int
	from, to int
	gain     float64 // seconds by which the job ends sooner; negative = later
	cost     float64 // seconds for which it does not go on
}

// guard returns what jobs are to have of what a policy wants for them, and at least what they need.
func (m *Machine) guard(v *View, d *Decision) []int {
	want, need := d.Want, d.Need
	m.guarded = append(m.guarded[:0], want...)
	out := m.guarded
	free := m.place.free
	var shrinks, grows []change
	for i, j := range v.Jobs {
		n := m.seen[i].slots
		switch {
		case n == 0:
			free -= want[i]
		case j.standsStill(n) && want[i] > 0:
			free -= want[i] - n
		case n != want[i]:
			c := change{i, n, want[i], 0, m.cfg.Costs.Resize.Mean / 1000}
			if need != nil && need[i] > n {
				free -= need[i] - n
				if c.from, c.cost = need[i], 0; c.from == c.to {
					continue // it changes anyway, and to no more than that
				}
			}
			switch {
			case want[i] > 0:
				c.gain = j.Seconds(c.from) - j.Seconds(want[i])
			case j.standsStill(n): // it loses nothing
				c.cost = 0
			default:
				costs := m.cfg.Costs
				c.gain = -j.Seconds(n)
				c.cost = (costs.Park.Mean + costs.Resume.Mean) / 1000
			}
			if want[i] < n {
				shrinks = append(shrinks, c)
			} else {
				grows = append(grows, c)
			}
		}
	}
	if len(shrinks)+len(grows) == 0 || m.lost || m.mustMove() {
		return out
	}
	rest := m.takeNeeded(v, out, shrinks, d.Whole, &free)
	if m.worthwhile(append(rest, grows...)) {
		for _, c := range rest {
			out[c.index] = c.to
		}
		return out
	}
	slices.SortStableFunc(grows, func(a, b change) int { return cmp.Compare(b.gain, a.gain) })
	for _, c := range grows {
		if c.to-c.from <= free && m.worthwhile([]change{c}) {
			free -= c.to - c.from
		} else {
			out[c.index] = c.from
		}
	}
	return out
}

// mustMove reports whether a job that can move is on a host that is leaving.
func (m *Machine) mustMove() bool {
	return m.place.leaving > 0 && slices.ContainsFunc(m.running, func(e *entry) bool {
		return !e.job.Park.stays() && len(m.place.stayingPlaces(e.job.Has)) < len(e.job.Has)
	})
}

// takeNeeded has jobs give as many slots as starts need, those first that lose the least with each,
// and sets what all keep; whole = each gives all that it is to give, or nothing. free is how
// many slots are left after all starts, at first below 0 where some must be taken. It returns what
// would be given beyond that.
func (m *Machine) takeNeeded(v *View, out []int, shrinks []change, whole bool,
	free *int) (rest []change) {
	slices.SortStableFunc(shrinks, func(a, b change) int {
		return cmp.Or(cmp.Compare(v.Jobs[a.index].Priority, v.Jobs[b.index].Priority),
			cmp.Compare(-a.gain/float64(a.from-a.to), -b.gain/float64(b.from-b.to)))
	})
	for _, c := range shrinks {
		j, keep := v.Jobs[c.index], c.from
		if *free < 0 {
			keep = c.to
			for n := c.from - 1; n > c.to && !whole; n-- {
				if j.Allows(n) && c.from-n >= -*free {
					keep = n
					break
				}
			}
			*free += c.from - keep
		}
		out[c.index] = keep
		if keep > c.to {
			left := c
			left.from = keep
			if c.to > 0 {
				left.gain = j.Seconds(keep) - j.Seconds(c.to)
			}
			if keep < c.from {
				left.cost = 0 // it changes anyway
			}
			rest = append(rest, left)
		}
	}
	return rest
}

// worthwhile reports whether some changes together gain enough more than they cost, and none of
// them undoes the last change of its job without an event since.
func (m *Machine) worthwhile(changes []change) bool {
	gain, cost := 0.0, 0.0
	for _, c := range changes {
		e := m.seen[c.index]
		if e.changedIn == m.events && e.direction != 0 && (c.to > c.from) != (e.direction > 0) {
			return false
		}
		gain += c.gain
		cost += c.cost
	}
	return gain > float64(m.cfg.Gain*cost)
}
