package head_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// pair is a head A and a follower B whose messages arrive at once, with two workers each that take
// part: 0 and 1 on A, 2 and 3 on B.
//
// The goroutine of the test uses it.
type pair struct {
	t      testing.TB               // the test that its helpers fail
	agents map[string]*head.Agent   // by host
	seen   map[string][]head.Action // by host, the actions that runAll has kept
	spy    func(wire.Message)       // is called for each message before it is received; nil = none
	asked  []asked                  // what the head has wanted a route for
	proof  digest.Proof             // what each host proves of each batch that does not fail
}

// asked is what a head wants a route for.
type asked struct {
	kind         collective.Kind
	hosts, bytes int
}

// newPair returns a pair that has begun its job.
func newPair(t testing.TB) *pair { return newPairWithRoute(t, nil) }

// newPairWithRoute is newPair with another function that chooses routes; nil = the one of
// newPairWithoutWorkers. It fails t unless all four workers are members then.
func newPairWithRoute(t testing.TB,
	route func(kind collective.Kind, hosts, bytes int) collective.Route) *pair {
	p := newPairWithoutWorkers(t, route)
	for w := range topo.WorkerID(4) {
		p.agentOf(w).WorkerStarted(w)
		p.agentOf(w).WorkerAsks(w)
		p.runAll()
	}
	if got := p.agents["B"].State().View.String(); got != "generation 1: w0@A w1 w2@B w3" {
		t.Fatal(got)
	}
	return p
}

// newPairWithoutWorkers returns a pair whose agents know of each other, and have no workers yet.
// Where route is nil, the route is another one with every question, and the questions are kept in
// p.asked.
func newPairWithoutWorkers(t testing.TB,
	route func(kind collective.Kind, hosts, bytes int) collective.Route) *pair {
	p := &pair{t: t, seen: map[string][]head.Action{}}
	if route == nil {
		route = func(kind collective.Kind, hosts, bytes int) collective.Route {
			p.asked = append(p.asked, asked{kind, hosts, bytes})
			routes := collective.Candidates(hosts, bytes)
			return routes[(len(p.asked)-1)%len(routes)]
		}
	}
	p.agents = map[string]*head.Agent{
		"A": head.New(head.Config{Self: "A", Slots: 2, Job: &member.Config{Want: 4, Max: 8},
			Route: route}),
		"B": head.New(head.Config{Self: "B", Slots: 2}),
	}
	p.agents["A"].LinkUp("B")
	p.agents["B"].LinkUp("A")
	p.runAll()
	return p
}

// agentOf is the agent of the host of a worker.
func (p *pair) agentOf(w topo.WorkerID) *head.Agent {
	if w < 2 {
		return p.agents["A"]
	}
	return p.agents["B"]
}

// runAll delivers and executes until nothing is left to do, and keeps all other actions in p.seen.
func (p *pair) runAll() {
	for busy := true; busy; {
		busy = false
		for _, host := range slices.Sorted(maps.Keys(p.agents)) {
			for _, a := range p.agents[host].Ready() {
				busy = true
				switch a := a.(type) {
				case *head.Send:
					if p.spy != nil {
						p.spy(a.Message)
					}
					if to := p.agents[a.To]; to != nil { // else it is lost
						to.Receive(host, a.Message)
					}
				case *head.Execute:
					p.seen[host] = append(p.seen[host],
						&head.Execute{Batch: a.Batch, Hosts: slices.Clone(a.Hosts),
							Parts: copyParts(a.Parts), More: a.More})
					proof := p.proof
					if a.Parts[0].Err != nil {
						proof = digest.Proof{}
					}
					p.agents[host].BatchExecuted(a.Batch, proof)
				case *head.Apply:
					p.seen[host] = append(p.seen[host], copyApply(a))
				default:
					p.seen[host] = append(p.seen[host], a)
				}
			}
		}
	}
}

// copyApply copies an Apply, which the agent uses again.
func copyApply(a *head.Apply) *head.Apply {
	kept := *a
	kept.Parts = copyParts(a.Parts)
	return &kept
}

// copyParts copies the parts of a batch, with their calls.
func copyParts(parts []head.Part) (kept []head.Part) {
	for _, part := range parts {
		part.Of, part.Calls = slices.Clone(part.Of), slices.Clone(part.Calls)
		for i, p := range part.Calls {
			call := *p
			part.Calls[i] = &call
		}
		kept = append(kept, part)
	}
	return kept
}

// newestAction returns the newest action of a kind that runAll has kept for a host; the zero value
// = there is none.
func newestAction[A head.Action](p *pair, host string) (a A) {
	for _, x := range p.seen[host] {
		if y, ok := x.(A); ok {
			a = y
		}
	}
	return a
}

// postAndRun posts a call on the agent of a worker, and runs all that follows.
func (p *pair) postAndRun(w topo.WorkerID, ticket uint64, c collective.Call) {
	p.agentOf(w).PostCall(&collective.Posted{Worker: w, Ticket: ticket, Call: c})
	p.runAll()
}

