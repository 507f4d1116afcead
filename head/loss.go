package head

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// What the head does when a host is lost, or two hosts lose each other. The methods run on the
// thread of the Agent and do no I/O.

// onLinkLost records that a host says it has lost its link to another one, which is not lost.
func (r *leader) onLinkLost(from string, c wire.LinkLost) {
	if !r.lostHosts[c.Host] {
		r.linksDown[[2]string{from, c.Host}] = &linkDown{how: c.How}
	}
}

// linkDown is a link between two followers that one of them has lost.
type linkDown struct {
	how   string // how the link was lost, as a person reads it
	ticks int    // ticks since both hosts have told of the loss
}

// linkDownTicks is how long the head waits when two hosts have lost each other: the links of one
// that dies can go one after the other, and then it alone is lost.
const linkDownTicks = 6

// resolveLostLinks finds two hosts that have lost each other, as both say, and has one leave. If
// one is dead, the head hears of it by itself. Two that live cannot both stay: the one that came
// later goes, and never the head. Each call is a tick of their time.
func (r *leader) resolveLostLinks() {
	if len(r.linksDown) == 0 {
		return
	}
	for _, pair := range slices.SortedFunc(maps.Keys(r.linksDown), func(a, b [2]string) int {
		return slices.Compare(a[:], b[:])
	}) {
		stays, goes := pair[0], pair[1]
		if _, mutual := r.linksDown[[2]string{goes, stays}]; !mutual || r.peers[stays] == nil ||
			r.peers[goes] == nil || r.peers[stays].left || r.peers[goes].left {
			continue
		}
		if t := r.linksDown[pair]; t.ticks < linkDownTicks {
			t.ticks++
			continue
		}
		for _, h := range r.agent.Record().Hosts {
			if h.Name == stays {
				break
			} else if h.Name == goes {
				stays, goes = goes, stays
				break
			}
		}
		if goes == r.agent.cfg.Self {
			stays, goes = goes, stays
		}
		why := fmt.Sprintf("has no link to %s: %s", stays, r.linksDown[pair].how)
		// no generation tells it that the others go on without it
		if !r.agent.Record().Belongs(goes) {
			r.sendLeave(goes, wire.Leaves{
				Because: member.Because("this host " + why +
					"; have it reach all hosts of the job, and let it join again")})
			r.machine.HostLost(goes, why) // and none will
			continue
		}
		r.loseHost(goes, why)
	}
}

// loseHost counts a host as lost, with its workers and their memory, and does what follows from
// that. A second call changes nothing.
func (r *leader) loseHost(host, how string) {
	if r.lostHosts[host] {
		return
	}
	r.lostHosts[host] = true
	delete(r.peers, host)
	maps.DeleteFunc(r.linksDown, func(pair [2]string, _ *linkDown) bool {
		return pair[0] == host || pair[1] == host
	})
	r.machine.HostLost(host, how)
	if r.reports != nil {
		r.machine.ReserveNumbers(r.reports[host].Next)
		delete(r.reports, host)
		// Payloads of this host in late follow its report, which does not count any more.
		r.late = slices.DeleteFunc(r.late, func(w received) bool {
			if w.host == host {
				r.agent.pool.Release(w.payload)
			}
			return w.host == host
		})
		r.carryOutOrders()
		r.tryRecover()
		return
	}
	why := "is lost: its host " + host + " " + how
	var vanished []topo.WorkerID
	for _, w := range sortedKeys(r.home) {
		if r.home[w] == host {
			vanished = append(vanished, w)
			delete(r.asked, w)
			r.dead[w] = why
		}
	}
	r.cancelUnreachableRequest()
	r.reportBlockedDrains()
	if r.early != nil && slices.Contains(r.early.hosts, host) {
		r.withdrawEarly()
	}
	sets := r.matcher.LoseWorkersWithMemory(vanished, why, nil)
	r.redispatch(host, vanished)
	r.addBatches(sets)
	r.carryOutOrders()
	r.advanceLog()
}

// redispatch mends r.batches after the loss of a host, whose workers are vanished. One that all
// other hosts have executed goes on: its result is there. Another is withdrawn, and what is left of
// it is dispatched again: nobody can have committed it, since a commit takes all hosts.
func (r *leader) redispatch(host string, vanished []topo.WorkerID) {
	r.batches = slices.DeleteFunc(r.batches, func(b *batch) bool {
		took := slices.Contains(b.hosts, host)
		b.hosts, b.waiting = removeValue(b.hosts, host), removeValue(b.waiting, host)
		switch {
		case b.number != 0 && !took:
			return false
		case b.isDone() && !b.isReshape(): // a part of the new state is gone with the host
			return len(b.hosts) == 0
		}
		return r.withdrawBatch(b, vanished)
	})
}

// withdrawBatch takes a batch back, and removes the calls of workers that have vanished. It reports
// whether nothing is left.
func (r *leader) withdrawBatch(b *batch, vanished []topo.WorkerID) (nothing bool) {
	var sets []collective.Ready
	for _, s := range b.sets {
		if s = r.matcher.WithoutLost(s, vanished); len(s.Calls) > 0 {
			sets = append(sets, s)
		}
	}
	b.sets = sets
	b.replaces, b.number, b.told = cmp.Or(b.number, b.replaces), 0, false
	if n := len(sets); n > 0 && sets[n-1].Err != nil {
		b.step = false
	}
	if len(sets) == 0 {
		r.sendDrops(b)
	}
	return len(sets) == 0
}

// sendDrops has the hosts of b drop the batch that b replaces.
func (r *leader) sendDrops(b *batch) {
	for _, h := range b.hosts {
		r.send(h, wire.Drops{Batch: b.replaces})
	}
}
