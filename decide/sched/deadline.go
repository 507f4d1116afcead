package sched

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
)

// deadline takes jobs only while all of them can end in time (Gu et al., "ElasticFlow: An Elastic
// Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023, section 4: minimum
// satisfactory shares, admission control, and elastic scaling of what is left). Each job has the
// smallest share by which it ends in time, period by period over what those before it leave. What
// is free beyond that goes where it is used best. Unlike there, what was promised is remembered and
// kept unless all can be planned better, jobs without a deadline run on what is left, and jobs are
// planned by least laxity, not by deadline (Dertouzos and Mok, "Multiprocessor online scheduling of
// hard-real-time tasks", IEEE Transactions on Software Engineering 15, 1989): one that must start
// soon to end in time, with whatever size, goes before one with an earlier deadline that can wait.
var deadline = Policy{Name: "deadline",
	About: "takes only jobs that can end in time, and lets all of them do so",
	Share: deadlineShare{}}

// deadlineShare is the share of deadline. It remembers the plans of jobs that it has taken.
type deadlineShare struct{}

// deadlineMargin is how much before its deadline, and the end of its plan, a job is planned to end.
const deadlineMargin = Second

// mostUpset is by how many times what a job needs all plans together may grow for it, times the
// pause of a change: by any number where jobs are changed while they run, and by four times where a
// change is a restart of a quarter of an hour, each of which takes slots from jobs to come.
const mostUpset = float64(Hour)

// appointments are the plans of the jobs of a view, by index there, and what they leave. They
// belong to one decision of policy deadline.
type appointments struct {
	view     *View
	list     []candidate // jobs by their latest start
	admitted []bool      // whether a job was told that it will end in time
	plans    []plan
	table    *timetable
}

// Decide implements Share.
func (deadlineShare) Decide(v *View, mem []byte) (d Decision, memory []byte) {
	a := &appointments{view: v, list: sortedBy(v, latestStart)}
	a.admitted, a.plans = readPlans(v, mem)
	for i, j := range v.Jobs {
		a.admitted[i] = j.Deadline > 0 && (a.admitted[i] || j.Started != Never)
	}
	if !a.check() {
		a.planAll()
	}
	a.planLate()
	for _, c := range sortedBy(v, func(j *Job) float64 { return leastNeed(j, v.Now) }) {
		if i := c.index; c.job.Deadline > 0 && !a.admitted[i] {
			d.Reject = a.admit(d.Reject, i)
		}
	}
	a.allot(&d)
	return d, writePlans(v, a.admitted, a.plans)
}

// latestStart returns until when, in milliseconds, a job can wait and still end in time, with the
// size at which it is fastest. Jobs without a deadline come last.
func latestStart(j *Job) float64 {
	if j.Deadline == 0 {
		return float64(Never)
	}
	best := 0.0
	for n := j.Smallest(); n > 0; n = j.nextSize(n) {
		best = max(best, j.Rate(n))
	}
	return float64(j.Deadline) - float64(1000*j.Left.Mean/best)
}

// leastNeed returns the slot-seconds of the smallest size with which a job ends in time if it
// starts now, and infinity where it cannot. Of jobs that come together, those are taken first that
// need the fewest: so more of them are.
func leastNeed(j *Job, now int64) float64 {
	for n := j.Smallest(); n > 0; n = j.nextSize(n) {
		if s := j.Seconds(n); float64(now)+float64(1000*s) <= float64(j.Deadline) {
			return s * float64(n)
		}
	}
	return math.Inf(1)
}

// slotsToPlan returns how many slots plans can have: all but those that cannot be taken from jobs
// without a plan.
func (a *appointments) slotsToPlan() int {
	slots := a.view.Slots
	for i, j := range a.view.Jobs {
		if a.plans[i] == nil {
			slots -= j.untakableSlots()
		}
	}
	return slots
}

// check makes the timetable of all plans. It returns whether they fit, and all jobs that have one
// end in time by it. A job without a plan was not admitted, or was late when plans were made.
func (a *appointments) check() (fine bool) {
	a.table, fine = newTimetable(a.view, a.slotsToPlan()), true
	for i, j := range a.view.Jobs {
		if a.plans[i] != nil {
			_, end := a.table.planPeriods(j, 0, j.Deadline, 0, a.plans[i].at)
			fine = a.table.add(a.plans[i]) && end != Never && fine
		}
	}
	return fine
}

