package member_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// allotted is a job without faults whose slots somebody allots. Only the test's goroutine uses it,
// and its methods end the test t where the machine breaks an invariant.
type allotted struct {
	t       *rapid.T
	m       *member.Machine
	min     int
	orders  []topo.Member            // workers that have not started
	alive   map[topo.WorkerID]string // by worker that runs: its host
	waiting map[topo.WorkerID]bool   // by worker that has started: whether it has not asked
	stopped []topo.WorkerID          // that live and were ordered to end
	state   map[topo.WorkerID]bool   // members that have taken part in a step
	view    topo.View                // the active generation
}

// carryOutOrders carries out the orders of the machine. It fails the test where fewer members than
// the minimum are left, or none with the state of the job.
func (a *allotted) carryOutOrders() {
	for list := a.m.Ready(); len(list) > 0; list = a.m.Ready() {
		for _, o := range list {
			switch o := o.(type) {
			case member.Start:
				for i := range o.Count {
					a.orders = append(a.orders,
						topo.Member{Worker: o.First + topo.WorkerID(i), Host: o.Host})
				}
			case member.Stop:
				delete(a.waiting, o.Worker)
				a.stopped = append(a.stopped, o.Worker)
			case member.Propose:
				a.m.GenerationDecided(o.Record.View.Generation)
			case member.Activate:
				a.check(o.View)
			case member.Pause, member.Finish:
				a.t.Fatalf("nothing was lost, and the machine says %+v", o)
			}
		}
	}
}

// check checks a generation against the one before, and makes it the last one.
func (a *allotted) check(v topo.View) {
	has := func(m topo.Member) bool { return a.state[m.Worker] }
	if v.Size() < a.min {
		a.t.Fatalf("%v has fewer members than the minimum of %d", v, a.min)
	}
	if a.view.Generation > 0 && !slices.ContainsFunc(v.Members, has) {
		a.t.Fatalf("nobody of %v has the state of the job, which some of %v have", v, a.view)
	}
	a.view = v
}

// step lets some of what waits to happen happen, as the test draws, or all of it, and then ends a
// step.
func (a *allotted) step(all bool) {
	happens := func(what string) bool { return all || rapid.Bool().Draw(a.t, what) }
	for len(a.orders) > 0 && happens("start") {
		o := a.orders[0]
		a.orders = a.orders[1:]
		a.alive[o.Worker], a.waiting[o.Worker] = o.Host, true
		a.m.WorkerStarted(o.Worker, o.Host)
		a.carryOutOrders()
	}
	for _, w := range sortedKeys(a.waiting) {
		if happens("ask") {
			delete(a.waiting, w)
			a.m.WorkerAsks(w)
			a.carryOutOrders()
		}
	}
	for _, m := range a.view.Members {
		a.state[m.Worker] = true
	}
	a.m.ReachBoundary()
	a.carryOutOrders()
	a.m.BeginStep()
	for len(a.stopped) > 0 && happens("end") {
		w := a.stopped[0]
		a.stopped = a.stopped[1:]
		delete(a.alive, w)
		a.m.WorkerFinished(w)
		a.carryOutOrders()
	}
}

// Whatever slots a job is allotted, one allotment after another, done or not: there are never fewer
// members than the minimum, the state stays with one of them, and in the end each host has as many
// members as it has slots, and no worker lives beside them.
func TestAllotments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		a := &allotted{t: t, min: rapid.IntRange(1, 3).Draw(t, "min"),
			alive: map[topo.WorkerID]string{}, waiting: map[topo.WorkerID]bool{},
			state: map[topo.WorkerID]bool{}}
		a.m = member.New(member.Config{Want: rapid.IntRange(1, 5).Draw(t, "want"), Min: a.min,
			Head: "a", Hosts: []member.Host{{Name: "a", Slots: 5}}})
		hosts := 1
		a.carryOutOrders()
		a.step(true)
		last := map[string]int(nil)
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
			case what == 0 && hosts < len(names):
				a.m.SetHost(names[hosts], 1, "")
				hosts++
			case what < 3:
				slots := map[string]int{}
				for _, name := range names {
					slots[name] = rapid.IntRange(0, 2).Draw(t, name)
				}
				if a.m.Allot(slots, "the test", "") == nil {
					last = slots
				}
			}
			a.carryOutOrders()
			a.step(false)
		}
		for ; hosts < len(names); hosts++ {
			a.m.SetHost(names[hosts], 1, "")
		}
		a.carryOutOrders()
		before := a.view
		for range 6 {
			a.step(true)
		}
		if last == nil {
			return
		}
		have := map[string]int{}
		for _, m := range a.view.Members {
			have[m.Host]++
		}
		if fmt.Sprint(have) != fmt.Sprint(withoutZero(last)) ||
			len(a.alive) != a.view.Size() {
			t.Fatalf("%v, where %v were alive, has not come to slots %v: %d live", a.view, before,
				last, len(a.alive))
		}
	})
}

// withoutZero returns the slots of the hosts that have some.
func withoutZero(slots map[string]int) map[string]int {
	some := map[string]int{}
	for host, n := range slots {
		if n > 0 {
			some[host] = n
		}
	}
	return some
}
