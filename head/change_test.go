package head_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// openBatch is what a program has opened that trains on batches of 8 to 64 samples.
var openBatch = setting.Levers{Batch: setting.Range{From: 8, To: 64}, Save: true}

// newOpenPair returns a pair that trains on 1000 samples, 16 a step, with the batch open. Its
// messages go through bytes.
func newOpenPair(t testing.TB) *pair {
	p := newPair(t)
	p.spy = func(m wire.Message) {
		if again, err := wire.Decode(wire.Append(nil, m)); err != nil {
			t.Fatalf("%+v: %v", m, err)
		} else if f, is := again.(*wire.Frame); is {
			*m.(*wire.Frame) = *f
		}
	}
	p.agents["A"].ReportData(0, openData(), openBatch)
	p.runAll()
	return p
}

// endStep has the listed workers end a step, whose calls have a ticket.
func (p *pair) endStep(ticket uint64, workers ...topo.WorkerID) {
	for _, w := range workers {
		c := wiretest.SumCall(topo.World)
		c.Step = true
		p.postAndRun(w, ticket, c)
	}
}

// changesOf lists the changes that a host has applied, in order.
func (p *pair) changesOf(host string) (list []setting.Change) {
	for _, x := range p.seen[host] {
		if a, ok := x.(*head.Apply); ok && a.Change != nil {
			list = append(list, *a.Change)
		}
	}
	return list
}

// mustChange asks the head for a change, which must be accepted.
func (p *pair) mustChange(host string, next setting.Setting, c setting.Change) {
	p.t.Helper()
	if err := p.agents[host].Change(next, c); err != nil {
		p.t.Fatal(err)
	}
	p.runAll()
}

// A change is entered with the end of a step, on all hosts alike, and measured until it ends.
func TestChangeIsEnteredWithAStep(t *testing.T) {
	p := newOpenPair(t)
	all := []topo.WorkerID{0, 1, 2, 3}
	p.endStep(1, all...)
	p.postAndRun(0, 2, beginCall(topo.World))
	p.mustChange("A", setting.Setting{Batch: 32, Save: 5},
		setting.Change{Phase: setting.Entered, Policy: "batch", Because: "noise"})
	if c, waits := p.agents["A"].RequestedChange(); !waits || c.Number != 1 {
		t.Errorf("change %+v waits: %v", c, waits)
	}
	for _, w := range all[1:] {
		p.postAndRun(w, 2, beginCall(topo.World))
	}
	for host := range p.agents {
		if s := p.agents[host].State(); s.Setting.Number != 0 || len(p.changesOf(host)) > 0 {
			t.Errorf("%s changes before the step ends: %+v", host, s)
		}
	}
	p.endStep(3, all...)
	entered := setting.Change{Number: 1, Phase: setting.Entered, Policy: "batch", Step: 2,
		From: "batch=16", To: "batch=32,save=5", Because: "noise"}
	for host := range p.agents {
		a := newestAction[*head.Apply](p, host)
		if a.Change == nil || cmp.Diff(entered, *a.Change) != "" || !a.Changed || a.Joined != 0 ||
			a.Data.Batch != 32 || a.Data.Next != 32 || a.Steps != 2 || len(a.Parts) != 2 {
			t.Errorf("%s applies %+v, change %+v", host, a, a.Change)
		}
		s := p.agents[host].State()
		want := setting.Setting{Number: 1, Batch: 32, Save: 5, Size: 4}
		if diff := cmp.Diff(want, s.Setting); diff != "" {
			t.Errorf("the setting on %s: %s", host, diff)
		}
		if s.First != 16 || s.Levers != openBatch || s.Trial == nil || s.Trial.Number != 1 {
			t.Errorf("%s knows %+v", host, s)
		}
	}
	p.mustChange("A", setting.Setting{}, setting.Change{Number: 1, Phase: setting.Kept,
		Because: "noise", Measured: 1.2, Steps: 64})
	for host := range p.agents {
		a := newestAction[*head.Apply](p, host)
		if a.Change == nil || a.Change.Phase != setting.Kept || a.Change.Measured != 1.2 ||
			a.Change.To != entered.To || a.Changed || a.Data.Batch != 32 || a.Trial != nil {
			t.Errorf("%s applies %+v, change %+v", host, a, a.Change)
		}
	}
	p.endStep(4, all...)
	if got := p.agents["B"].State().Data; got.Next != 64 {
		t.Errorf("a step of the new batch ends at %+v", got)
	}
}

