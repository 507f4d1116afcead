package member_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// fleet is what a random test knows of the hosts of a job. Only the test's goroutine uses it, and
// its methods end the test t where the machine breaks an invariant.
type fleet struct {
	t       *rapid.T
	m       *member.Machine
	slots   map[string]int           // by host that is there
	most    map[string]int           // by host: the most slots that were allotted there
	leaving map[string]bool          // by host: whether it is drained
	starts  []topo.Member            // workers that are ordered and have not started
	alive   map[topo.WorkerID]string // by worker that runs: its host
	stopped map[topo.WorkerID]bool   // by worker: whether it was ordered to end
	open    []member.Record          // proposed; at most one
	last    topo.View                // the active generation
	over    bool                     // the job is over
}

// checkOrders takes the orders of the machine, fails the test for one that does not fit what is
// known, and keeps what follows from it in f.
func (f *fleet) checkOrders() {
	for _, a := range f.m.Ready() {
		switch a := a.(type) {
		case member.Start:
			for i := range a.Count {
				f.starts = append(f.starts,
					topo.Member{Worker: a.First + topo.WorkerID(i), Host: a.Host})
			}
			if f.room(a.Host) < a.Count || f.leaving[a.Host] {
				f.t.Fatalf("%d workers are to start on %q", a.Count, a.Host)
			}
		case member.Propose:
			if len(f.open) > 0 {
				f.t.Fatalf("%v is proposed while %v is", a.Record.View, f.open[0].View)
			}
			f.open = append(f.open, a.Record)
		case member.Activate:
			f.checkView(a.View)
		case member.Stop:
			if f.alive[a.Worker] == "" {
				f.t.Fatalf("w%d is to be stopped, and does not live", a.Worker)
			}
			f.stopped[a.Worker] = true
		case member.Finish:
			f.over = true
		}
	}
}

// checkRoom fails the test if a host has more workers than it has room for, those too that were
// ordered to end and have not ended.
func (f *fleet) checkRoom() {
	load := map[string]int{}
	for _, host := range f.alive {
		load[host]++
	}
	for host, n := range load {
		if n > max(f.slots[host], f.most[host]) {
			f.t.Fatalf("%d workers run on %s, which has room for %d", n, host, f.slots[host])
		}
	}
}

// room is how many workers a host has room for.
func (f *fleet) room(host string) int {
	if a := f.m.Allotment(); a != nil {
		for _, s := range a.Slots {
			if s.Host == host {
				return s.Slots
			}
		}
		return 0
	}
	return f.slots[host]
}

// checkView fails the test if a generation does not follow the last one, or has a worker twice;
// then it is the last one.
func (f *fleet) checkView(v topo.View) {
	if v.Generation != f.last.Generation+1 {
		f.t.Fatalf("generation %d follows %d", v.Generation, f.last.Generation)
	}
	ids := map[topo.WorkerID]bool{}
	for _, m := range v.Members {
		if ids[m.Worker] {
			f.t.Fatalf("w%d is twice in %v", m.Worker, v)
		}
		ids[m.Worker] = true
	}
	f.last = v
}

// Whatever hosts come, are lost or drained, however long decisions take and whoever takes over: one
// proposal is out at a time, orders fit the hosts, and when everything is decided the members live
// on hosts that are there, at most as many as are wanted; after a tick all hosts are recorded.
func TestInvariantsOnHosts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &fleet{t: t, slots: map[string]int{"a": rapid.IntRange(1, 3).Draw(t, "slots")},
			most: map[string]int{}, leaving: map[string]bool{}, alive: map[topo.WorkerID]string{},
			stopped: map[topo.WorkerID]bool{}}
		f.m = member.New(member.Config{Want: rapid.IntRange(1, 5).Draw(t, "want"),
			Spares: rapid.IntRange(0, 2).Draw(t, "spares"), Head: "a",
			Hosts: []member.Host{{Name: "a", Slots: f.slots["a"]}}})
		f.checkOrders()
		for i := range rapid.IntRange(1, 80).Draw(t, "events") {
			f.applyEvent(rapid.IntRange(0, 15).Draw(t, "what"), i)
			f.checkOrders()
			f.checkRoom()
		}
		f.decideAll()
		f.m.Tick()
		f.checkOrders()
		f.decideAll()
		for _, name := range sortedKeys(f.slots) {
			if f.last.Generation > 0 && !f.over && !f.m.Record().Belongs(name) {
				t.Fatalf("%s has come, and is not recorded in %v", name, f.m.Record())
			}
		}
		for _, m := range f.last.Members {
			if _, there := f.slots[m.Host]; f.alive[m.Worker] != m.Host || !there {
				t.Fatalf("w%d is a member of %v, and not there", m.Worker, f.last)
			}
		}
		if f.last.Generation > 0 && f.last.Size() == 0 && !f.over {
			t.Fatalf("nobody is left, and the job is not over")
		}
	})
}

