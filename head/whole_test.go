package head_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// makeGroup has the listed workers ask for a group, and returns its number. One of them must be on
// host A.
func (p *pair) makeGroup(list ...topo.WorkerID) topo.GroupID {
	for _, w := range list {
		p.agentOf(w).RequestGroup(w, list)
		p.runAll()
	}
	return newestAction[head.Grouped](p, "A").ID
}

// beginCall is a call of a step on a group that is not the last of the step.
func beginCall(g topo.GroupID) collective.Call {
	return collective.Call{Kind: collective.Barrier, DType: tensor.U8, Group: g,
		Flags: collective.Flags{More: true}}
}

// endCall is the call that ends a step on a group.
func endCall(g topo.GroupID) collective.Call {
	return collective.Call{Kind: collective.Barrier, DType: tensor.U8, Group: g,
		Flags: collective.Flags{Step: true}}
}

// startTraining makes the job elastic, with data of which a step takes 16 samples; data that cannot
// be fail p.t.
func (p *pair) startTraining() {
	data, err := cursor.New(100, 16, 7, true)
	if err != nil {
		p.t.Fatal(err)
	}
	p.agents["A"].ReportData(0, data, setting.Levers{})
	p.runAll()
}

// committedSamples returns how many samples count, as B knows; the job has data.
func (p *pair) committedSamples() uint64 { return p.agents["B"].State().Data.Committed() }

// A worker is lost before all are through with a step on a group: it is aborted on both hosts at
// once, and what the others do again on a group of theirs counts, without the samples of the lost
// one.
func TestAStepOnAGroupIsVoidWithALoss(t *testing.T) {
	for _, through := range []bool{false, true} {
		p := newPair(t)
		p.startTraining()
		g := p.makeGroup(0, 1, 2, 3)
		for w := range topo.WorkerID(4) {
			p.postAndRun(w, 1, beginCall(g))
		}
		p.postAndRun(0, 2, endCall(g))
		if through {
			p.postAndRun(3, 2, endCall(g))
		}
		p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
		p.runAll()
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
		g = p.makeGroup(0, 1, 2)
		for _, w := range []topo.WorkerID{0, 1, 2} {
			p.postAndRun(w, 3, beginCall(g))
		}
		for _, w := range []topo.WorkerID{0, 1, 2} {
			p.postAndRun(w, 4, endCall(g))
		}
		known := p.agents["B"].State()
		if known.Steps != 1 || known.View.Size() != 3 || p.committedSamples() != 12 {
			t.Errorf("%d steps, %v, %d samples; want 1 step, 3 workers and 12", known.Steps,
				known.View, p.committedSamples())
		}
	}
}

// When all are through it counts, whoever is lost then, and whoever was not quick enough to be
// told.
func TestAStepOnAGroupCounts(t *testing.T) {
	p := newPair(t)
	p.startTraining()
	g := p.makeGroup(0, 1, 2, 3)
	for w := range topo.WorkerID(4) {
		p.postAndRun(w, 1, beginCall(g))
		p.postAndRun(w, 2, endCall(g))
	}
	p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
	p.runAll()
	if got := p.agents["B"].State().Steps; got != 1 || p.committedSamples() != 16 {
		t.Errorf("%d steps, %d samples; want 1 and 16", got, p.committedSamples())
	}
}

// A step of some members of the job is none: the others would not know where the job is in its
// data.
func TestAStepTakesAllMembers(t *testing.T) {
	p := newPair(t)
	p.startTraining()
	g := p.makeGroup(1, 2)
	p.postAndRun(1, 1, endCall(g))
	p.postAndRun(2, 1, endCall(g))
	a := newestAction[*head.Apply](p, "A")
	if len(a.Parts) != 1 || a.Parts[0].Err == nil ||
		!strings.Contains(a.Parts[0].Err.Error(), "all members") ||
		p.agents["A"].State().Steps != 0 {
		t.Errorf("applied: %+v", a.Parts)
	}
}
