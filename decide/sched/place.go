package sched

import (
	"cmp"
	"slices"
)

// placement knows which slots of which hosts are free. That of a Machine is for the goroutine that
// uses it; View.placement makes one for a Share. Only set, remove, recount, count and changeTaken
// change what is free.
type placement struct {
	hosts   []spot // by name
	free    int    // slots that jobs can get
	slots   int    // of all hosts that are not leaving, free or not
	sums    []int  // slots of the largest host, of the two largest, and so on
	stale   bool   // whether sums is to be made anew
	leaving int    // number of hosts that are leaving
	chosen  []bool // by index of a host, of one call of grow; kept for its memory
}

// spot is a host and how many of its slots are free.
type spot struct {
	Host
	free int
}

// index returns the index of a host, and whether it is there.
func (p *placement) index(name string) (int, bool) {
	return slices.BinarySearchFunc(p.hosts, name, func(s spot, name string) int {
		return cmp.Compare(s.Name, name)
	})
}

// set adds a host or changes it; used is how many of its slots are taken.
func (p *placement) set(h Host, used int) {
	i, there := p.index(h.Name)
	if there {
		p.count(p.hosts[i], -1)
	} else {
		p.hosts = slices.Insert(p.hosts, i, spot{})
	}
	p.hosts[i] = spot{h, h.Slots - used}
	p.count(p.hosts[i], 1)
}

// remove takes a host out.
func (p *placement) remove(name string) {
	if i, there := p.index(name); there {
		p.count(p.hosts[i], -1)
		p.hosts = slices.Delete(p.hosts, i, i+1)
	}
}

// recount adds up the slots of all hosts anew.
func (p *placement) recount() {
	p.free, p.slots, p.leaving = 0, 0, 0
	for _, s := range p.hosts {
		p.count(s, 1)
	}
}

// count adds the slots of a host to those of all, where sign is 1, or takes them out, where it is
// -1.
func (p *placement) count(s spot, sign int) {
	p.stale = true
	if s.Leaving {
		p.leaving += sign
		return
	}
	p.free += sign * max(s.free, 0)
	p.slots += sign * s.Slots
}

// changeTaken counts slots as taken, where sign is 1, or as free again, where it is -1.
func (p *placement) changeTaken(places []Place, sign int) {
	for _, x := range places {
		i, there := p.index(x.Host)
		if !there {
			continue // the host is lost, and its slots with it
		}
		s := &p.hosts[i]
		before := max(s.free, 0)
		s.free -= sign * x.Slots
		if !s.Leaving {
			p.free += max(s.free, 0) - before
		}
	}
}

// fewestHosts returns on how many hosts n slots are at least, if all slots were free; one more than
// stay where these have fewer.
func (p *placement) fewestHosts(n int) int {
	if p.stale {
		p.stale, p.sums = false, p.sums[:0]
		for _, s := range p.hosts {
			if !s.Leaving {
				p.sums = append(p.sums, s.Slots)
			}
		}
		slices.SortFunc(p.sums, func(a, b int) int { return cmp.Compare(b, a) })
		for i := 1; i < len(p.sums); i++ {
			p.sums[i] += p.sums[i-1]
		}
	}
	i, _ := slices.BinarySearch(p.sums, n)
	return i + 1
}

// grow returns the places of a job that has some and gets more more slots; ok is false where so
// many are not free. The new ones are on hosts where the job is already, as far as possible, and
// else on as few as possible, of which the last one has the least room left (best fit).
func (p *placement) grow(has []Place, more int) (places []Place, ok bool) {
	if more > p.free {
		return has, false
	}
	places = slices.Clone(has)
	p.chosen = slices.Grow(p.chosen[:0], len(p.hosts))[:len(p.hosts)]
	clear(p.chosen)
	for i := range places {
		at, there := p.index(places[i].Host)
		if !there {
			continue
		}
		p.chosen[at] = true
		if !p.hosts[at].Leaving {
			n := min(max(p.hosts[at].free, 0), more)
			places[i].Slots += n
			more -= n
		}
	}
	for more > 0 {
		best := -1
		for i := range p.hosts {
			s := &p.hosts[i]
			if !s.Leaving && s.free > 0 && !p.chosen[i] &&
				(best < 0 || isBetterHost(s.free, p.hosts[best].free, more)) {
				best = i
			}
		}
		p.chosen[best] = true
		n := min(p.hosts[best].free, more)
		places = append(places, Place{p.hosts[best].Name, n})
		more -= n
	}
	return inOrder(places), true
}

