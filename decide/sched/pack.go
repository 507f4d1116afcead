package sched

import (
	"cmp"
	"slices"
)

// This file moves jobs so that others are on as few hosts as they need, where a policy packs. A job
// that is moved goes to slots that are free, so that moves can be carried out one after the other.
// The methods run within Machine.Ready, on the goroutine that uses the Machine, and move a job by
// assign, which grants it.

// mostPacked is how many jobs are moved at most so that one comes together.
const mostPacked = 4

// moving is that a job goes to one host.
type moving struct {
	entry *entry
	host  string
}

// makeRoom moves jobs so that a job can have n slots on as few hosts as it needs, if these have
// room after that, and if the job gains more by it than the moves cost. It may run on some already:
// then it is moved as well.
func (m *Machine) makeRoom(e *entry, n int) {
	k := m.place.fewestHosts(n)
	if n < 2 || len(m.place.hosts) <= k {
		return
	}
	now := e.job.Has
	if e.slots == 0 {
		now, _ = m.place.choose(&e.job, nil, n)
	}
	slower := m.place.slower(&e.job, now)
	if slower <= 1 {
		return
	}
	takes := float64(e.job.Left.Mean / e.job.Rate(n) * m.place.stretch(&e.job, now))
	saved := takes - takes/slower
	cost := m.cfg.Gain * m.cfg.Costs.Resize.Mean / 1000
	worth := func(moves int) bool { return saved > float64(float64(moves)*cost) }
	if !worth(1) {
		return
	}
	moves, ok := m.fewestMoves(e, k, n)
	changed := len(moves)
	if e.slots > 0 {
		changed++
	}
	if !ok || !worth(changed) {
		return
	}
	because := "so that " + string(e.job.ID) + " is on fewer hosts"
	for _, x := range moves {
		m.assign(x.entry, Move, []Place{{x.host, x.entry.slots}}, because)
	}
	if e.slots > 0 {
		m.place.changeTaken(e.job.Has, -1)
		places, ok := m.place.choose(&e.job, nil, n)
		m.place.changeTaken(e.job.Has, 1)
		if ok && m.place.stretch(&e.job, places) < m.place.stretch(&e.job, now) {
			m.assign(e, Move, places, "it is faster on these hosts")
		}
	}
}

// fewestMoves returns which jobs to move so that a job finds n slots on k hosts: of one host, each
// is looked at, and of several the k with the most room.
func (m *Machine) fewestMoves(e *entry, k, n int) (best []moving, found bool) {
	room, order := m.place.roomOfHosts(e.job.Has)
	together := 0
	for _, i := range order[:min(k, len(order))] {
		together += room[i]
	}
	switch {
	case together >= n:
		return nil, true
	case k > len(order): // hosts are leaving, and the others have too few slots for the job
		return nil, false
	case k > 1:
		return m.planEmptying(order[:k], room, n)
	}
	for _, i := range order {
		moves, ok := m.planEmptying([]int{i}, room, n)
		if ok && (!found || len(moves) < len(best)) {
			best, found = moves, true
		}
	}
	return best, found
}

// planEmptying returns which jobs to move from some hosts to others so that n slots are free there,
// where each host has some room; ok is false where so much cannot be moved.
func (m *Machine) planEmptying(targets, room []int, n int) (moves []moving, ok bool) {
	free := make([]int, len(m.place.hosts))
	for i := range free {
		if !m.place.hosts[i].Leaving && !slices.Contains(targets, i) {
			free[i] = max(m.place.hosts[i].free, 0)
		}
	}
	for _, t := range targets {
		need := min(n, m.place.hosts[t].Slots) - room[t]
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
			moves = append(moves, moving{e, m.place.hosts[to].Name})
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
			len(e.job.Has) > m.place.fewestHosts(e.slots) && e.runsFrom <= m.now {
			m.makeRoom(e, e.slots)
		}
	}
}
