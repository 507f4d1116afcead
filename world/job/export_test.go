package job

import (
	"slices"

	"github.com/shoal-ml/shoal/data/cursor"
)

// Cursor returns where the job is in its data, for tests.
func (w *World) Cursor() cursor.Cursor { return w.cursor }

// Now returns the seconds since the start of the job, for tests.
func (w *World) Now() float64 { return w.now }

// Schedule has something happen before the next step, for tests.
func (w *World) Schedule(e Event) {
	e.Step, e.Timed = w.cursor.Step, false
	w.steps = append(w.steps, e)
}

// HostWith returns the index of a host that is there, on which workers take part or nobody does,
// for tests; -1 = there is none.
func (w *World) HostWith(members bool) int {
	return slices.IndexFunc(w.hosts, func(h host) bool { return h.there && h.in == members })
}

// HostAway returns the index of a host that is not there, for tests; -1 = there is none.
func (w *World) HostAway() int {
	return slices.IndexFunc(w.hosts, func(h host) bool { return !h.there })
}