// decideAll decides until nothing is proposed any more, and fails the test if that does not end.
func (f *fleet) decideAll() {
	for i := 0; len(f.open) > 0; i++ {
		if i > 20 {
			f.t.Fatal("there is always one more proposal")
		}
		f.decideOpen()
	}
}

// decideOpen decides the generation that is proposed, if there is one.
func (f *fleet) decideOpen() {
	if len(f.open) > 0 {
		g := f.open[0].View.Generation
		f.open = nil
		f.m.GenerationDecided(g)
		f.checkOrders()
	}
}

// applyEvent gives the machine an event of kind what, from 0 to 15, about random hosts and workers,
// and keeps in f what follows from it; i makes the name of a new host.
func (f *fleet) applyEvent(what, i int) {
	host := rapid.SampledFrom(sortedKeys(f.slots)).Draw(f.t, "host")
	var w topo.WorkerID
	if ids := sortedKeys(f.alive); len(ids) > 0 {
		w = rapid.SampledFrom(ids).Draw(f.t, "w")
	}
	switch {
	case what == 0 && len(f.starts) > 0:
		m := f.starts[0]
		f.starts = f.starts[1:]
		if _, there := f.slots[m.Host]; there {
			f.alive[m.Worker] = m.Host
			f.m.WorkerStarted(m.Worker, m.Host)
		}
	case what == 1 || what == 2:
		f.m.WorkerAsks(w)
	case what == 3:
		delete(f.alive, w)
		f.m.WorkerLost(w, "was killed")
	case what == 4:
		name := fmt.Sprint("h", i)
		f.slots[name] = rapid.IntRange(1, 3).Draw(f.t, "slots")
		f.m.SetHost(name, f.slots[name], "")
	case what == 5 && len(f.slots) > 1:
		f.loseHost(host)
		f.m.HostLost(host, "is gone")
	case what == 6:
		if f.m.Drain(host, "the test") == nil {
			f.leaving[host] = true
		}
	case what == 7:
		_ = f.m.Resize(rapid.IntRange(1, 6).Draw(f.t, "n"), "the test")
	case what == 8:
		f.m.ReachBoundary()
	case what == 9:
		f.m.BeginStep()
	case what == 10:
		f.decideOpen()
	case what == 12:
		f.m.Tick()
	case what == 13:
		f.m.JoinAllAtOnce(f.last.Size(), nil)
	case what == 14:
		f.m.Undrain(host)
		f.leaving[host] = false
	case what == 15:
		f.allot()
	case what == 11 && f.last.Generation > 0 && !f.over:
		f.takeOver(host)
	}
}

// allot gives the job some slots, on hosts that are there and on one that is not, or ends that.
func (f *fleet) allot() {
	slots := map[string]int{"h0": rapid.IntRange(0, 1).Draw(f.t, "h0")}
	for _, name := range sortedKeys(f.slots) {
		slots[name] = rapid.IntRange(0, 3).Draw(f.t, "allotted")
	}
	if rapid.IntRange(0, 5).Draw(f.t, "end") == 0 {
		slots = nil
	}
	if f.m.Allot(slots, "the test", "") == nil {
		for host, n := range slots {
			f.most[host] = max(f.most[host], n)
		}
	}
}

// loseHost removes a host and what runs or is ordered there from f.
func (f *fleet) loseHost(host string) {
	delete(f.slots, host)
	f.starts = slices.DeleteFunc(f.starts, func(m topo.Member) bool { return m.Host == host })
	for _, w := range sortedKeys(f.alive) {
		if f.alive[w] == host {
			delete(f.alive, w)
		}
	}
}

// takeOver replaces the machine by one that the head on another host restores from what was decided
// last. It hears of the workers again. A host that is not there, or not of the job, is ignored.
func (f *fleet) takeOver(host string) {
	r := f.m.Record()
	if !r.Belongs(host) || f.slots[host] == 0 {
		return
	}
	var gone []member.Gone
	for _, h := range r.Hosts {
		if f.slots[h.Name] == 0 {
			gone = append(gone, member.Gone{Host: h.Name, How: "is gone"})
		}
	}
	f.starts, f.open = nil, nil
	f.leaving = map[string]bool{}
	for _, h := range r.Hosts {
		f.leaving[h.Name] = h.Draining
	}
	f.m = member.Restore(r, host, gone...)
	for _, name := range sortedKeys(f.slots) {
		f.m.SetHost(name, f.slots[name], "")
	}
	for _, x := range r.View.Members {
		if f.alive[x.Worker] == "" {
			f.m.WorkerLost(x.Worker, "is gone")
		}
	}
	for _, w := range sortedKeys(f.alive) {
		switch _, is := r.View.Rank(w); {
		case is:
		case f.stopped[w]:
			f.m.WorkerLeaves(w, f.alive[w])
		default:
			f.m.WorkerStarted(w, f.alive[w])
		}
	}
	f.m.AllReported()
}

// sortedKeys lists the keys of a map in order.
func sortedKeys[K interface{ ~string | ~uint64 }, V any](m map[K]V) []K {
	var keys []K
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
