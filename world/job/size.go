package job

import (
	"slices"

	"github.com/shoal-ml/shoal/setting"
)

// How many members a World has, where that changes by the setting. resize runs within World.Step;
// Levers and MeanSecondsOf are for who decides or asks what would be. All are for the goroutine
// that uses the World.

// joining is that workers start which will join.
type joining struct {
	starts bool    // there are some
	ready  float64 // when they join, in seconds
}

// memberCount returns how many workers take part, without those that are lost in the next step.
func (w *World) memberCount() (n int) {
	for i := range w.hosts {
		if h := &w.hosts[i]; h.in && !h.lost {
			n += h.workers
		}
	}
	return n
}

// workerRoom returns how many workers the hosts have that are there.
func (w *World) workerRoom() (n int) {
	for i := range w.hosts {
		if h := &w.hosts[i]; h.there && !h.lost {
			n += h.Workers
		}
	}
	return n
}

// Levers returns what the program opens, as far as the hosts have room for more members, like the
// head of a job does.
func (w *World) Levers() setting.Levers {
	levers := w.config.Levers
	if r := &levers.Size; r.IsOpen() {
		r.To = min(r.To, max(uint64(w.workerRoom()), r.From))
	}
	return levers
}

// resize lets members come and go until there are as many as the setting says, as far as the hosts
// have room. Who comes needs time to start, in which the job goes on.
func (w *World) resize() {
	if w.setting.Size == 0 || slices.ContainsFunc(w.hosts, func(h host) bool { return h.lost }) {
		return // who is lost leaves with the next step, and is replaced behind it
	}
	n := w.memberCount()
	want := min(int(w.setting.Size), w.workerRoom())
	switch {
	case n == want:
		w.joining.starts = false
		return
	case n > want:
		w.joining.starts = false
		w.pause += w.config.Costs.Release
	case !w.joining.starts:
		w.joining = joining{true, w.now + w.config.Costs.Start}
		fallthrough
	default:
		if w.now < w.joining.ready {
			return
		}
		w.joining.starts = false
		w.pause += w.config.Costs.Join
	}
	w.setMemberCount(want)
	w.generation++
	w.stale = true
}

// setMemberCount has so many workers take part: those who do stay, more join first on their hosts
// and then on others that are there, and of too many the last leave.
func (w *World) setMemberCount(want int) {
	more := want - w.memberCount()
	for _, isIn := range []bool{true, false} {
		for i := range w.hosts {
			h := &w.hosts[i]
			if h.there && !h.lost && h.in == isIn && more > 0 {
				joining := min(more, h.Workers-h.workers)
				h.workers, more = h.workers+joining, more-joining
				h.in = h.workers > 0
			}
		}
	}
	for i := range slices.Backward(w.hosts) {
		if h := &w.hosts[i]; h.in && !h.lost && more < 0 {
			leaving := min(-more, h.workers)
			h.workers, more = h.workers-leaving, more+leaving
			h.in = h.workers > 0
		}
	}
}

// MeanSecondsOf is MeanSeconds with so many members, or as many as the hosts have room for.
func (w *World) MeanSecondsOf(members int, batch uint64, ideal bool) float64 {
	c := *w
	c.hosts, c.ranks, c.done = slices.Clone(w.hosts), nil, nil
	c.setMemberCount(min(members, c.workerRoom()))
	c.placeMembers()
	return c.MeanSeconds(batch, ideal)
}
