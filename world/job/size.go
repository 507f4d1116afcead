package job

import (
	"slices"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
)

// How many members a World has, where that changes by the setting. resize runs within World.Step;
// Levers and MeanSecondsOf are for who decides or asks what would be. All are for the goroutine
// that uses the World.

// joining is who is to take part, and that workers start which will join.
type joining struct {
	// expected counts the members and the workers that are wanted besides, as the membership of a
	// job does. They are as many as the setting says, or fewer after a loss that leaves fewer than
	// the minimum: then nobody is wanted besides until a host joins.
	expected int
	start    uint32  // the size of the setting at the start of the job; 0 = it has none
	starts   bool    // there are some that start
	ready    float64 // when they join, in seconds
}

// memberCount returns how many workers take part, without those that are lost in the next step or
// leave when others have come.
func (w *World) memberCount() (n int) {
	for i := range w.hosts {
		if h := &w.hosts[i]; h.in && h.there && !h.lost {
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

// expectAll has as many workers be wanted as the setting says.
func (w *World) expectAll() { w.joining.expected = int(w.setting.Size) }

// leastSize is how many members it takes at least to make a step.
func (w *World) leastSize() int {
	if w.setting.Size == 0 {
		return 1
	}
	return int(max(w.config.Levers.Size.From, 1))
}

// hostLoad returns how many workers a host has, or will have when those have started who start.
func (w *World) hostLoad(h *host) int {
	switch {
	case !h.there: // others take the place of its workers, or it has none
		return 0
	case w.setting.Size == 0 || !w.joining.starts:
		return h.workers
	}
	i := slices.IndexFunc(w.hosts, func(o host) bool { return o.lead == h.lead })
	c := *w
	c.hosts = slices.Clone(w.hosts)
	c.setMemberCount(min(w.joining.expected, w.workerRoom()))
	return c.hosts[i].workers
}

// shrinkAfterLoss has the workers of a host be wanted no more, of which so many are lost: as the
// membership of a job without spares, it orders nobody in their place.
func (w *World) shrinkAfterLoss(lost int) {
	if w.setting.Size == 0 {
		return
	}
	j := &w.joining
	j.expected -= lost
	w.setting.Size = uint32(member.WantAfterLoss(int(w.setting.Size), w.leastSize(), j.expected))
}

// shrinkAfterDrain has the workers of a host be replaced that has left, as far as the others have
// room; leaving is how many these were.
func (w *World) shrinkAfterDrain(leaving int) {
	if w.setting.Size == 0 {
		return
	}
	j, before := &w.joining, int(w.setting.Size)
	room := max(w.workerRoom()-(j.expected-leaving), 0)
	want := member.WantAfterDrain(before, w.leastSize(), leaving, room)
	j.expected -= before - want
	w.setting.Size = uint32(want)
}

// resize lets members come and go until there are as many as are wanted, as far as the hosts have
// room. Who comes needs time to start, in which the job goes on.
func (w *World) resize() {
	if w.setting.Size == 0 || w.hasLostHost() {
		return // who is lost leaves with the next step, and others come and go after it
	}
	n := w.memberCount()
	want := min(w.joining.expected, w.workerRoom())
	switch {
	case n == want:
		w.joining.starts = false
		w.releaseDrained()
		return
	case n > want:
		w.joining.starts = false
		w.pause += w.config.Costs.Release
	case !w.joining.starts:
		w.joining.starts, w.joining.ready = true, w.now+w.config.Costs.Start
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
	w.releaseDrained()
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
		if h := &w.hosts[i]; h.in && h.there && !h.lost && more < 0 {
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
	c.releaseDrained()
	c.placeMembers()
	return c.MeanSeconds(batch, ideal)
}