// planAll plans all jobs anew that were admitted, by their latest start. Those that do not fit are
// late and have no plan any more; what they keep all the same is left out for the others.
func (a *appointments) planAll() {
	late := make([]bool, len(a.plans))
	for again := true; again; {
		again = false
		for i := range a.plans {
			a.plans[i] = nil
			if a.admitted[i] && !late[i] {
				a.plans[i] = plan{} // its slots can be planned
			}
		}
		a.table = newTimetable(a.view, a.slotsToPlan())
		for _, c := range a.list {
			if i := c.index; a.plans[i] != nil {
				if a.plans[i] = a.table.least(c.job, c.job.Deadline); a.plans[i] != nil {
					a.table.add(a.plans[i])
				} else if c.job.untakableSlots() > 0 {
					late[i], again = true, true
				}
			}
		}
	}
}

// planLate plans jobs that were admitted and have no plan, as far as they can end in time by what
// others leave: hosts have come back, or another policy decided before.
func (a *appointments) planLate() {
	for _, c := range a.list {
		if i := c.index; a.admitted[i] && a.plans[i] == nil {
			keeps := c.job.untakableSlots()
			a.table.addSlots(keeps)
			if a.plans[i] = a.table.least(c.job, c.job.Deadline); a.plans[i] != nil {
				a.table.add(a.plans[i])
			} else {
				a.table.addSlots(-keeps)
			}
		}
	}
}

// replan plans all jobs that have a plan anew, with one that is to be added, by their latest start.
// It changes nothing unless it and all others fit, and it is worth what that costs. It returns
// whether they are planned anew.
func (a *appointments) replan(added int) bool {
	table, plans := newTimetable(a.view, a.slotsToPlan()), make([]plan, len(a.plans))
	for _, c := range a.list {
		if i := c.index; i == added || a.plans[i] != nil {
			if plans[i] = table.least(c.job, c.job.Deadline); plans[i] == nil {
				return false
			}
			table.add(plans[i])
		}
	}
	j := a.view.Jobs[added]
	pause := a.view.Costs.change()
	more := slotSeconds(table.first, plans) - slotSeconds(table.first, a.plans)
	if float64(float64(more)*pause) > float64(mostUpset*leastNeed(j, a.view.Now)) {
		return false
	}
	a.table, a.plans = table, plans
	return true
}

// admit takes a job if it can end in time without that another does not, or that all plans have to
// grow too much for it (mostUpset). If not, it returns refused with the refusal added.
func (a *appointments) admit(refused []Rejection, i int) []Rejection {
	j := a.view.Jobs[i]
	if p := a.table.least(j, j.Deadline); p != nil {
		a.table.add(p)
		a.plans[i], a.admitted[i] = p, true
		return refused
	}
	if a.admitted[i] = a.replan(i); a.admitted[i] {
		return refused
	}
	text := "its deadline cannot be met, nor another: it needs more slots than there are"
	if end := a.table.earliest(j); end != Never {
		text = fmt.Sprintf("its deadline cannot be met: the earliest that can is %s after it was "+
			"submitted", plural.Seconds(float64((end+deadlineMargin-j.Arrived)/Second+1)))
	}
	return append(refused, Rejection{i, text})
}

// allot gives jobs what is planned for now, which they must have, and then what is left: smallest
// sizes to those who have none, by their latest start, and more slots to those who use them best. A
// job gets none that it would keep when others are planned to have them.
func (a *appointments) allot(d *Decision) {
	v, free := a.view, a.view.Slots
	need := make([]int, len(v.Jobs))
	for i, j := range v.Jobs {
		need[i] = max(a.plans[i].at(a.table.first), j.untakableSlots())
		free -= need[i]
		for _, s := range a.plans[i] {
			if at := int64(s.until) * planPeriod; d.Again == 0 || at < d.Again {
				d.Again = at
			}
		}
	}
	free = takeBackFromLast(a.list, need, free) // late jobs keep what plans do not know
	want := slices.Clone(need)
	var others []candidate
	for _, c := range a.list {
		refused := slices.ContainsFunc(d.Reject, func(r Rejection) bool { return r.Job == c.index })
		if !refused && a.table.hasSlack(c.job, a.plans[c.index]) && (want[c.index] > 0 ||
			c.job.Park.parks() ||
			a.table.keep(c.job.Smallest(), 0, a.plans[c.index])) {
			others = append(others, c)
		}
	}
	planOf := map[*Job]plan{}
	for i, j := range v.Jobs {
		planOf[j] = a.plans[i]
	}
	free = startSmallest(v, others, want, free)
	growBest(others, want, free, func(j *Job, n, next int) float64 {
		saved := partSaved(j, n, next)
		if saved > 0 && !j.Park.parks() && j.Park != ParkShrink &&
			!a.table.keep(next, n, planOf[j]) {
			return 0
		}
		return saved
	})
	d.Want, d.Need, d.Whole = want, need, true
	d.Because = func(i int) string {
		if want[i] == need[i] && a.plans[i] != nil {
			return fmt.Sprintf("%s now and it ends in time", plural.Of(want[i], "slot"))
		}
		return elasticReason(v, want, i)
	}
}
