package job

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/sense/steps"
	"github.com/shoal-ml/shoal/setting"
)

// What happens to a World between two steps, and what it shows of a step. The methods run within
// World.Step, placeMembers also within New and MeanSecondsOf, and forgetSplit within Change, on the
// goroutine of the World.

// runDueEvents lets all happen that is due before the next step.
func (w *World) runDueEvents() {
	w.resize() // to what was asked for before
	for len(w.steps) > 0 && w.steps[0].Step <= w.cursor.Step {
		w.applyEvent(w.steps[0])
		w.steps = w.steps[1:]
	}
	for len(w.timed) > 0 && w.timed[0].At <= w.now {
		w.applyEvent(w.timed[0])
		w.timed = w.timed[1:]
	}
	for i := range w.hosts {
		if h := &w.hosts[i]; h.in && h.end > 0 && w.now >= h.end {
			w.stale = true
			w.loseHost(h)
		}
	}
	w.resize()
	if w.stale {
		w.placeMembers()
	}
	w.measureMemory()
}

// applyEvent has event e happen, which is due.
func (w *World) applyEvent(e Event) {
	w.stale = true
	w.events = append(w.events, e)
	h := &w.hosts[e.Host]
	switch e.What {
	case Cable:
		h.Cable = e.Value
	case Cables:
		for i := range w.hosts {
			w.hosts[i].Cable = e.Value
		}
	case Slowdown:
		w.network.slowdown = e.Value
	case Slow:
		h.slow = e.Value
	case Disk:
		h.Load = e.Value
	case Notice:
		end := w.now + e.Value
		if e.Timed {
			end = e.At + e.Value
		}
		if !h.in || h.lost || e.Timed && w.now >= end { // the step that ran then took too long
			w.loseHost(h)
		} else {
			w.drainHost(h, end)
		}
	case Lose:
		w.loseHost(h)
	case Join:
		if h.back = h.lost; !h.lost {
			w.joinHost(h)
		}
	}
}

// joinHost has a host be there, and where the size is closed its workers take part.
func (w *World) joinHost(h *host) {
	h.there, h.end = true, 0
	if w.joining.expected < w.leastSize() { // as in a running job, only now others are ordered
		w.expectAll()
	}
	if !h.in && w.setting.Size == 0 {
		h.in, h.workers = true, h.Workers
		w.generation++
		w.pause += w.config.Costs.Join
	}
}

// drainHost has a host leave that will be lost at a time: at once, or when others have come, if it
// takes them to go on. Where no other host can have the state, it stays until it is lost.
func (w *World) drainHost(h *host, end float64) {
	leaving := w.hostLoad(h)
	h.there = false
	staying, room := w.memberCount(), w.workerRoom()
	if staying == 0 && (w.setting.Size == 0 || room == 0) {
		h.there, h.end = true, end
		return
	}
	h.starting = nil
	w.shrinkAfterDrain(leaving)
	if staying < w.leastSize() && min(w.joining.expected, room) > staying {
		h.end = end
		return
	}
	w.releaseDrained()
}

// releaseDrained has the hosts leave that others have taken the place of, if there are any.
func (w *World) releaseDrained() {
	if w.memberCount() == 0 {
		return
	}
	for i := range w.hosts {
		if h := &w.hosts[i]; h.in && !h.there && !h.lost {
			h.leave()
			w.generation++
			w.pause += w.config.Costs.Release
			w.stale = true
		}
	}
}

// leave has the workers of a host leave, and the host with them: nobody of it takes part any more.
func (h *host) leave() { h.in, h.there, h.workers, h.starting, h.end = false, false, 0, nil, 0 }

// loseHost has a host be lost in the next step. The last host is lost at once: nobody is left to go
// on.
func (w *World) loseHost(h *host) {
	h.back = false
	if h.lost {
		return
	}
	w.shrinkAfterLoss(w.hostLoad(h))
	h.starting = nil
	if !h.in {
		h.there = false
		return
	}
	h.lost = true
	w.pause += w.config.Costs.Loss
	for i := range w.hosts {
		if w.hosts[i].in && !w.hosts[i].lost {
			return
		}
	}
	w.removeLost()
}

// hasLostHost reports whether a host is lost in the next step.
func (w *World) hasLostHost() bool {
	return slices.ContainsFunc(w.hosts, func(h host) bool { return h.lost })
}

// removeLost has the hosts that are lost leave, and those of them that are back by now join.
func (w *World) removeLost() {
	for i := range w.hosts {
		if h := &w.hosts[i]; h.lost {
			h.leave()
			h.lost = false
		}
	}
	w.loseState()
	w.generation++
	w.stale = true
	for i := range w.hosts {
		if h := &w.hosts[i]; h.back {
			h.back = false
			w.joinHost(h)
		}
	}
}

// placeMembers sets who takes part, by rank, how their hosts share processors, and what
// communication takes, after any of that has changed.
func (w *World) placeMembers() {
	w.conditions++
	w.stale = false
	before := slices.Clone(w.ranks)
	w.ranks, w.names = w.ranks[:0], nil // an observation has the names
	busy := make([]float64, len(w.config.Cores))
	var cables []float64
	for i := range w.hosts {
		h := &w.hosts[i]
		if !h.in {
			continue
		}
		busy[h.Machine] += float64(float64(h.workers) * h.Processors)
		cables = append(cables, w.cableOf(h))
		for n := range uint64(h.workers) {
			w.ranks = append(w.ranks, rank{host: i, worker: h.lead + n})
			w.names = append(w.names, fmt.Sprintf("h%d", i+1))
		}
	}
	w.moveShares(before)
	for i := range w.hosts {
		h := &w.hosts[i]
		h.took = 1
		if h.Processors > 0 {
			h.took = max(1, busy[h.Machine]/w.config.Cores[h.Machine])
		}
	}
	w.done = slices.Grow(w.done[:0], len(w.ranks))[:len(w.ranks)]
	if w.split.of != w.generation {
		w.forgetSplit()
	}
	w.network.whole = w.communicationSeconds(cables)
}

