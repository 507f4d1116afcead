package head_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// openSync is what a program has opened that synchronises by DiLoCo after four steps.
var openSync = setting.Levers{Sync: "diloco:lr=0.7", Round: 4}

// newSyncPair returns a pair whose workers have opened how they synchronise, each after it has
// stated its data.
func newSyncPair(t testing.TB) *pair {
	p := newOpenPair(t)
	for w := range topo.WorkerID(4) {
		p.agentOf(w).ReportData(w, openData().WithRound(4), openSync)
		p.runAll()
	}
	return p
}

// A round is as the program states until a change of it, with the way to synchronise, is entered on
// all hosts with the end of a round. Its samples are those of its local steps.
func TestRoundChangesWithACommit(t *testing.T) {
	p := newSyncPair(t)
	all := []topo.WorkerID{0, 1, 2, 3}
	p.endStep(1, all...)
	check := func(round uint32, step, committed uint64) {
		t.Helper()
		for host := range p.agents {
			s := p.agents[host].State()
			if s.Data.Round != round || s.Data.Step != step || s.Data.Committed() != committed ||
				s.Levers.Sync != openSync.Sync || s.Levers.Batch != openBatch.Batch {
				t.Fatalf("%s is at %+v, with %+v", host, s.Data, s.Levers)
			}
		}
	}
	check(4, 4, 64)
	who := setting.Change{Phase: setting.Entered, Who: "ada"}
	p.mustChange("A", setting.Setting{Round: 2, Sync: "sma"}, who)
	check(4, 4, 64)
	p.endStep(2, all...)
	check(2, 8, 128)
	want := setting.Change{Number: 1, Phase: setting.Entered, Who: "ada", Step: 2,
		OptimizerSteps: 8, From: "round=4,sync=diloco:lr=0.7", To: "round=2,sync=sma"}
	if diff := cmp.Diff([]setting.Change{want}, p.changesOf("B")); diff != "" {
		t.Errorf("changes on B (-want +got): %s", diff)
	}
	p.agents["A"].WorkerLost(0, "was killed by SIGKILL")
	p.endStep(3, 1, 2, 3)
	check(2, 10, 128+24) // and the part of the lost worker of the whole round is left
	if left := p.agents["B"].State().Data.Left; len(left) != 1 || left[0].Len() != 8 {
		t.Errorf("%v is left", left)
	}
	p.mustChange("A", setting.Setting{Number: 1},
		setting.Change{Number: 1, Phase: setting.Reverted, Why: "it went wrong"})
	p.endStep(4, 1, 2, 3)
	check(4, 12, 152+32)
	err := p.agents["A"].Change(setting.Setting{Sync: "ssgd", Round: 3}, who)
	if err == nil || !strings.Contains(err.Error(), "which is round=1") {
		t.Errorf("ssgd in rounds: %v", err)
	}
}

// Workers state one way to synchronise, before the first step. Who states none leaves it to the
// others.
func TestWorkersStateOneWayToSynchronise(t *testing.T) {
	for _, x := range []struct {
		begun  bool
		levers setting.Levers
		want   string
	}{
		{false, openSync, ""}, {true, openSync, ""}, {true, openBatch, ""},
		{false, setting.Levers{Sync: "sma", Round: 4}, "by sync=diloco:lr=0.7,round=4; this"},
		{true, setting.Levers{Sync: "diloco:lr=0.7", Round: 5}, "lr=0.7,round=5; every"},
	} {
		p := newSyncPair(t)
		if x.begun {
			p.endStep(1, 0, 1, 2, 3)
		}
		p.seen = map[string][]head.Action{}
		p.agents["B"].ReportData(3, openData(), x.levers)
		p.runAll()
		why := newestAction[head.Refuse](p, "B").Why
		if (why != "") != (x.want != "") || !strings.Contains(why, x.want) {
			t.Errorf("%+v is refused with %q, expected %q", x.levers, why, x.want)
		}
	}
	p := newOpenPair(t)
	p.endStep(1, 0, 1, 2, 3)
	p.agents["B"].ReportData(3, openData().WithRound(4), openSync)
	p.runAll()
	if why := newestAction[head.Refuse](p, "B").Why; !strings.Contains(why, "in every step; this") {
		t.Errorf("after the first step it is refused with %q", why)
	}
	if s := p.agents["A"].State(); s.Data.Round != 0 || s.Levers.Sync != "" {
		t.Errorf("the job has %+v, at %+v", s.Levers, s.Data)
	}
}

// What a worker has opened outlives the head that alone knew of it, also where it had stated its
// data just before; and a checkpoint keeps its round and its way to synchronise.
func TestNextHeadKnowsTheRound(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		p := newPair(t)
		b := p.agents["B"]
		b.ReportData(2, openData(), openBatch)
		b.ReportData(2, openData().WithRound(4), openSync)
		want, round := setting.Setting{}, uint32(4)
		if checkpoint {
			want.Round, want.Sync, round = 2, "local", 2
			place := openData().WithRound(2).Commit(1, []bool{true})
			b.ReportPlace(2, place, setting.Setting{Sync: "local"}, openSync)
		}
		b.ReportData(3, openData(), openBatch)
		delete(p.agents, "A")
		b.LinkDown("A", "was silent for too long")
		b.ForceHead()
		s := b.State()
		if !b.Leads() || s.Levers.Sync != openSync.Sync || s.Setting.Round != want.Round ||
			s.Setting.Sync != want.Sync || s.Data.Round != round {
			t.Errorf("checkpoint %v: B goes on at %+v, %+v with %+v", checkpoint, s.Data, s.Setting,
				s.Levers)
		}
	}
}

// A place in rounds that cannot be is refused as it is read.
func TestRoundsThatCannotBe(t *testing.T) {
	data := openData()
	data.Round = cursor.MaxRound + 1
	for _, b := range []wire.Payload{
		wire.Stated{Data: data},
		wire.Stated{Data: openData(), Levers: setting.Levers{Sync: "diloco"}},
		wire.Stated{Data: openData(), Levers: setting.Levers{Sync: "lokal", Round: 2}},
		wire.Stated{Data: openData(), Sync: "diloco:speed=9"},
	} {
		m := &wire.Frame{Up: true, First: 1, Payloads: []wire.Payload{wire.Report{}, b}}
		if _, err := wire.Decode(wire.Append(nil, m)); err == nil {
			t.Errorf("%+v is read", b)
		}
	}
}