// A call that members make on two hosts comes back on both, with the memory of those who are there.
func TestApplyHasTheMemoryOfItsHost(t *testing.T) {
	p := newPair(t)
	for w := range topo.WorkerID(4) {
		p.postAndRun(w, 1, wiretest.SumCall(topo.World))
	}
	for host, first := range map[string]int{"A": 0, "B": 2} {
		a := newestAction[*head.Apply](p, host)
		if len(a.Parts) != 1 || len(a.Parts[0].Calls) != 4 || a.Parts[0].Err != nil || a.Here {
			t.Fatalf("%s applies %+v", host, a)
		}
		if e := newestAction[*head.Execute](p, host); e.Batch != a.Batch ||
			!slices.Equal(e.Hosts, []string{"A", "B"}) ||
			!slices.Equal(a.Parts[0].Of, []int{0, 0, 1, 1}) {
			t.Errorf("%s executes on %v for %v", host, e.Hosts, a.Parts[0].Of)
		}
		for i, c := range a.Parts[0].Calls {
			if mine := i/2 == first/2; mine != (c.Call.In != nil) || c.Call.InLen() != 2 {
				t.Errorf("on %s the call of w%d has In %v of %d elements", host, c.Worker,
					c.Call.In, c.Call.InLen())
			}
		}
	}
}

// Who leads chooses the route of a batch, and all hosts are told the same one: it can be another
// one for the next batch.
func TestRouteComesWithTheBatch(t *testing.T) {
	p := newPair(t)
	routes := collective.Candidates(2, 8)
	for i := range routes {
		for w := range topo.WorkerID(4) {
			p.postAndRun(w, uint64(i+1), wiretest.SumCall(topo.World))
		}
		for host := range p.agents {
			if got := newestAction[*head.Execute](p, host).Parts[0].Route; got != routes[i] {
				t.Errorf("batch %d goes %v on %s, want %v", i, got, host, routes[i])
			}
		}
	}
	if want := (asked{collective.AllReduce, 2, 8}); len(p.asked) != len(routes) ||
		p.asked[0] != want {
		t.Errorf("the head was asked for %v, want each of %d times %v", p.asked, len(routes), want)
	}
}

// Ranks that disagree get an error on every host; one about a lost rank can be told apart.
func TestErrorsReachEveryHost(t *testing.T) {
	p := newPair(t)
	other := wiretest.SumCall(topo.World)
	other.Reduction = collective.Max
	p.postAndRun(0, 1, wiretest.SumCall(topo.World))
	p.postAndRun(2, 1, other)
	for host := range p.agents {
		a := newestAction[*head.Apply](p, host)
		if len(a.Parts) != 1 || a.Parts[0].Err == nil ||
			!strings.Contains(a.Parts[0].Err.Error(), "rank 2 called all_reduce(f32[2], max)") {
			t.Errorf("%s applies %+v", host, a.Parts)
		}
	}
	p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
	p.runAll()
	p.postAndRun(1, 1, other)
	p.postAndRun(0, 2, wiretest.SumCall(topo.World))
	a := newestAction[*head.Apply](p, "A")
	var lost *collective.LostError
	if len(a.Parts) != 1 || !errors.As(a.Parts[0].Err, &lost) ||
		!strings.Contains(a.Parts[0].Err.Error(), "was killed") {
		t.Errorf("after a loss: %+v", a.Parts)
	}
}

// A group that workers of two hosts ask for has one number, and each knows its place in it; a list
// that makes no sense gets an error.
func TestGroups(t *testing.T) {
	p := newPair(t)
	list := []topo.WorkerID{1, 2}
	for _, w := range list {
		p.agentOf(w).RequestGroup(w, list)
		p.runAll()
	}
	a, b := newestAction[head.Grouped](p, "A"), newestAction[head.Grouped](p, "B")
	if a.ID != b.ID || a.ID == topo.World || a.Self != 0 || b.Self != 1 || a.Err != nil ||
		b.Err != nil {
		t.Fatalf("groups %+v and %+v", a, b)
	}
	if self, size, ok := p.agents["B"].IndexInGroup(b.ID, 2); self != 1 || size != 2 || !ok {
		t.Errorf("w2 is number %d of %d, %v", self, size, ok)
	}
	if _, _, ok := p.agents["B"].IndexInGroup(77, 2); ok {
		t.Error("there is a group 77")
	}
	for _, w := range list {
		p.postAndRun(w, 1, wiretest.SumCall(a.ID))
	}
	if got := newestAction[*head.Apply](p, "B"); len(got.Parts) != 1 ||
		len(got.Parts[0].Calls) != 2 {
		t.Errorf("B applies %+v", got)
	}
	p.postAndRun(1, 2, wiretest.SumCall(a.ID))
	p.agentOf(1).Ungroup(1, a.ID) // a call is open
	p.agentOf(2).Ungroup(2, a.ID)
	p.runAll()
	if _, _, ok := p.agents["A"].IndexInGroup(a.ID, 1); !ok {
		t.Error("w1 has freed a group of which it has a call open")
	}
	if _, _, ok := p.agents["B"].IndexInGroup(a.ID, 2); ok {
		t.Error("w2 has a group that it has freed")
	}
	p.agents["B"].RequestGroup(3, []topo.WorkerID{3, 9})
	p.runAll()
	if got := newestAction[head.Grouped](p, "B"); got.Err == nil || got.Worker != 3 {
		t.Errorf("a group with w9: %+v", got)
	}
}

