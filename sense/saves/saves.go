// Package saves measures what the checkpoints of a job cost its training: a step takes longer in
// which workers copy their state, and so do others while the copies are written. It is pure, as
// package sense is.
package saves

import (
	"slices"

	"github.com/shoal-ml/shoal/sense"
)

const (
	// before is how many steps before a checkpoint say what a step takes without one, and least
	// how many it takes for that.
	before, least = 32, 8
	// kept is how many checkpoints count, the newest.
	kept = 8
)

// Newest is the checkpoint of which a host has begun last to write parts.
type Newest struct {
	Step    uint64  // commits of this run of which it has the state; 0 = there is none
	Seconds float64 // for which it is written, or was
	Done    bool    // it is written
}

// Meter measures the checkpoints of a job from the steps around them. The zero value has seen none.
// One goroutine uses it at a time.
type Meter struct {
	newest  Newest
	usual   sense.StepSample // the step with the copy, but for the seconds of one without
	stall   float64          // seconds that the step, or round, with the copy took longer
	stalled bool             // usual and stall are known, and the cost of the newest is not yet
	costs   []float64        // seconds of training, by checkpoint, the newest last; at most kept
	writing []float64        // likewise, seconds for which it was written
}

// Observe takes in how far the newest checkpoint is, and the newest steps. It is to be called a few
// times a second, so that steps are not forgotten before they have counted.
func (m *Meter) Observe(n Newest, s *sense.StepSeries) {
	if n.Step == 0 {
		return
	}
	if n.Step != m.newest.Step {
		m.stalled = false
		m.begin(n.Step, s)
	}
	if m.newest.Step != n.Step { // the step with the copy has not ended
		return
	}
	if m.newest = n; n.Done && m.stalled {
		m.end(s)
	}
}

// begin measures by how much the step after a checkpoint took longer than those before, once that
// step has ended, if steps tell anything of it. It is the newest checkpoint from then on.
func (m *Meter) begin(step uint64, s *sense.StepSeries) {
	with := s.Between(step, step+1) // not where it is the first one of other members, say
	if newest, any := s.Newest(); !any || newest.Step <= step {
		return
	}
	m.newest.Step = step
	list := s.Between(step-min(step, before), step)
	if len(with) == 0 {
		return
	}
	m.usual = with[0]
	list = slices.DeleteFunc(list, func(x sense.StepSample) bool { return !isAlike(x, m.usual) })
	if len(list) < least || m.usual.Samples != m.usual.Batch {
		return
	}
	m.usual.Seconds = median(list)
	m.stall = float64(with[0].Steps()) * (with[0].Seconds - m.usual.Seconds)
	m.stalled = true
}

// end measures the steps while the newest checkpoint was written, and what it has cost in all, once
// these have ended. Of more steps than the series has, the newest count.
func (m *Meter) end(s *sense.StepSeries) {
	first, slow := m.newest.Step+1, 0.0
	newest, _ := s.Newest()
	list := s.AllBetween(first, newest.Step)
	if len(list) == 0 || list[0].Step == first+list[0].Count() {
		n, sum := 0, 0.0
		for n < len(list) && sum < m.newest.Seconds {
			sum += float64(float64(list[n].Steps()) * list[n].Seconds)
			n++
		}
		if list = list[:n]; sum < m.newest.Seconds {
			return
		}
	}
	m.stalled = false
	if slices.ContainsFunc(list, func(x sense.StepSample) bool { return !isAlike(x, m.usual) }) {
		return // the job has become another one meanwhile
	}
	if len(list) > 0 {
		slow = m.newest.Seconds * (1 - m.usual.Seconds/median(list))
	}
	m.costs = sense.AppendNewest(m.costs, m.stall+slow, kept)
	m.writing = sense.AppendNewest(m.writing, m.newest.Seconds, kept)
}

// isAlike reports whether two whole steps were made by the same members with the same work.
func isAlike(a, b sense.StepSample) bool {
	return a.Samples == a.Batch && a.Batch == b.Batch && a.Generation == b.Generation &&
		a.Size == b.Size && a.Deal == b.Deal && a.IsInRounds(b.Round)
}

// median returns the median of the seconds of some steps, at least one.
func median(list []sense.StepSample) float64 {
	var w []float64
	for _, x := range list {
		w = append(w, x.Seconds)
	}
	slices.Sort(w)
	return (w[(len(w)-1)/2] + w[len(w)/2]) / 2
}

// Means returns what a checkpoint costs and how long it is written, in seconds: the means of the
// newest ones, and the zero value where none has counted yet. Steps differ by chance, so that of a
// single one a cost below 0 can be measured, and that of all is 0 at least.
func (m *Meter) Means() sense.Saves {
	n := len(m.costs)
	if n == 0 {
		return sense.Saves{}
	}
	var s sense.Saves
	for i, cost := range m.costs {
		s.Cost += cost / float64(n)
		s.Writing += m.writing[i] / float64(n)
	}
	s.Cost, s.Count = max(s.Cost, 0), n
	return s
}
