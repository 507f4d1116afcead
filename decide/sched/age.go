package sched

// Ageing: a job comes the sooner, the longer it has waited, so that those that come after it do not
// pass it for ever. The functions change nothing of a Machine, a View or a Job.

// DefaultAge is the Age of a live pool. It is the greatest by which no job loses its slots to one
// that has only waited: a key in slot-seconds falls by at least 1 a second while its job runs.
const DefaultAge = 1.0

// aged returns a key in slot-seconds less what waiting has taken off it.
func (v *View) aged(j *Job, key float64) float64 {
	return key - float64(v.Age*float64(j.Waited)/1000)
}

// overdue reports whether a job has waited, in milliseconds, for so long that ageing has taken all
// its work off its key, of which age is taken a second. Where it comes first, slots are kept free
// until it fits.
func (j *Job) overdue(age float64, waited int64) bool {
	return age > 0 && float64(age*float64(waited)/1000) >= workLeft(j)
}

// passesOverdue reports whether a job that fits into free slots would pass one that comes before
// it, does not fit and is overdue.
func (m *Machine) passesOverdue(e *entry, free int) bool {
	if m.cfg.Age <= 0 {
		return false
	}
	first := m.waiting.first(m.place.slots)
	return first != nil && first != e && first.job.Asked > free &&
		first.job.overdue(m.cfg.Age, first.waited(m.now))
}
