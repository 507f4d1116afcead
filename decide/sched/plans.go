package sched

import (
	"encoding/binary"
	"slices"
)

// stint is that a job has some slots until a period begins. Periods are numbered as in a timetable,
// in which policy deadline plans.
type stint struct{ slots, until int }

// plan is what a job has, one stint after another; the first one has begun. nil = nothing.
type plan []stint

// at returns the slots that a job has by its plan in a period, counted as those of a timetable; 0
// where nothing is planned.
func (p plan) at(period int) int {
	for _, s := range p {
		if period < s.until {
			return s.slots
		}
	}
	return 0
}

// end returns the first period for which nothing is planned.
func (p plan) end() int {
	if len(p) == 0 {
		return 0
	}
	return p[len(p)-1].until
}

// slotSeconds returns the slots of some plans from a period on, times the seconds for which jobs
// have them.
func slotSeconds(first int, plans []plan) (sum int64) {
	for _, p := range plans {
		from := first
		for _, s := range p {
			sum += int64(s.slots) * int64(s.until-from)
			from = s.until
		}
	}
	return sum * planPeriod / Second
}

// hasSlack reports whether a job ends in time by its plan even if its slots change twice more than
// planned; one without a plan does not care. It changes nothing; policy deadline calls it, on the
// goroutine that decides.
func (t *timetable) hasSlack(j *Job, p plan) bool {
	if p == nil {
		return true
	}
	most := 0
	for _, s := range p {
		most = max(most, s.slots)
	}
	costs := t.view.Costs
	pause := max(costs.change(), costs.Start.Mean+costs.Park.Mean)
	more := float64(2 * pause / 1000 * j.Rate(most))
	_, end := t.planPeriods(j, more, j.Deadline, 0, p.at)
	return end != Never
}

// writePlans returns the plans of the jobs of a view as bytes, which policy deadline remembers;
// admitted says who has a plan.
func writePlans(v *View, admitted []bool, plans []plan) (out []byte) {
	for i, j := range v.Jobs {
		if !admitted[i] {
			continue
		}
		out = binary.AppendUvarint(out, uint64(len(j.ID)))
		out = append(out, j.ID...)
		out = binary.AppendUvarint(out, uint64(len(plans[i])))
		for _, s := range plans[i] {
			out = binary.AppendUvarint(out, uint64(s.slots))
			out = binary.AppendUvarint(out, uint64(s.until))
		}
	}
	return out
}

// readPlans is the opposite of writePlans, without what is over and without jobs that have ended.
// Bytes of something else are read as far as they make sense.
func readPlans(v *View, mem []byte) (admitted []bool, plans []plan) {
	admitted, plans = make([]bool, len(v.Jobs)), make([]plan, len(v.Jobs))
	number := func() int {
		x, n := binary.Uvarint(mem)
		if n <= 0 || x > 1<<30 {
			mem = nil
			return 0
		}
		mem = mem[n:]
		return int(x)
	}
	first, i := int(v.Now/planPeriod), 0
	for len(mem) > 0 {
		length := number()
		if length == 0 || length > len(mem) {
			break
		}
		id := JobID(mem[:length])
		mem = mem[length:]
		var p plan
		for range min(number(), len(mem)) {
			s := stint{number(), number()}
			if s.until > max(first, p.end()) && s.until-first <= mostPeriods {
				p = append(p, s)
			}
		}
		for k := i; k < len(v.Jobs); k++ { // both are in the order of arrival
			if v.Jobs[k].ID == id {
				if !slices.ContainsFunc(p, func(s stint) bool {
					return s.slots > 0 && !v.Jobs[k].Allows(s.slots)
				}) {
					plans[k] = p
				}
				admitted[k], i = true, k+1
				break
			}
		}
	}
	return admitted, plans
}
