package job

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
)

// How many members a World has, where that changes by the setting. resize runs within World.Step;
// Levers and MeanSecondsOf are for who decides or asks what would be. All are for the goroutine
// that uses the World.

// joining is who is to take part.
type joining struct {
	// expected counts the members and the workers that are wanted besides, as the membership of a
	// job does. They are as many as the setting says, or fewer after a loss that leaves fewer than
	// the minimum: then nobody is wanted besides until a host joins.
	expected int
	start    uint32 // the size of the setting at the start of the job; 0 = it has none
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
	if !h.there { // others take the place of its workers, or it has none
		return 0
	}
	return h.workers + len(h.starting)
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
	n, want := w.memberCount(), min(w.joining.expected, w.workerRoom())
	w.setStartingCount(max(want-n, 0))
	came := w.admitReady()
	switch {
	case n > want:
		w.pause += w.config.Costs.Release
		w.setMemberCount(want)
	case came:
		w.pause += w.config.Costs.Join
	}
	if n > want || came {
		w.generation++
		w.stale = true
	}
	if w.memberCount() >= w.leastSize() || w.startingCount() == 0 {
		w.releaseDrained()
	}
}

// startingCount returns how many workers start.
func (w *World) startingCount() (n int) {
	for i := range w.hosts {
		n += len(w.hosts[i].starting)
	}
	return n
}

// setStartingCount has so many workers start, for which there is room: those who do go on, more
// begin first on hosts where others take part and then on others, and of too many the last do not
// join.
func (w *World) setStartingCount(want int) {
	more := want - w.startingCount()
	for _, isIn := range []bool{true, false} {
		for i := range w.hosts {
			h := &w.hosts[i]
			if h.there && !h.lost && h.in == isIn && more > 0 {
				begin := min(more, h.Workers-w.hostLoad(h))
				more -= begin
				h.starting = append(h.starting[:len(h.starting):len(h.starting)],
					slices.Repeat([]float64{w.now + w.config.Costs.Start}, begin)...)
			}
		}
	}
	for i := range slices.Backward(w.hosts) {
		h := &w.hosts[i]
		fewer := min(max(-more, 0), len(h.starting))
		h.starting, more = h.starting[:len(h.starting)-fewer], more+fewer
	}
}

// admitReady has those take part who have started, and reports whether there are any. The first
// members of a new run wait for all of them.
func (w *World) admitReady() (came bool) {
	ready := func(h *host) (n int) {
		for n < len(h.starting) && h.starting[n] <= w.now {
			n++
		}
		return n
	}
	all := 0
	for i := range w.hosts {
		all += ready(&w.hosts[i])
	}
	if all == 0 || w.isNewRun() && w.memberCount()+all < w.joining.expected {
		return false
	}
	for i := range w.hosts {
		h := &w.hosts[i]
		n := ready(h)
		h.workers, h.starting = h.workers+n, h.starting[n:]
		h.in = h.workers > 0
	}
	return true
}

// nextReady returns when the next of those have started who start; +Inf = nobody does.
func (w *World) nextReady() float64 {
	next := math.Inf(1)
	for i := range w.hosts {
		for _, at := range w.hosts[i].starting {
			if at > w.now { // others wait
				next = min(next, at)
			}
		}
	}
	return next
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
