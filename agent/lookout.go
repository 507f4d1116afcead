package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/accrual"
	"github.com/shoal-ml/shoal/topo"
)

const (
	// lookInterval is how often it is looked who is waited for, and restless after how much longer
	// a time nobody can have looked.
	lookInterval, restless = 250 * time.Millisecond, time.Second
	// attention is what a person would not notice: steps that follow faster are heard as one, and
	// no wait under 12 of it is unusual.
	attention = 2 * lookInterval
	// beginning is how many looks at which something has changed are of the beginning, when
	// libraries are read and kernels are tuned. The rhythm of those that follow is taken when there
	// is one, after so many.
	beginning, warm = 10, 30
)

// lookout judges how long workers have been waited for: by the rhythm that the job has had, so that
// nobody has to say how long is too long. It has no clock. It knows of a worker only that others
// wait for it: where all compute nobody holds up anybody, and nobody is named.
type lookout struct {
	rhythm *accrual.Detector // of all that changes in the job
	// of that without the beginning; nil = it is not learnt yet, or is the rhythm
	steady  *accrual.Detector
	changes int           // looks at which something had changed, since the first collective
	before  time.Duration // the last look
	applied uint64
	since   map[collective.WaitID]time.Duration
	vigils  map[topo.WorkerID]*vigil
	habits  habits
	gone    func(topo.WorkerID) bool // is lost or let go
}

// vigil is a worker for which others wait.
type vigil struct {
	collective.Wait               // the oldest
	since           time.Duration // it was seen
	begun           time.Duration // the first of those that follow on each other and stand out
	out             bool          // it takes longer than the rhythm explains
	told            bool          // and than such waits usually do
}

func newLookout(gone func(topo.WorkerID) bool) *lookout {
	return &lookout{rhythm: accrual.New(attention, 0), gone: gone}
}

// look takes who is waited for now, where the job is led, and how much of its log is applied. It
// returns for whom the wait has become unusual, and for whom it was and is over.
func (l *lookout) look(now time.Duration, leads bool, applied uint64,
	waits []collective.Wait) (told, over []*vigil) {
	if pause := now - l.before - lookInterval; pause > restless {
		l.excuse(pause)
	}
	l.before = now
	changed := applied != l.applied
	l.applied = applied
	old, oldVigils := l.since, l.vigils
	l.since, l.vigils = nil, nil
	if len(waits) > 0 {
		l.since, l.vigils = make(map[collective.WaitID]time.Duration, len(waits)),
			map[topo.WorkerID]*vigil{}
	}
	lasts := 0
	for _, w := range waits {
		at, known := old[w.WaitID]
		if known {
			lasts++
		} else {
			at = now
		}
		l.since[w.WaitID] = at
		if v := l.vigils[w.Worker]; v == nil || at < v.since {
			l.vigils[w.Worker] = &vigil{Wait: w, since: at, begun: at}
		}
	}
	changed = changed || lasts < len(waits) || lasts < len(old)
	over = l.pass(now, leads, oldVigils)
	if changed {
		l.learn(now)
	}
	for _, v := range l.vigils {
		v.out = v.out || l.suspects(now-v.since)
		if v.out && !v.told && now-v.since > l.habits.usual(v.begun) {
			v.told = true
			told = append(told, v)
		}
	}
	inOrder(told)
	return told, over
}

// learn takes it that something has changed.
func (l *lookout) learn(now time.Duration) {
	l.rhythm.Heard(now)
	if l.steady != nil {
		l.steady.Heard(now)
	}
	if l.applied > 0 && l.changes < warm {
		l.changes++
		switch l.changes {
		case beginning:
			l.steady = accrual.New(attention, now)
		case warm:
			l.rhythm, l.steady = l.steady, nil
		}
	}
}

// pass brings what is known of waits to those that go on, and returns those that were told and are
// over. How a wait ends is for who leads to see.
func (l *lookout) pass(now time.Duration, leads bool,
	before map[topo.WorkerID]*vigil) (over []*vigil) {
	for w, v := range before {
		if next := l.vigils[w]; next != nil &&
			(next.since == v.since || v.out && l.suspects(now-next.since)) {
			next.begun, next.out, next.told = v.begun, v.out, v.told
			continue
		}
		if leads && v.out && !l.gone(v.Worker) && !l.gone(v.Of) {
			l.habits.learn(v.begun, now)
		}
		if v.told {
			over = append(over, v)
		}
	}
	if len(over) > 0 { // what was no part of the rhythm shall not be learnt
		l.forget(l.rhythm.Silence(now))
	}
	if !leads {
		return nil
	}
	inOrder(over)
	return over
}

// end forgets who is waited for, and returns those of whom it was told.
func (l *lookout) end() (over []*vigil) {
	for _, v := range l.vigils {
		if v.told {
			over = append(over, v)
		}
	}
	l.since, l.vigils = nil, nil
	inOrder(over)
	return over
}

// forget takes a part out of the present silence.
func (l *lookout) forget(part time.Duration) {
	l.rhythm.Excuse(part)
	if l.steady != nil {
		l.steady.Excuse(part)
	}
}

// lasts is how long others had waited at the last look.
func (l *lookout) lasts(v *vigil) time.Duration { return l.before - v.since }

// suspects reports whether a wait is longer than the rhythm explains.
func (l *lookout) suspects(wait time.Duration) bool {
	return l.rhythm.Suspect(l.before - l.rhythm.Silence(l.before) + wait)
}

// excuse takes out a time in which nobody looked, because this process stood still.
func (l *lookout) excuse(pause time.Duration) {
	l.forget(pause)
	l.habits.excuse(pause)
	for id := range l.since {
		l.since[id] += pause
	}
	for _, v := range l.vigils {
		v.since, v.begun = v.since+pause, v.begun+pause
	}
}

func inOrder(list []*vigil) {
	slices.SortFunc(list, func(a, b *vigil) int { return cmp.Compare(a.Worker, b.Worker) })
}
