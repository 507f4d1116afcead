// Package stall detects workers that hold up a job: those for which others wait longer than the
// rhythm of the job explains.
package stall

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/accrual"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/topo"
)

const (
	// Interval is how often Observe should be called.
	Interval = sense.Second / 4
	// maxGap is how much longer than Interval two calls can lie apart while the agent runs: after
	// a longer gap the agent itself stood still.
	maxGap = sense.Second
	// resolution is a time that a person would not notice: steps that follow each other faster
	// count as one, and no wait under 12 times as long is unusual.
	resolution = 2 * Interval

	// startupChanges is how many observations of a change belong to the start of a job, when
	// libraries are read and kernels are tuned.
	startupChanges = 10
	// warmChanges is how many observations of a change it takes until the rhythm without the start
	// is known.
	warmChanges = 30
)

// Detector judges how long workers have been waited for: by the rhythm that the job has had, so
// that nobody has to say how long is too long. It knows of a worker only that others wait for it:
// where all compute nobody holds up anybody, and nobody is named. Use New. A Detector is not safe
// for concurrent use; its methods do no I/O.
type Detector struct {
	rhythm *accrual.Detector[sense.Duration] // of all changes in the job
	// steady is the rhythm of the changes after the start of the job; nil before the first of them,
	// and once steady has become rhythm.
	steady  *accrual.Detector[sense.Duration]
	changes int            // changes observed since the first commit, up to warmChanges
	now     sense.Duration // time of the last observation
	applied uint64         // entries of the log that were applied at that time
	// since has, for each present wait, when the wait was first observed.
	since    map[collective.WaitID]sense.Duration
	stalls   map[topo.WorkerID]*Stall // the present stalls
	baseline baseline
	gone     func(topo.WorkerID) bool // whether a worker is lost or was released
}

// Stall is a worker for which others wait. It is used as its Detector is, which changes it.
type Stall struct {
	collective.Wait // the oldest wait for the worker

	since      sense.Duration // when that wait was first observed
	begin      sense.Duration // when the first of the waits that follow on each other was observed
	suspicious bool           // the wait is longer than the rhythm explains
	reported   bool           // the wait is longer than the baseline too, and Observe returned it
}

// Unusual reports whether the stall was returned by Observe as one that has become unusual.
func (s *Stall) Unusual() bool { return s.reported }

// New returns a detector at time 0. Gone reports whether a worker is lost or was released, whose
// waits teach nothing.
func New(gone func(topo.WorkerID) bool) *Detector {
	return &Detector{rhythm: accrual.New(resolution, 0), gone: gone}
}

// Observe records in d the waits of this moment, whether this agent leads the job, and how many
// entries of the log it has applied. It returns the stalls that have become unusual, and the
// unusual ones that are over, each in the order of the workers; of those that are over, none where
// this agent does not lead. The stalls stay the Detector's.
func (d *Detector) Observe(now sense.Duration, leads bool, applied uint64,
	waits []collective.Wait) (unusual, over []*Stall) {
	if gap := now - d.now - Interval; gap > maxGap {
		d.excusePause(gap)
	}
	d.now = now
	changed := applied != d.applied
	d.applied = applied
	oldSince, oldStalls := d.since, d.stalls
	d.since, d.stalls = nil, nil
	if len(waits) > 0 {
		d.since = make(map[collective.WaitID]sense.Duration, len(waits))
		d.stalls = map[topo.WorkerID]*Stall{}
	}
	continued := 0
	for _, w := range waits {
		at, known := oldSince[w.WaitID]
		if known {
			continued++
		} else {
			at = now
		}
		d.since[w.WaitID] = at
		if s := d.stalls[w.Worker]; s == nil || at < s.since {
			d.stalls[w.Worker] = &Stall{Wait: w, since: at, begin: at}
		}
	}
	changed = changed || continued < len(waits) || continued < len(oldSince)
	over = d.carryOver(now, leads, oldStalls)
	if changed {
		d.recordChange(now)
	}
	for _, s := range d.stalls {
		s.suspicious = s.suspicious || d.isSuspicious(now-s.since)
		if s.suspicious && !s.reported && now-s.since > d.baseline.usualDuration(s.begin) {
			s.reported = true
			unusual = append(unusual, s)
		}
	}
	sortByWorker(unusual)
	return unusual, over
}

