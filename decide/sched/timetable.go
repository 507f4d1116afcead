package sched

// planPeriod is the length of the periods in which a timetable plans.
const planPeriod = 600 * Second

// mostPeriods is how many periods a timetable looks ahead: more than a year.
const mostPeriods = 60_000

// timetable is what plans leave of all slots, by period: the number of planPeriod since time 0. It
// belongs to one decision of policy deadline.
type timetable struct {
	view  *View
	first int   // the period in which it is now
	free  []int // slots that are free from the first period on; later ones have all slots
	slots int   // what there is in every period
}

// newTimetable returns a timetable without plans, in which so many slots can be planned.
func newTimetable(v *View, slots int) *timetable {
	return &timetable{view: v, first: int(v.Now / planPeriod), slots: slots}
}

// left returns how many slots are free in a period.
func (t *timetable) left(period int) int {
	if i := period - t.first; i < len(t.free) {
		return t.free[i]
	}
	return t.slots
}

// add takes the slots of a plan. It returns whether so many were free.
func (t *timetable) add(p plan) (fits bool) {
	for len(t.free) < p.end()-t.first {
		t.free = append(t.free, t.slots)
	}
	fits = true
	period := t.first
	for _, s := range p {
		for ; period < s.until; period++ {
			t.free[period-t.first] -= s.slots
			fits = fits && t.free[period-t.first] >= 0
		}
	}
	return fits
}

// addSlots has so many more slots in every period, or fewer where that is below 0.
func (t *timetable) addSlots(n int) {
	t.slots += n
	for i := range t.free {
		t.free[i] += n
	}
}

// keep takes n slots of a job that it does not give back, beyond its plan and beyond `had`, which
// are taken already: until its plan ends, and in all periods where it has none. It returns false,
// and takes nothing, where they are not free.
func (t *timetable) keep(n, had int, p plan) bool {
	periods := len(t.free)
	if p != nil {
		periods = min(periods, p.end()-t.first)
	} else if n-had > t.slots {
		return false
	}
	for _, take := range []bool{false, true} {
		for i := range periods {
			more := max(n-max(had, p.at(t.first+i)), 0)
			if more > t.free[i] {
				return false
			} else if take {
				t.free[i] -= more
			}
		}
	}
	if p == nil {
		t.slots -= n - had
	}
	return true
}

// planPeriods plans a job j from now on, period by period, with as many slots as size says. It
// returns the plan, and when, in milliseconds, j has done its work and `more` units of work beyond;
// Never if that is not until a time. The plan has reserve more milliseconds than the work takes.
// Each change of its slots takes what it costs. It stops where slots would be taken from a job that
// keeps what it has.
func (t *timetable) planPeriods(j *Job, more float64, until, reserve int64,
	size func(period int) int) (plan, int64) {
	costs := t.view.Costs
	n, kept, begun := j.Slots(), j.untakableSlots(), j.Started != Never
	left, stall := j.Left.Mean+more, int64(0)
	if n > 0 { // its last change may not be over
		pause := costs.change()
		if j.MovedAt == j.Started {
			pause = costs.Start.Mean + costs.Park.Mean
		}
		stall = max(AddMillis(j.MovedAt, pause/1000)-t.view.Now, 0)
	}
	var p plan
	at := t.view.Now
	for period := t.first; at < until && period-t.first < mostPeriods; period++ {
		m, next := size(period), int64(period+1)*planPeriod
		if m < kept {
			return nil, Never
		}
		if m != n {
			change := costs.Resize.Mean
			if n == 0 && begun {
				change = costs.Resume.Mean
			} else if n == 0 {
				change = costs.Start.Mean
			}
			stall = int64(change + costs.Park.Mean) // what was left of the last change is no more
			begun = begun || m > 0
		}
		if k := len(p) - 1; k >= 0 && p[k].slots == m {
			p[k].until = period + 1
		} else {
			p = append(p, stint{m, period + 1})
		}
		if n = m; m > 0 {
			switch j.Park {
			case ParkNever, ParkFixed:
				kept = m
			case ParkShrink:
				kept = j.Smallest()
			}
			still := min(stall, next-at)
			stall -= still
			rate := j.Rate(m)
			can := float64(rate * float64(next-at-still) / 1000)
			if end := AddMillis(at+still, left/rate); end <= min(next, until)-reserve {
				return p, end
			}
			left = max(left-can, 0)
		}
		at = next
	}
	return nil, Never
}

// sizes returns the sizes that a timetable gives a job, the smallest first.
func sizes(j *Job) (list []int) {
	for n := j.Smallest(); n > 0; n = j.nextSize(n) {
		list = append(list, n)
	}
	return list
}

// fit returns the plan by which a job has in each period the largest of the sizes of a list, in
// order, that is free, and when it ends; Never if that is not until a time.
func (t *timetable) fit(j *Job, list []int, until int64) (plan, int64) {
	return t.planPeriods(j, 0, until, deadlineMargin, func(period int) int {
		free := t.left(period)
		for i := len(list) - 1; i >= 0; i-- {
			if list[i] <= free {
				return list[i]
			}
		}
		return 0
	})
}

// least returns the plan with the smallest size by which a job ends until a time; nil if there is
// none.
func (t *timetable) least(j *Job, until int64) plan {
	list := sizes(j)
	for i := range list {
		if p, end := t.fit(j, list[:i+1], until); end != Never {
			return p
		}
	}
	return nil
}

// earliest returns the first time until which a job can end.
func (t *timetable) earliest(j *Job) int64 {
	best, list := Never, sizes(j)
	for i := range list {
		_, end := t.fit(j, list[:i+1], Never)
		best = min(best, end)
	}
	return best
}
