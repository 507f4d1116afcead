package head

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/topo"
)

// flight is a set of collectives that are executed and committed together.
type flight struct {
	number   Flight // 0 = it waits for its workers to be free
	replaces Flight // what was tried before a host was lost
	sets     []collective.Ready
	hosts    []string
	waiting  map[string]bool // hosts that have not executed it
	step     bool            // a step ends with it
	told     bool            // the membership knows that the step is at its end
}

// flightNumber numbers the flights of a head.
func flightNumber(term topo.Generation, count uint64) Flight { return Flight(uint64(term)<<32 | count) }

// post hands a call to the matcher.
func (r *leader) post(c Call) {
	if _, _, ok := r.matcher.Index(c.Group, c.Worker); !ok || r.matcher.Gone(c.Worker) {
		return
	}
	r.sees(&c.Call)
	r.ready(r.matcher.Post(c.posted(), nil))
}

// sees makes the job elastic with the first call of a step.
func (r *leader) sees(c *collective.Call) {
	if c.More || c.Step {
		r.state.Elastic = true
		r.matcher.SetElastic()
	}
}

// ready makes flights of sets that are ready. A run of sets up to one that does not say More commits together.
func (r *leader) ready(sets []collective.Ready) {
	f := &flight{}
	for _, s := range sets {
		f.sets = append(f.sets, collective.Ready{Calls: slices.Clone(s.Calls), Err: s.Err})
		if s.Err == nil && s.Calls[0].Call.More {
			continue
		}
		f.step = s.Err == nil && s.Calls[0].Call.Step
		r.flights = append(r.flights, f)
		f = &flight{}
	}
	r.launch()
}

// launch sends off the flights whose workers are free: none of them takes part in one that is under way or waits longer. So what a
// worker has posted happens in its order.
func (r *leader) launch() {
	busy := map[topo.Worker]bool{}
	for _, f := range r.flights {
		free := true
		for w := range f.workers() {
			free = free && !busy[w]
			busy[w] = true
		}
		if f.number == 0 && free {
			r.takeOff(f)
		}
	}
}

func (r *leader) takeOff(f *flight) {
	r.count++
	f.number = flightNumber(r.term, r.count)
	f.hosts, f.waiting = r.concerned(f), map[string]bool{}
	e := Exec{Flight: f.number, Replaces: f.replaces, Hosts: slices.Clone(f.hosts), Without: r.missing(), Sets: wire(f.sets)}
	for _, h := range f.hosts {
		f.waiting[h] = true
	}
	for _, h := range f.hosts {
		r.send(h, e)
	}
}

// missing lists the hosts that are lost and belong to the generation that is decided.
func (r *leader) missing() (hosts []string) {
	for _, h := range sorted(r.cut) {
		if r.agent.Record().Belongs(h) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// wire is the sets of a flight as other hosts get them.
func wire(ready []collective.Ready) (sets []Set) {
	for _, s := range ready {
		set := Set{}
		if s.Err != nil {
			var lost *collective.LostError
			set.Err, set.Lost = s.Err.Error(), errors.As(s.Err, &lost)
		}
		for _, p := range s.Calls {
			set.Calls = append(set.Calls, far(p))
		}
		sets = append(sets, set)
	}
	return sets
}

// concerned lists the hosts that execute a flight: those of its workers, and for the world's sake those of all members, so that a
// commit means that each of them has the result.
func (r *leader) concerned(f *flight) []string {
	hosts := map[string]bool{}
	for w := range f.workers() {
		hosts[r.home[w]] = true
	}
	if f.world() {
		for _, m := range r.state.View.Members {
			if _, still := r.machine.View().Rank(m.Worker); still {
				hosts[cmp.Or(m.Host, r.home[m.Worker])] = true
			}
		}
	}
	maps.DeleteFunc(hosts, func(h string, _ bool) bool { return r.peers[h] == nil })
	return sorted(hosts)
}

// workers are those whose calls are in the flight.
func (f *flight) workers() map[topo.Worker]bool {
	set := map[topo.Worker]bool{}
	for _, s := range f.sets {
		for _, p := range s.Calls {
			set[p.Worker] = true
		}
	}
	return set
}

// world reports whether the flight has collectives of the world.
func (f *flight) world() bool {
	return slices.ContainsFunc(f.sets, func(s collective.Ready) bool {
		return s.Err == nil && s.Calls[0].Call.Group == topo.World && !s.Calls[0].Call.Kind.Pairwise()
	})
}

func (f *flight) done() bool { return f.number != 0 && len(f.waiting) == 0 }

func (r *leader) executed(n Flight, host string) {
	for _, f := range r.flights {
		if f.number == n {
			delete(f.waiting, host)
		}
	}
}

// refly mends the flights after the loss of a host. One that all other hosts have executed goes on: its result is there. Another is
// taken back, and what is left of it flies again: nobody can have committed it, since a commit takes all hosts.
func (r *leader) refly(host string, vanished []topo.Worker) {
	r.flights = slices.DeleteFunc(r.flights, func(f *flight) bool {
		took := slices.Contains(f.hosts, host)
		f.hosts = slices.DeleteFunc(f.hosts, func(h string) bool { return h == host })
		delete(f.waiting, host)
		switch {
		case f.number != 0 && !took:
			return false
		case f.done():
			return len(f.hosts) == 0
		}
		return r.ground(f, vanished)
	})
}

// ground takes a flight back, and from it the calls of workers that have vanished; it reports whether nothing is left.
func (r *leader) ground(f *flight, vanished []topo.Worker) (nothing bool) {
	var sets []collective.Ready
	for _, s := range f.sets {
		if s = r.matcher.Without(s, vanished); len(s.Calls) > 0 {
			sets = append(sets, s)
		}
	}
	f.sets = sets
	f.replaces, f.number, f.told = cmp.Or(f.number, f.replaces), 0, false
	if len(sets) == 0 {
		r.drop(f)
	}
	return len(sets) == 0
}

// drop tells the hosts that have begun a flight that it will not be.
func (r *leader) drop(f *flight) {
	for _, h := range f.hosts {
		r.send(h, Drops{f.replaces})
	}
}