// A group is forgotten on all hosts when no member needs it, whoever leads then.
func TestGroupsAreFreed(t *testing.T) {
	p := newPair(t)
	list := []topo.WorkerID{1, 2}
	for _, w := range list {
		p.agentOf(w).RequestGroup(w, list)
		p.runAll()
	}
	id := newestAction[head.Grouped](p, "A").ID
	for i, w := range list {
		if n := p.agents["A"].Groups() + p.agents["B"].Groups(); n != 2 {
			t.Errorf("%d groups are known on the hosts after %d workers have freed it", n, i)
		}
		p.agentOf(w).Ungroup(w, id)
		p.runAll()
	}
	if n := p.agents["A"].Groups() + p.agents["B"].Groups(); n != 0 {
		t.Errorf("%d groups are known on the hosts when nobody needs them", n)
	}
}

// A batch of the head's host alone counts at once, and the host executes it then; one of another
// host alone is executed before. The others hear that it counts.
func TestBatchesOfOneHost(t *testing.T) {
	p := newPair(t)
	for host, list := range map[string][]topo.WorkerID{"A": {0, 1}, "B": {2, 3}} {
		for _, w := range list {
			p.agentOf(w).RequestGroup(w, list)
			p.runAll()
		}
		c := wiretest.SumCall(newestAction[head.Grouped](p, host).ID)
		p.seen = map[string][]head.Action{}
		for _, w := range list {
			p.postAndRun(w, 1, c)
		}
		for at := range p.agents {
			a, e := newestAction[*head.Apply](p, at), newestAction[*head.Execute](p, at)
			if mine := at == host; a == nil || a.Batch == 0 || mine != (len(a.Parts) == 1) ||
				a.Here != (mine && at == "A") || (e != nil) != (mine && at == "B") {
				t.Errorf("of a batch of %s alone, %s applies %+v and executes %+v", host, at, a, e)
			}
		}
	}
}

// The caller of PostCall may use the call again at once, whatever becomes of it; what is reported
// to a later head is the call as it was posted.
func TestPostCopies(t *testing.T) {
	p := newPair(t)
	shape := []int{2}
	posted := collective.Posted{Ticket: 1}
	for w := range topo.WorkerID(4) {
		posted.Worker, posted.Call = w, wiretest.SumCall(topo.World)
		posted.Call.Shape = shape
		p.agentOf(w).PostCall(&posted)
		posted.Call, shape[0] = collective.Call{}, 9
		p.runAll()
		shape[0] = 2
	}
	for host := range p.agents {
		for _, part := range newestAction[*head.Apply](p, host).Parts {
			for _, c := range part.Calls {
				if part.Err != nil || c.Call.Kind != collective.AllReduce ||
					!slices.Equal(c.Call.Shape, []int{2}) {
					t.Errorf("%s applies %+v, %v", host, c, part.Err)
				}
			}
		}
	}
}

// Workers that state different data cannot go on together: the one that is heard later is refused,
// on its own host.
func TestDifferentDataIsRefused(t *testing.T) {
	p := newPair(t)
	for w, samples := range []uint64{50, 50, 60} {
		d, err := cursor.New(samples, 5, 1, true)
		if err != nil {
			t.Fatal(err)
		}
		p.agentOf(topo.WorkerID(w)).ReportData(topo.WorkerID(w), d, setting.Levers{})
		p.runAll()
	}
	if r := newestAction[head.Refuse](p, "B"); r.Worker != 2 ||
		!strings.Contains(r.Why, "50 samples") {
		t.Errorf("refused: %+v", r)
	}
	if r := newestAction[head.Refuse](p, "A"); r.Why != "" {
		t.Errorf("refused: %+v", r)
	}
	if got := p.agents["B"].State().Data; got == nil || got.Samples != 50 {
		t.Errorf("B knows %+v", got)
	}
}

// What only the head can do, and what only a job with steps can do, is said.
func TestRequests(t *testing.T) {
	p := newPair(t)
	a, b := p.agents["A"], p.agents["B"]
	if err := b.Resize(3, "you"); !errors.Is(err, head.ErrNotHead) {
		t.Error(err)
	}
	if err := b.Drain("A", "you"); !errors.Is(err, head.ErrNotHead) {
		t.Error(err)
	}
	if a.Resize(3, "you") == nil || a.Drain("B", "you") == nil || a.ReleaseWorkers("you asked") ||
		b.ReleaseWorkers("you asked") {
		t.Error("a job without steps changes its size")
	}
	if !a.Leads() || b.Leads() || b.Head() != "A" || a.Machine() == nil || b.Machine() != nil {
		t.Error("who leads?")
	}
}
