package sched

import (
	"cmp"
	"slices"
)

// This file moves jobs so that others are on as few hosts as they need, where a policy packs. A job
// that is moved goes to slots that are free, so that moves can be carried out one after the other.

// mostPacked is how many jobs are moved at most so that one comes together.
const mostPacked = 4

// moving is that a job goes to one host.
type moving struct {
	entry *entry
	host  int // its index
}

// makeRoom moves jobs so that a job can have n slots on as few hosts as it needs, if these have
// room after that, and if the job gains more by it than the moves cost. It may run on some already:
// then it is moved as well.
func (m *Machine) makeRoom(e *entry, n int) {
	k := m.place.fewest(n)
	if n < 2 || e.job.Spread <= 1 || len(m.place.hosts) <= k {
		return
	}
	saved := e.job.Left.Mean / e.job.Rate(n) * (1 - 1/max(e.job.Spread, 1))
	worth := func(moves int) bool {
		return saved > m.cfg.Gain*float64(moves)*m.costsOf(e.job.Kind).Resize.Mean/1000
	}
	if !worth(1) {
		return
	}
	own := make([]int, len(m.place.hosts))
	for _, x := range e.job.Has {
		if i, there := m.place.index(x.Host); there {
			own[i] = x.Slots
		}
	}
	room := func(i int) int { return max(m.place.hosts[i].free, 0) + own[i] }
	var order []int
	for i := range m.place.hosts {
		if !m.place.hosts[i].Leaving {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(room(b), room(a)) })
	together := 0
	for _, i := range order[:min(k, len(order))] {
		together += room(i)
	}
	var best []moving
	if together < n {
		var ok bool
		if best, ok = m.fewestMoves(order, k, room, n); !ok {
			return
		}
	} else if e.slots == 0 {
		return // there is room already
	}
	changed := len(best)
	if e.slots > 0 {
		changed++
	}
	if !worth(changed) {
		return
	}
	because := "so that " + string(e.job.ID) + " is on fewer hosts"
	for _, x := range best {
		host := m.place.hosts[x.host].Name
		m.assign(x.entry, Move, []Place{{host, x.entry.slots}}, because)
	}
	if e.slots > 0 {
		m.place.take(e.job.Has, -1)
		places, ok := m.place.grow(nil, n)
		m.place.take(e.job.Has, 1)
		if ok && len(places) < len(e.job.Has) {
			m.assign(e, Move, places, "it is on fewer hosts")
		}
	}
}

// fewestMoves returns which jobs to move so that n slots are free on k hosts: of one host each is
// looked at, and of several the first k.
func (m *Machine) fewestMoves(order []int, k int, room func(host int) int,
	n int) (best []moving, found bool) {
	if k > 1 {
		return m.empty(order[:k], room, n)
	}
	for _, i := range order {
		moves, ok := m.empty([]int{i}, room, n)
		if ok && (!found || len(moves) < len(best)) {
			best, found = moves, true
		}
	}
	return best, found
}

// empty returns which jobs to move from some hosts to others so that n slots are free there, where
// room says how many each host has; ok is false where so much cannot be moved.
func (m *Machine) empty(targets []int, room func(host int) int, n int) (moves []moving, ok bool) {
	free := make([]int, len(m.place.hosts))
	for i := range free {
		if !m.place.hosts[i].Leaving && !slices.Contains(targets, i) {
			free[i] = max(m.place.hosts[i].free, 0)
		}
	}
	for _, t := range targets {
		need := min(n, m.place.hosts[t].Slots) - room(t)
		n -= min(n, m.place.hosts[t].Slots)
		if need <= 0 {
			continue
		}
		if need > m.place.free-max(m.place.hosts[t].free, 0) {
			return nil, false
		}
		var there []*entry
		for _, e := range m.running {
			if len(e.job.Has) == 1 && e.job.Has[0].Host == m.place.hosts[t].Name &&
				e.job.Park == ParkWhole {
				there = append(there, e)
			}
		}
		slices.SortStableFunc(there, func(a, b *entry) int { return cmp.Compare(b.slots, a.slots) })
		for need > 0 {
			at := slices.IndexFunc(there, func(e *entry) bool { return e.slots <= need })
			if at < 0 {
				at = len(there) - 1 // the smallest of those that are larger
			}
			if at < 0 || len(moves) == mostPacked {
				return nil, false
			}
			e := there[at]
			to := -1
			for i, x := range free {
				if x >= e.slots && (to < 0 || x < free[to]) {
					to = i
				}
			}
			if there = slices.Delete(there, at, at+1); to < 0 {
				continue
			}
			free[to] -= e.slots
			need -= e.slots
			moves = append(moves, moving{e, to})
		}
	}
	return moves, n <= 0
}

// consolidate brings jobs together that run on more hosts than they need.
func (m *Machine) consolidate() {
	if !m.policy.Packs {
		return
	}
	for _, e := range slices.Clone(m.running) {
		if len(e.job.Has) > 1 && e.job.Park == ParkWhole &&
			len(e.job.Has) > m.place.fewest(e.slots) && e.runsFrom <= m.now {
			m.makeRoom(e, e.slots)
		}
	}
}