// cableOf returns how many seconds a byte takes on the cable of a host now.
func (w *World) cableOf(h *host) float64 { return cmp.Or(w.network.slowdown, h.Cable) }

// moveShares gives the members the shares of work that they had before, as a head does.
func (w *World) moveShares(before []rank) {
	if len(w.setting.Shares) == 0 || w.split.of == w.generation {
		return
	}
	from := make([]int, len(w.ranks))
	for i, r := range w.ranks {
		from[i] = slices.IndexFunc(before, func(b rank) bool { return b.worker == r.worker })
	}
	w.setting.Shares = setting.MoveShares(w.setting.Shares, from)
	w.cursor = w.cursor.WithShares(w.setting.Shares)
}

// forgetSplit has the job forget where the time of a step went, since that has changed.
func (w *World) forgetSplit() {
	w.split = split{of: w.generation}
	w.split.begin(len(w.ranks))
}

// begin begins a note of a job of so many members.
func (s *split) begin(size int) {
	s.note = steps.Note{Generation: s.of, Size: size, Waits: make([]float64, size)}
	for rank := range size {
		s.note.Ranks = append(s.note.Ranks, rank)
	}
}

// takeNotes has the head know of all steps, as in a running job by notes of their hosts; here one
// is of all.
func (s *split) takeNotes() {
	if s.note.Steps == 0 {
		return
	}
	s.head.Add("", s.note)
	s.known = s.head.Split(s.of, 0)
	s.begin(s.note.Size)
}

// communicationSeconds returns the seconds that the gradients take over the cables of the hosts: by
// the route that is given, or by the best of those that a job without measurements would consider.
func (w *World) communicationSeconds(cables []float64) float64 {
	bytes, m := w.config.Gradients, w.config.Network
	if len(cables) == 0 || bytes == 0 {
		return 0
	}
	if w.config.Route.Strategy != nil {
		return m.AllReduceSecondsAtScale(cables, w.config.Route, bytes)
	}
	least := math.Inf(1)
	for _, s := range []collective.Strategy{collective.Ring{}, collective.DoubleTree{},
		collective.Clique{}} {
		if s == (collective.Clique{}) && len(cables) > cost.PlayedHosts {
			continue // a host sends to each of the others
		}
		r := collective.DefaultRoute(bytes)
		r.Strategy = s
		least = min(least, m.AllReduceSecondsAtScale(cables, r, bytes))
	}
	return least
}

// recordObservations takes in what agent and workers would tell of a step. That a worker waits for
// a partner, and exchanges with it, is no work of its own.
func (w *World) recordObservations(s Step, slowest float64) {
	each, sample := float64(max(s.Round, 1)), s.StepSample
	sample.Seconds, sample.Samples = s.Seconds/each, s.Samples/uint64(each)
	w.series.Add(sample)
	note, most := &w.split.note, 0.0
	for _, r := range w.ranks {
		most = max(most, r.took-r.met)
	}
	for i := range w.ranks {
		r := &w.ranks[i]
		waits := w.hosts[r.host].Wait + r.load
		note.Data += waits
		note.Compute += (r.took-r.met)/each - waits
		note.Waits[i] += (slowest + s.Exposed - (r.took - r.met)) / each
	}
	note.Steps, note.Timed, note.Told = note.Steps+1, note.Timed+1,
		note.Told+float64(len(w.ranks))
	note.Exposed += (s.Exposed + slowest - most) / each
	note.Seconds += (slowest + s.Exposed) / each
	if s.Noise > 0 && s.Samples > 0 {
		w.noise.Add(w.drawNorms(s))
	}
}

// drawNorms draws the norms of gradients that the workers would tell of a step. |G|², the squared
// norm of the true gradient, is 1, so the variance of a sample is the noise scale. The deviation of
// a sum of samples has a chi-squared distribution of as many degrees of freedom as the gradient has
// coordinates, which is normal enough.
func (w *World) drawNorms(s Step) noise.Sums {
	ranks, batch := float64(s.Size), float64(s.Samples)/float64(max(s.Round, 1))
	if s.Size < 2 {
		return noise.Sums{Alone: 1}
	}
	dims := w.config.Noise.Dims
	if dims == 0 {
		dims = 300
	}
	perOwn := ranks / batch
	numbers := drawsOf(w.config.Seed+1, s.Step)
	around := s.Noise / batch // variance of the mean gradient
	mean := max(0, 1+float64(2*math.Sqrt(around/dims)*numbers.normal(0))+
		float64(around*(1+float64(math.Sqrt(2/dims)*numbers.normal(1)))))
	between := float64(s.Noise * (perOwn - 1/batch) *
		max(0, 1+float64(math.Sqrt(2/(dims*(ranks-1)))*numbers.normal(2))))
	return noise.Sums{Steps: 1, Own: mean + between, Mean: mean, PerOwn: perOwn,
		PerBatch: 1 / batch}
}