// recordChange tells the rhythms that something in the job has changed.
func (d *Detector) recordChange(now sense.Duration) {
	d.rhythm.Heard(now)
	if d.steady != nil {
		d.steady.Heard(now)
	}
	if d.applied > 0 && d.changes < warmChanges {
		d.changes++
		switch d.changes {
		case startupChanges:
			d.steady = accrual.New(resolution, now)
		case warmChanges:
			d.rhythm, d.steady = d.steady, nil
		}
	}
}

// carryOver copies what is known of the stalls before to those that go on, and returns the reported
// ones that are over. Only the agent that leads learns from the end of a stall, and returns it.
func (d *Detector) carryOver(now sense.Duration, leads bool,
	before map[topo.WorkerID]*Stall) (over []*Stall) {
	for w, s := range before {
		if next := d.stalls[w]; next != nil &&
			(next.since == s.since || s.suspicious && d.isSuspicious(now-next.since)) {
			next.begin, next.suspicious, next.reported = s.begin, s.suspicious, s.reported
			continue
		}
		if leads && s.suspicious && !d.gone(s.Worker) && !d.gone(s.Of) {
			d.baseline.addStall(s.begin, now)
		}
		if s.reported {
			over = append(over, s)
		}
	}
	if len(over) > 0 { // the rhythm must not learn from a stall
		d.excuseSilence(d.rhythm.Silence(now))
	}
	if !leads {
		return nil
	}
	sortByWorker(over)
	return over
}

// EndAll forgets who is waited for, and returns the stalls that were reported. They are the
// caller's.
func (d *Detector) EndAll() (over []*Stall) {
	for _, s := range d.stalls {
		if s.reported {
			over = append(over, s)
		}
	}
	d.since, d.stalls = nil, nil
	sortByWorker(over)
	return over
}

// Stalls returns the workers that were waited for at the last observation, in order. The list is
// the caller's, the stalls are the Detector's.
func (d *Detector) Stalls() []*Stall {
	list := slices.Collect(maps.Values(d.stalls))
	sortByWorker(list)
	return list
}

// Waited returns how long others had waited for the worker at the last observation, in the call
// that they wait in.
func (d *Detector) Waited(s *Stall) sense.Duration { return d.now - s.since }

// Lasted returns how long the stall had lasted at the last observation, over all of its calls.
func (d *Detector) Lasted(s *Stall) sense.Duration { return d.now - s.begin }

// isSuspicious reports whether a wait is longer than the rhythm explains.
func (d *Detector) isSuspicious(wait sense.Duration) bool {
	return d.rhythm.Suspect(d.now - d.rhythm.Silence(d.now) + wait)
}

// excuseSilence takes a time out of the present silence of both rhythms.
func (d *Detector) excuseSilence(part sense.Duration) {
	d.rhythm.ExcludePause(part)
	if d.steady != nil {
		d.steady.ExcludePause(part)
	}
}

// excusePause takes a pause, in which this process stood still and observed nothing, out of all
// times in d.
func (d *Detector) excusePause(pause sense.Duration) {
	d.excuseSilence(pause)
	d.baseline.excusePause(pause)
	for id := range d.since {
		d.since[id] += pause
	}
	for _, s := range d.stalls {
		s.since, s.begin = s.since+pause, s.begin+pause
	}
}

// sortByWorker sorts stalls, in place, by the numbers of their workers.
func sortByWorker(list []*Stall) {
	slices.SortFunc(list, func(a, b *Stall) int { return cmp.Compare(a.Worker, b.Worker) })
}