// isBetterHost reports whether a host with a free slots is better for n slots than one with b: the
// smaller one of those that have room for all, and else the larger one.
func isBetterHost(a, b, n int) bool {
	if a >= n && b >= n {
		return a < b
	}
	return a > b
}

// shrink returns the places of a job that gives less slots back: first those on hosts that are
// leaving, then those on the hosts where it has the fewest, so that hosts become free.
func (p *placement) shrink(has []Place, less int) []Place {
	places := slices.Clone(has)
	slices.SortStableFunc(places, func(a, b Place) int {
		if x, y := p.leavingRank(a.Host), p.leavingRank(b.Host); x != y {
			return cmp.Compare(y, x)
		}
		return cmp.Or(cmp.Compare(a.Slots, b.Slots), cmp.Compare(b.Host, a.Host))
	})
	for i := range places {
		n := min(places[i].Slots, less)
		places[i].Slots -= n
		less -= n
	}
	places = slices.DeleteFunc(places, func(x Place) bool { return x.Slots == 0 })
	return inOrder(places)
}

// leavingRank returns 1 where a host is leaving or gone, and else 0.
func (p *placement) leavingRank(name string) int {
	if i, there := p.index(name); there && !p.hosts[i].Leaving {
		return 0
	}
	return 1
}

// stayingPlaces returns those of some places that are on hosts that are there and not leaving.
func (p *placement) stayingPlaces(has []Place) []Place {
	goes := func(x Place) bool { return p.leavingRank(x.Host) == 1 }
	if !slices.ContainsFunc(has, goes) {
		return has
	}
	return slices.DeleteFunc(slices.Clone(has), goes)
}

// excess returns how many more slots of hosts that are not leaving are taken than there are: where
// a host has got smaller, those who give up their slots there free none until it fits.
func (p *placement) excess() (n int) {
	for _, s := range p.hosts {
		if !s.Leaving {
			n += max(-s.free, 0)
		}
	}
	return n
}

// roomOfHosts returns how many slots of each host are free or had by a job, and the indexes of the
// hosts that are not leaving, that with the most room first.
func (p *placement) roomOfHosts(has []Place) (room, order []int) {
	for i, s := range p.hosts {
		if room = append(room, max(s.free, 0)); !s.Leaving {
			order = append(order, i)
		}
	}
	for _, x := range has {
		if i, there := p.index(x.Host); there {
			room[i] += x.Slots
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(room[b], room[a]) })
	return room, order
}

// inOrder sorts places by host, in place, and returns them; nil where there are none.
func inOrder(places []Place) []Place {
	if len(places) == 0 {
		return nil
	}
	slices.SortFunc(places, func(a, b Place) int { return cmp.Compare(a.Host, b.Host) })
	return places
}

// choose returns the places of a job that has some and gets more slots, as grow does. A job that
// starts with as many workers as its graph has gets other places where it is faster on them.
func (p *placement) choose(j *Job, has []Place, more int) (places []Place, ok bool) {
	places, ok = p.grow(has, more)
	if !ok || j.Graph == nil || len(has) > 0 || more != j.Graph.Workers || len(places) < 2 {
		return places, ok
	}
	if other := p.heavyEdge(j.Graph); p.stretch(j, other) < p.stretch(j, places) {
		return other, true
	}
	return places, true
}

// placesOfWorkers returns the index of the place of each worker of a job; nil where it has no
// graph, or another number of slots than that has workers.
func (j *Job) placesOfWorkers(places []Place) []int {
	if j.Graph == nil || countSlots(places) != j.Graph.Workers {
		return nil
	}
	return j.Graph.arrange(places)
}

// stretch returns how many times longer a step of a job takes on some places than on as few hosts
// as possible; with a graph, than on one host.
func (p *placement) stretch(j *Job, places []Place) float64 {
	if len(places) < 2 {
		return 1
	}
	if at := j.placesOfWorkers(places); at != nil {
		return j.Graph.stretch(at)
	}
	if j.Spread <= 1 || len(places) <= p.fewestHosts(countSlots(places)) {
		return 1
	}
	return j.Spread
}

// slower returns how many times longer a step of a job with n slots takes on some places than it
// would if all slots were free.
func (p *placement) slower(j *Job, places []Place) float64 {
	x := p.stretch(j, places)
	if x <= 1 || j.Graph == nil {
		return x
	}
	empty := &placement{hosts: slices.Clone(p.hosts)}
	for i := range empty.hosts {
		empty.hosts[i].free = empty.hosts[i].Slots
	}
	empty.recount()
	if best, ok := empty.choose(j, nil, countSlots(places)); ok {
		return x / empty.stretch(j, best)
	}
	return x
}