// A change that goes back ends with a step, and the number stays; what a person asks for ends the
// trial of another change, and comes after that.
func TestChangesEnd(t *testing.T) {
	p := newOpenPair(t)
	all := []topo.WorkerID{0, 1, 2, 3}
	policy := setting.Change{Phase: setting.Entered, Policy: "batch"}
	p.mustChange("A", setting.Setting{Batch: 32}, policy)
	p.endStep(1, all...)
	if err := p.agents["A"].Change(setting.Setting{Batch: 64}, policy); err == nil ||
		!strings.Contains(err.Error(), "change 1 is under trial") {
		t.Errorf("a second trial of a policy: %v", err)
	}
	p.mustChange("A", setting.Setting{}, setting.Change{Number: 1, Phase: setting.Reverted})
	for _, phase := range []setting.Phase{setting.Entered, setting.Kept} {
		if err := p.agents["A"].Change(setting.Setting{Batch: 64}, setting.Change{Number: 1,
			Phase: phase, Who: "ada"}); err == nil ||
			!strings.Contains(err.Error(), "another change of the setting waits") {
			t.Errorf("%s while the end of a trial waits: %v", phase, err)
		}
	}
	p.endStep(2, all...)
	if s := p.agents["B"].State(); s.Setting.Batch != 0 || s.Setting.Number != 1 ||
		s.Trial != nil || s.Data.Batch != 16 {
		t.Errorf("after a change was reverted: %+v", s)
	}
	p.mustChange("A", setting.Setting{Batch: 32}, policy)
	p.endStep(3, all...)
	p.mustChange("A", setting.Setting{Batch: 8},
		setting.Change{Phase: setting.Entered, Who: "ada"})
	p.endStep(4, all...)
	p.mustChange("A", setting.Setting{}, setting.Change{Number: 3, Phase: setting.Void})
	var got []string
	for _, c := range p.changesOf("B") {
		got = append(got, strings.TrimSpace(strings.Join([]string{string(c.Phase), c.From, c.To,
			c.Why}, " ")))
	}
	if want := []string{"entered batch=16 batch=32", "reverted batch=16 batch=32",
		"entered batch=16 batch=32", "void batch=16 batch=32 ada asked for batch=8 meanwhile",
		"entered batch=32 batch=8", "void batch=32 batch=8"}; !slices.Equal(got, want) {
		t.Errorf("B applies %q, want %q", got, want)
	}
	if diff := cmp.Diff(p.changesOf("A"), p.changesOf("B")); diff != "" {
		t.Errorf("A and B apply other changes: %s", diff)
	}
}

