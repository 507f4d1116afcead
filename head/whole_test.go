package head_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// group has the listed workers ask for a group, and returns its number.
func (p *pair) group(list ...topo.WorkerID) topo.GroupID {
	for _, w := range list {
		p.home(w).RequestGroup(w, list)
		p.run()
	}
	return find[head.Grouped](p, "A").ID
}

// begin is a call of a step on a group that is not the last of the step.
func begin(g topo.GroupID) collective.Call {
	return collective.Call{Kind: collective.Barrier, DType: tensor.U8, Group: g,
		Flags: collective.Flags{More: true}}
}

// end is the call that ends a step on a group.
func end(g topo.GroupID) collective.Call {
	return collective.Call{Kind: collective.Barrier, DType: tensor.U8, Group: g,
		Flags: collective.Flags{Step: true}}
}

// trains makes the job elastic, with data of which a step takes 16 samples.
func (p *pair) trains() {
	data, err := cursor.New(100, 16, 7, true)
	if err != nil {
		p.t.Fatal(err)
	}
	p.agents["A"].ReportData(0, data)
	p.run()
}

// committed is how many samples count, as B knows.
func (p *pair) committed() uint64 { return p.agents["B"].State().Data.Committed() }

// A worker is lost before all are through with a step on a group: it is aborted on both hosts at
// once, and what the others do again on a group of theirs counts, without the samples of the lost
// one.
func TestAStepOnAGroupIsVoidWithALoss(t *testing.T) {
	for _, through := range []bool{false, true} {
		p := newPair(t)
		p.trains()
		g := p.group(0, 1, 2, 3)
		for w := range topo.WorkerID(4) {
			p.post(w, 1, begin(g))
		}
		p.post(0, 2, end(g))
		if through {
			p.post(3, 2, end(g))
		}
		p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
		p.run()
		if got := p.agents["A"].State().Steps; got != 0 {
			t.Fatalf("the step counts: %d", got)
		}
		for host, of := range map[string][]uint64{"A": {1, 1, 2}, "B": {1}} {
			var failed []uint64
			for _, x := range p.seen[host] {
				if a, ok := x.(*head.Apply); ok {
					for _, part := range a.Parts {
						var lost *collective.LostError
						for _, c := range part.Calls {
							if c.Call.Far == nil && c.Worker != 3 && errors.As(part.Err, &lost) {
								failed = append(failed, c.Ticket)
							}
						}
					}
				}
			}
			if slices.Sort(failed); !slices.Equal(failed, of) {
				t.Errorf("on %s the calls %v fail, want %v", host, failed, of)
			}
		}
		g = p.group(0, 1, 2)
		for _, w := range []topo.WorkerID{0, 1, 2} {
			p.post(w, 3, begin(g))
		}
		for _, w := range []topo.WorkerID{0, 1, 2} {
			p.post(w, 4, end(g))
		}
		known := p.agents["B"].State()
		if known.Steps != 1 || known.View.Size() != 3 || p.committed() != 12 {
			t.Errorf("%d steps, %v, %d samples; want 1 step, 3 workers and 12", known.Steps,
				known.View, p.committed())
		}
	}
}

// When all are through it counts, whoever is lost then, and whoever was not quick enough to be
// told.
func TestAStepOnAGroupCounts(t *testing.T) {
	p := newPair(t)
	p.trains()
	g := p.group(0, 1, 2, 3)
	for w := range topo.WorkerID(4) {
		p.post(w, 1, begin(g))
		p.post(w, 2, end(g))
	}
	p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
	p.run()
	if got := p.agents["B"].State().Steps; got != 1 || p.committed() != 16 {
		t.Errorf("%d steps, %d samples; want 1 and 16", got, p.committed())
	}
}

// A step of some members of the job is none: the others would not know where the job is in its
// data.
func TestAStepTakesAllMembers(t *testing.T) {
	p := newPair(t)
	p.trains()
	g := p.group(1, 2)
	p.post(1, 1, end(g))
	p.post(2, 1, end(g))
	a := find[*head.Apply](p, "A")
	if len(a.Parts) != 1 || a.Parts[0].Err == nil ||
		!strings.Contains(a.Parts[0].Err.Error(), "all members") ||
		p.agents["A"].State().Steps != 0 {
		t.Errorf("applied: %+v", a.Parts)
	}
}
