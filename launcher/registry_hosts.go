package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The methods of registry in this file are about the hosts of the job: who leads, who has offered
// room, who is to leave. They may be called from any goroutine: they lock its mutex for a moment.
// What they return is a copy, but for the job of addOffer, which nobody changes.

// hostName is the name of this host in the job.
func (r *registry) hostName() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.host
}

// whoLeads is the host that leads, and whether that is this host; "" = nobody does, as far as is
// known.
func (r *registry) whoLeads() (leader string, here bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader, r.leader == r.host
}

// leads reports whether this host leads the job.
func (r *registry) leads() bool {
	_, here := r.whoLeads()
	return here
}

// addOffer registers the offer of a host. It returns what the job is; nil = that is not known.
func (r *registry) addOffer(host string, o offerMessage) *jobMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offers[host] = true
	if o.Machine != "" {
		r.machines[host] = o.Machine
	}
	delete(r.expected, host)
	return r.job
}

// succession is what a launcher has to do when another host leads. It belongs to who called
// setLeader.
type succession struct {
	workers []workerRecord // workers of this host, to introduce
	offer   offerMessage   // what to tell that host after them; its Slots are not filled in
	over    bool           // this host is not needed any more
	leaving bool           // this host was asked to leave
}

// setLeader makes a host the one that leads, and forgets what only the one before knew; hosts are
// those of the job. It returns false if that host leads already.
func (r *registry) setLeader(leader string, hosts []string) (s succession, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader == leader {
		return succession{}, false
	}
	r.leader = leader
	clear(r.offers)
	clear(r.machines)
	clear(r.expected)
	clear(r.denied)
	if leader == r.host {
		for _, host := range hosts {
			if host != r.host {
				r.expected[host] = true
			}
		}
	} else { // the new leader registers the other hosts' workers, and how they have ended
		r.followed = true
		maps.DeleteFunc(r.workers, func(_ int, w *workerRecord) bool { return w.host != r.host })
		r.dropEndings()
	}
	s = succession{offer: offerMessage{Known: r.job != nil},
		over: r.over, leaving: r.leaving}
	if r.machine != r.host {
		s.offer.Machine = r.machine
	}
	for _, w := range r.workers {
		s.workers = append(s.workers, *w)
	}
	return s, true
}

// dropEndings removes the endings of workers that are not known any more: if this host leads once
// more it is told of them once more. r.mu is held.
func (r *registry) dropEndings() {
	kept, before := []ending(nil), 0 // before the launcher began to stop
	for i, e := range r.endings {
		if r.workers[e.worker] == nil {
			continue
		}
		if kept = append(kept, e); i < r.stopping {
			before++
		}
	}
	r.endings, r.stopping = kept, min(r.stopping, before)
}

// forgetHost removes a host that is lost, or has left. It returns the workers that ran on that
// host, which stay, and whether that host led.
func (r *registry) forgetHost(host string) (workers []workerRecord, led bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if led = r.leader == host; led {
		r.leader, r.lastLost = "", host
	}
	delete(r.offers, host)
	delete(r.machines, host)
	delete(r.expected, host)
	delete(r.denied, host)
	for _, worker := range slices.Sorted(maps.Keys(r.workers)) {
		if w := r.workers[worker]; w.host == host && w.exit == nil {
			workers = append(workers, *w)
		}
	}
	return workers, led
}

// beginStuck registers that too few hosts are left to decide on what follows a generation, and
// reports whether that is new.
func (r *registry) beginStuck(generation uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	isNew := r.stuckAfter != generation
	r.stuckAfter = generation
	return isNew
}

// setHostNotNeeded registers that this host is not needed any more, and at the same moment why the
// job cannot go on here; nil = that is no failure.
func (r *registry) setHostNotNeeded(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.fatal == nil {
		r.fatal = err
	}
}

// setDrained registers that the job goes on without this host.
func (r *registry) setDrained() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shutdown.drained = true
}

// isDrained reports whether the job goes on without this host.
func (r *registry) isDrained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shutdown.drained
}

// setJobEnd registers that no worker is left to carry on; ok says that they finished their work. It
// returns whether another host leads.
func (r *registry) setJobEnd(ok bool) (follows bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.allLost, r.ended = !ok, true
	if follows = r.leader != r.host; follows {
		r.over = ok
	}
	return follows
}

// setLeaving registers that this host was asked to leave. It returns the host that leads, and
// whether that is this host.
func (r *registry) setLeaving() (leader string, here bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
	return r.leader, r.leader == r.host
}

// setNeeded registers whether the job needs a host that was asked to leave.
func (r *registry) setNeeded(host string, needed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.denied, host); needed {
		r.denied[host] = true
	}
}

// neededHosts lists the hosts that were asked to leave, and that the job needs.
func (r *registry) neededHosts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.denied))
}

// endsHere reports whether the job ends with this host's part in it. Otherwise another host goes on
// with the job.
func (r *registry) endsHere() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader == r.host && !r.over
}

// offeringHosts lists the hosts that have offered room.
func (r *registry) offeringHosts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.offers))
}

// allHosts lists the hosts of the job, sorted: those of a generation, those that have joined since,
// and this one.
func (r *registry) allHosts(generation []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.Concat(generation, slices.Collect(maps.Keys(r.offers)), []string{r.host})
	slices.Sort(list)
	return slices.Compact(list)
}

// findHost returns the host, of those given, that has a name in the job, else the one that calls
// itself so.
func (r *registry) findHost(name string, hosts []string) (host string, err error) {
	if slices.Contains(hosts, name) {
		return name, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var own []string
	for _, h := range hosts {
		if name != "" && (r.machines[h] == name || h == r.host && r.machine == name) {
			own = append(own, h)
		}
	}
	switch len(own) {
	case 0:
		return "", fmt.Errorf("no host called %q belongs to the job; its hosts are %s", name,
			strings.Join(hosts, ", "))
	case 1:
		return own[0], nil
	}
	return "", fmt.Errorf("%d hosts call themselves %s; in the job they are %s", len(own), name,
		strings.Join(own, ", "))
}