// What cannot be is refused in words, and changes nothing.
func TestChangesAreRefused(t *testing.T) {
	person := setting.Change{Phase: setting.Entered, Who: "ada"}
	p := newOpenPair(t)
	a := p.agents["A"]
	if err := p.agents["B"].Change(setting.Setting{Batch: 32}, person); !errors.Is(err,
		head.ErrNotHead) {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"8–64":              a.Change(setting.Setting{Batch: 128}, person),
		"already: ":         a.Change(setting.Setting{Batch: 16}, person),
		"2 shares for 4":    a.Change(setting.Setting{Shares: []uint16{2, 1}}, person),
		"is closed":         a.Change(setting.Setting{Batch: 32, Round: 7}, person),
		"number that is":    a.Change(setting.Setting{Batch: 32}, withRate(person, math.NaN())),
		"no phase":          a.Change(setting.Setting{Batch: 32}, setting.Change{}),
		"not under trial":   a.Change(setting.Setting{}, setting.Change{Phase: setting.Kept}),
		"has not begun":     newAlone(t, 1).Change(setting.Setting{Batch: 32}, person),
		"states no data":    newPair(t).agents["A"].Change(setting.Setting{Batch: 32}, person),
		"the job is ending": endingPair(t).Change(setting.Setting{Batch: 32}, person),
		"is ending":         endingPair(t).CheckChange(setting.Setting{Batch: 32}, person),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := a.CheckChange(setting.Setting{Batch: 32}, person); err != nil {
		t.Error(err)
	}
	if _, waits := a.RequestedChange(); waits {
		t.Error("what was refused, or only checked, waits")
	}
	closed := newPair(t)
	closed.startTraining()
	if err := closed.agents["A"].Change(setting.Setting{Batch: 32}, person); err == nil ||
		!strings.Contains(err.Error(), "the batch is closed") {
		t.Error(err)
	}
	if err := closed.agents["A"].Change(setting.Setting{Save: 9}, person); err == nil ||
		!strings.Contains(err.Error(), "between checkpoints are closed") {
		t.Error(err)
	}
}

// endingPair returns the head of a pair that was asked to let its members go.
func endingPair(t testing.TB) *head.Agent {
	p := newOpenPair(t)
	if !p.agents["A"].ReleaseWorkers("you asked") {
		t.Error("the job cannot end")
	}
	return p.agents["A"]
}

// Who leads after a loss knows the setting and the change under trial, and goes on from there. A
// change that waits for the end of a step is lost with the head.
func TestChangeOutlivesItsHead(t *testing.T) {
	p := newOpenPair(t)
	p.mustChange("A", setting.Setting{Batch: 32},
		setting.Change{Phase: setting.Entered, Policy: "batch"})
	p.endStep(1, 0, 1, 2, 3)
	p.mustChange("A", setting.Setting{Batch: 64},
		setting.Change{Phase: setting.Entered, Who: "ada"})
	b := p.agents["B"]
	b.LinkDown("A", "was silent for too long")
	delete(p.agents, "A")
	b.ForceHead()
	for list := b.Ready(); len(list) > 0; list = b.Ready() {
		for _, x := range list {
			if a, is := x.(*head.Apply); is {
				p.seen["B"] = append(p.seen["B"], copyApply(a))
			}
		}
	}
	if s := b.State(); !b.Leads() || s.Setting.Batch != 32 || s.Trial == nil ||
		s.Levers != openBatch || s.First != 16 {
		t.Fatalf("B goes on from %+v", s)
	}
	if c, waits := b.RequestedChange(); waits {
		t.Errorf("B knows of %+v, which A was asked for", c)
	}
	if err := b.Change(setting.Setting{}, setting.Change{Number: 1,
		Phase: setting.Reverted}); err != nil {
		t.Fatal(err)
	}
	for w := range topo.WorkerID(2) {
		c := wiretest.SumCall(topo.World)
		c.Step = true
		b.PostCall(&collective.Posted{Worker: 2 + w, Ticket: 2, Call: c})
	}
	if s := b.State(); s.Data.Batch != 16 || s.Trial != nil || s.Steps != 2 {
		t.Errorf("after B has reverted the change: %+v", s)
	}
}

// A worker that comes later states what the program says, whatever the job has changed, and one
// that states something else is refused.
func TestJoinersStateTheBatchOfTheProgram(t *testing.T) {
	p := newOpenPair(t)
	p.mustChange("A", setting.Setting{Batch: 32},
		setting.Change{Phase: setting.Entered, Who: "ada"})
	p.endStep(1, 0, 1, 2, 3)
	for batch, refused := range map[uint64]bool{16: false, 32: true, 8: true} {
		p.seen = map[string][]head.Action{}
		data, _ := cursor.New(1000, batch, 7, true)
		p.agents["B"].ReportData(3, data, openBatch)
		p.runAll()
		if r := newestAction[head.Refuse](p, "B"); (r.Why != "") != refused {
			t.Errorf("batches of %d are refused with %q", batch, r.Why)
		}
	}
	data, _ := cursor.New(1000, 16, 7, true)
	p.agents["B"].ReportData(3, data, setting.Levers{Batch: setting.Range{From: 1, To: 99}})
	p.runAll()
	if r := newestAction[head.Refuse](p, "B"); !strings.Contains(r.Why, "8–64") {
		t.Errorf("another range is refused with %q", r.Why)
	}
	if got := p.agents["A"].State().Data.Batch; got != 32 {
		t.Errorf("the job has batches of %d", got)
	}
}

// The batch of a checkpoint counts where the program has opened the batch, and else the checkpoint
// is one of another job.
func TestBatchOfACheckpoint(t *testing.T) {
	for _, levers := range []setting.Levers{{}, openBatch} {
		p := newPair(t)
		data, _ := cursor.New(1000, 16, 7, true)
		for w := range topo.WorkerID(4) {
			p.agentOf(w).ReportData(w, data, levers)
			p.runAll()
		}
		place := data.Commit(1, []bool{true}).WithBatch(40)
		for w := range topo.WorkerID(4) {
			p.agentOf(w).ReportData(w, place, levers)
			p.runAll()
		}
		open, why := levers == openBatch, newestAction[head.Refuse](p, "B").Why
		if open != (why == "") {
			t.Errorf("with %+v the place is refused with %q", levers, why)
		}
		s := p.agents["B"].State()
		if open && (s.Data.Batch != 40 || s.Setting.Batch != 40 || s.First != 16) {
			t.Errorf("the job goes on at %+v", s)
		}
		if !open && (s.Data.Batch != 16 || s.Data.Step != 0) {
			t.Errorf("the job begins at %+v", s)
		}
	}
}

// A job that goes on from a checkpoint does so with its setting: a change that waits is dropped, as
// one of another setting, and shares for other workers than there are hinder no change.
func TestChangeAtTheBeginFromACheckpoint(t *testing.T) {
	p := newOpenPair(t)
	person := setting.Change{Phase: setting.Entered, Who: "ada"}
	p.mustChange("A", setting.Setting{Rate: 2}, person)
	data, _ := cursor.New(1000, 16, 7, true)
	place := data.Commit(1, []bool{true}).WithBatch(40).WithShares([]uint16{1, 2, 1})
	p.agents["A"].ReportPlace(0, place, setting.Setting{Rate: 1.7, Save: 90}, openBatch)
	p.runAll()
	if c, waits := p.agents["A"].RequestedChange(); waits {
		t.Errorf("change %+v waits", c)
	}
	p.endStep(1, 0, 1, 2, 3)
	next := p.agents["A"].State().Setting
	if next.Batch != 40 || next.Rate != 1.7 || next.Save != 90 || next.Number != 0 {
		t.Fatalf("the job goes on with %+v", next)
	}
	next.Batch = 48
	p.mustChange("A", next, person)
	p.endStep(2, 0, 1, 2, 3)
	if s := p.agents["B"].State(); s.Data.Batch != 48 || s.Setting.Number != 1 {
		t.Errorf("the job has %+v", s)
	}
}

// What the program states is known also where the head is lost before it has heard of it, and the
// place of a checkpoint has another batch.
func TestNextHeadKnowsTheBatchOfTheProgram(t *testing.T) {
	p := newPair(t)
	b := p.agents["B"]
	data, _ := cursor.New(1000, 16, 7, true)
	b.ReportData(2, data, openBatch)
	b.ReportData(2, data.Commit(1, []bool{true}).WithBatch(40), openBatch)
	delete(p.agents, "A")
	b.LinkDown("A", "was silent for too long")
	b.ForceHead()
	b.ReportData(3, data, openBatch)
	for list := b.Ready(); len(list) > 0; list = b.Ready() {
		for _, x := range list {
			if r, is := x.(head.Refuse); is {
				t.Errorf("worker %d is refused: %s", r.Worker, r.Why)
			}
		}
	}
	if s := b.State(); !b.Leads() || s.First != 16 || s.Setting.Batch != 40 || s.Data.Batch != 40 {
		t.Errorf("B leads: %v; the job goes on at %+v", b.Leads(), s)
	}
}

// Shares of work go with the workers that have them; one that comes gets the mean of the others.
func TestSharesGoWithTheirWorkers(t *testing.T) {
	p := newSyncPair(t)
	p.mustChange("A", setting.Setting{Batch: 24, Round: 1, Shares: []uint16{1, 4, 2, 5}},
		setting.Change{Phase: setting.Entered, Who: "ada"})
	p.endStep(1, 0, 1, 2, 3)
	p.agents["A"].WorkerLost(0, "was killed by SIGKILL")
	p.runAll()
	p.endStep(2, 1, 2, 3)
	check := func(when string, round uint32, want ...uint16) {
		t.Helper()
		for host := range p.agents {
			s := p.agents[host].State()
			if !slices.Equal(s.Setting.Shares, want) || !slices.Equal(s.Data.Shares, want) ||
				s.Data.Round != round || s.Setting.Number != 1 {
				t.Errorf("%s %s has shares %v, at %+v", when, host, s.Setting.Shares, s.Data)
			}
		}
	}
	check("after a loss", 1, 4, 2, 5)
	if err := p.agents["A"].Resize(4, "you"); err != nil {
		t.Fatal(err)
	}
	p.runAll()
	started := newestAction[head.Start](p, "A")
	p.agents["A"].WorkerStarted(started.First)
	data, _ := cursor.New(1000, 16, 7, true)
	p.agents["A"].ReportData(started.First, data, openBatch)
	p.agents["A"].WorkerAsks(started.First)
	p.runAll()
	p.endStep(3, 1, 2, 3)
	check("after a worker has come", 1, 4, 2, 5, 4)
}

// Where what lost workers left is a batch of its own, another batch waits for its end.
func TestChangeWaitsForAWholeBatch(t *testing.T) {
	p := newPair(t)
	data, _ := cursor.New(1000, 16, 7, true)
	data.Apart = true
	p.agents["A"].ReportData(0, data, openBatch)
	p.runAll()
	p.mustChange("A", setting.Setting{Batch: 32, Shares: []uint16{1, 2, 3, 4}},
		setting.Change{Phase: setting.Entered, Who: "ada"})
	p.endStep(1, 0, 1, 2)
	p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
	p.runAll()
	if s := p.agents["B"].State(); s.Steps != 1 || s.Data.Batch != 16 || len(s.Data.Left) != 1 {
		t.Fatalf("after a loss: %+v", s)
	}
	p.endStep(2, 0, 1, 2)
	if s := p.agents["B"].State(); s.Steps != 2 || s.Data.Batch != 32 || s.Trial == nil ||
		!slices.Equal(s.Data.Shares, []uint16{1, 2, 3}) {
		t.Errorf("after the batch was completed: %+v", s)
	}
}

// A change waits as long as somebody is ahead: at the end of a step after which a call of the next
// one is open, the members could not all have the new setting for that.
func TestChangeWaitsForAQuietStep(t *testing.T) {
	p := newOpenPair(t)
	p.mustChange("A", setting.Setting{Batch: 32}, setting.Change{Phase: setting.Entered, Who: "a"})
	p.endStep(1, 0)
	p.postAndRun(0, 2, beginCall(topo.World))
	p.endStep(1, 1, 2, 3)
	if s := p.agents["B"].State(); s.Steps != 1 || s.Data.Batch != 16 || s.Trial != nil {
		t.Errorf("a change is entered when worker 0 is in the next step: %+v", s)
	}
	for _, w := range []topo.WorkerID{1, 2, 3} {
		p.postAndRun(w, 2, beginCall(topo.World))
	}
	p.endStep(3, 0, 1, 2, 3)
	if s := p.agents["B"].State(); s.Steps != 2 || s.Data.Batch != 32 || s.Trial == nil {
		t.Errorf("a change is not entered behind a quiet step: %+v", s)
	}
}

// A host that comes while a change is under trial knows it, and the setting, and who has set it.
func TestJoiningHostKnowsTheSetting(t *testing.T) {
	p := newOpenPair(t)
	p.mustChange("A", setting.Setting{Batch: 32, Shares: []uint16{2, 1, 1, 1}},
		setting.Change{Phase: setting.Entered, Who: "ada", Because: "noise"})
	p.endStep(1, 0, 1, 2, 3)
	p.agents["C"] = head.New(head.Config{Self: "C", Slots: 1})
	for _, host := range []string{"A", "B"} {
		p.agents["C"].LinkUp(host)
		p.agents[host].LinkUp("C")
	}
	for range 3 {
		p.runAll()
		for _, a := range p.agents {
			a.Tick()
		}
	}
	a, c := p.agents["A"].State(), p.agents["C"].State()
	if diff := cmp.Diff(a, c); diff != "" || c.Setting.People["batch"] != 1 {
		t.Errorf("A and C know another state, %+v: %s", c, diff)
	}
}

// Texts of a change are cut to what a message may have, at the end of a character.
func TestTextsOfChangesAreCut(t *testing.T) {
	p := newOpenPair(t)
	long := strings.Repeat("ä", setting.MaxText)
	p.mustChange("A", setting.Setting{Batch: 32}, setting.Change{Phase: setting.Entered,
		Policy: long, Because: "\xff" + long, Alternatives: []string{long, "b", "c", "d"}})
	p.endStep(1, 0, 1, 2, 3)
	c := p.agents["B"].State().Trial
	cut := strings.Repeat("ä", setting.MaxText/2-2) + "…"
	if c == nil || c.Policy != cut || len(c.Alternatives) != 3 || c.Because != "?"+cut {
		t.Errorf("B knows of %+v", c)
	}
}
