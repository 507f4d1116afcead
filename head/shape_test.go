package head_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// meshJob is a job of one host on a mesh of which every worker alone has a part of the state. The
// goroutine of the test uses it.
type meshJob struct {
	t     *testing.T
	agent *head.Agent
	notes []string // what people were told of the mesh, oldest first
	parks []string // who wanted the job to be parked, when the members were told so
}

// newMeshJob begins a job of which all workers have joined, stated their layout and a place in the
// data. Its Arrange always gives the mesh "less", with all members, and says that state is lost.
// Data that cannot be fail the test.
func newMeshJob(t *testing.T, workers int) *meshJob {
	c := &meshJob{t: t}
	arrange := func(s head.Shape, mesh string, members topo.View) (meshes.Arranged, error) {
		to := meshes.Arranged{Mesh: "less"}
		for _, m := range members.Members {
			to.Order = append(to.Order, m.Worker)
		}
		return to, &meshes.StateLost{Why: "only the lost one had it"}
	}
	c.agent = head.New(
		head.Config{Self: "A", Slots: workers, Job: &member.Config{Want: workers},
			Arrange: arrange})
	place, err := cursor.New(1000, 10, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	c.begin(place, workers)
	return c
}

// begin has so many workers join, and state their layout and a place in the data.
func (c *meshJob) begin(place cursor.Cursor, workers int) {
	for w := range topo.WorkerID(workers) {
		c.agent.WorkerStarted(w)
		c.agent.ReportLayout(wire.Shaped{Worker: w, State: "state", Mesh: "whole", Ranks: workers})
		c.agent.ReportData(w, place, setting.Levers{})
		c.agent.WorkerAsks(w)
		c.runActions()
	}
}

// runActions carries out what the agent wants until it wants nothing more, and keeps c.notes and
// c.parks.
func (c *meshJob) runActions() {
	for actions := c.agent.Ready(); len(actions) > 0; actions = c.agent.Ready() {
		for _, a := range actions {
			switch a := a.(type) {
			case *head.Execute:
				c.agent.BatchExecuted(a.Batch, digest.Proof{})
			case *head.Apply:
				if a.Park != "" {
					c.parks = append(c.parks, a.Park)
				}
			case head.Meshed:
				c.notes = append(c.notes, string(a.Because))
			}
		}
	}
}

// postStep has a worker make a call of no elements that ends a step.
func (c *meshJob) postStep(w topo.WorkerID, ticket uint64, kind collective.Kind) {
	call := collective.Call{Kind: kind, DType: tensor.U8, Shape: []int{0}}
	call.Step = true
	c.agent.PostCall(&collective.Posted{Worker: w, Ticket: ticket, Call: call})
	c.runActions()
}

// loseWorker has worker w die, and the listed others drop the step, in their order.
func (c *meshJob) loseWorker(w topo.WorkerID, others ...topo.WorkerID) {
	c.agent.WorkerLost(w, "was killed by SIGKILL")
	c.runActions()
	for _, o := range others {
		c.agent.WorkerAsks(o)
		c.runActions()
	}
}

// statePlace has a worker state the place in the data that a checkpoint of this step has.
func (c *meshJob) statePlace(w topo.WorkerID, step uint64) {
	place := *c.agent.State().Data
	place.Step, place.Next = step, step*place.Batch
	c.agent.ReportData(w, place, setting.Levers{})
	c.runActions()
}

// TestRequestsToAJobThatStarts checks that a job is not said to have no mesh, or to make no steps,
// before that is known.
func TestRequestsToAJobThatStarts(t *testing.T) {
	c := &meshJob{t: t, agent: head.New(
		head.Config{Self: "A", Slots: 2, Job: &member.Config{Want: 2}})}
	for w := range topo.WorkerID(2) {
		c.agent.WorkerStarted(w)
		c.agent.WorkerAsks(w)
		c.runActions()
	}
	check := func(when, mesh, size string) {
		t.Helper()
		if err := c.agent.Reshape("dp=2", 2, "me"); err == nil ||
			!strings.Contains(err.Error(), mesh) {
			t.Errorf("%s: a reshape is answered with %v", when, err)
		}
		if err := c.agent.Resize(3, "me"); (err == nil) != (size == "") ||
			err != nil && !strings.Contains(err.Error(), size) {
			t.Errorf("%s: a resize is answered with %v", when, err)
		}
	}
	check("before any call", "still starting", "still starting")
	call := collective.Call{Kind: collective.Barrier, DType: tensor.U8, Shape: []int{0}}
	for w := range topo.WorkerID(2) {
		c.agent.PostCall(&collective.Posted{Worker: w, Ticket: 1, Call: call})
		c.runActions()
	}
	check("after a barrier", "still starting", "plain collectives")
	place, err := cursor.New(1000, 10, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	for w := range topo.WorkerID(2) {
		c.agent.ReportData(w, place, setting.Levers{})
		c.runActions()
	}
	check("before its first step", "still starting", "")
	for w := range topo.WorkerID(2) {
		c.postStep(w, 2, collective.Barrier)
	}
	check("after a step", "has no mesh", "")
}

// TestBackToACheckpoint follows a job of which a part of the state is lost: to the mesh that is
// left, and with the first statement of a place there, and no sooner, to the place.
func TestBackToACheckpoint(t *testing.T) {
	c := newMeshJob(t, 3)
	for step := range uint64(5) {
		for w := range topo.WorkerID(3) {
			c.postStep(w, 1+step, collective.Barrier)
		}
	}
	if known := c.agent.State(); known.Data.Step != 5 || known.Shape.Lost != "" {
		t.Fatalf("before any loss: %+v, shape %+v", known, known.Shape)
	}
	c.loseWorker(1, 0, 2)
	if s := c.agent.State().Shape; s.Lost != "only the lost one had it" || s.Next != "less" {
		t.Fatalf("after the loss: %+v", s)
	}
	c.statePlace(0, 2) // too early: nobody can have read it
	if known := c.agent.State(); known.Data.Step != 5 || known.Shape.Lost == "" {
		t.Fatalf("a statement before the reshape counts: %+v", known)
	}
	c.postStep(0, 7, collective.Reshape)
	c.postStep(2, 7, collective.Reshape)
	if s := c.agent.State().Shape; s.Mesh != "less" || s.Next != "" || s.Lost == "" ||
		len(s.Workers) != 2 {
		t.Fatalf("after the reshape: %+v", s)
	}
	if err := c.agent.Reshape("whole", 3, "somebody"); err == nil ||
		!strings.Contains(err.Error(), "going back to a checkpoint") {
		t.Errorf("a reshape meanwhile is answered with %v", err)
	}
	c.agent.WorkerStarted(3)
	c.statePlace(3, 0) // it has just begun, and knows of no checkpoint
	if known := c.agent.State(); known.Data.Step != 5 || known.Shape.Lost == "" {
		t.Fatalf("the statement of a worker that is no member counts: %+v", known)
	}
	c.statePlace(0, 3)
	c.statePlace(2, 3)
	known := c.agent.State()
	want := "the job went back from step 5 to the checkpoint of step 3, on mesh less, and makes " +
		"2 steps again: only the lost one had it"
	if known.Data.Step != 3 || known.Shape.Lost != "" || known.Shape.Back != want ||
		c.notes[len(c.notes)-1] != want {
		t.Fatalf("after the statements: %+v, shape %+v, notes %q", known.Data, known.Shape, c.notes)
	}
	for _, w := range []topo.WorkerID{0, 2} {
		c.postStep(w, 8, collective.Barrier)
	}
	if step := c.agent.State().Data.Step; step != 4 {
		t.Errorf("a step later the job is at step %d", step)
	}
	c.statePlace(0, 1) // nothing is lost any more
	if step := c.agent.State().Data.Step; step != 4 {
		t.Errorf("a late statement brings the job to step %d", step)
	}
}

// TestLossesOnTheWayBack: whoever is lost before the place is known, the others begin their way
// anew.
func TestLossesOnTheWayBack(t *testing.T) {
	c := newMeshJob(t, 4)
	for w := range topo.WorkerID(4) {
		c.postStep(w, 1, collective.Barrier)
	}
	c.loseWorker(1, 0, 2, 3)
	c.postStep(0, 3, collective.Reshape)
	c.loseWorker(2, 0, 3) // in the reshape
	if s := c.agent.State().Shape; s.Lost == "" || s.Next != "less" || len(s.Order) != 2 {
		t.Fatalf("after a loss in the reshape: %+v", s)
	}
	for _, w := range []topo.WorkerID{0, 3} {
		c.postStep(w, 5, collective.Reshape)
	}
	c.loseWorker(3, 0) // while the state is read
	if s := c.agent.State().Shape; s.Lost == "" || s.Next != "less" || len(s.Order) != 1 {
		t.Fatalf("after a loss while the state is read: %+v", s)
	}
	c.postStep(0, 7, collective.Reshape)
	c.statePlace(0, 0)
	if s := c.agent.State().Shape; s.Lost != "" ||
		!strings.Contains(s.Back, "makes 1 steps again") {
		t.Errorf("in the end: %+v", s)
	}
}

// TestParkOnAMesh: the members are told to park at the end of a step, and again when a worker is
// lost before they have made their checkpoint; no more when they have made another step.
func TestParkOnAMesh(t *testing.T) {
	c := newMeshJob(t, 3)
	step := func(ticket uint64, workers ...topo.WorkerID) {
		for _, w := range workers {
			c.postStep(w, ticket, collective.Barrier)
		}
	}
	check := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(c.parks, want) {
			t.Fatalf("%s: the members were told to park by %q, and not %q", when, c.parks, want)
		}
	}
	step(1, 0, 1, 2)
	if err := c.agent.Park("ada"); err != nil {
		t.Fatal(err)
	}
	check("within a step")
	step(2, 0, 1, 2)
	check("at its end", "ada")
	c.loseWorker(1, 0, 2) // while the checkpoint is made
	for _, w := range []topo.WorkerID{0, 2} {
		c.postStep(w, 4, collective.Reshape)
	}
	c.statePlace(0, 1)
	check("before a step on the other mesh", "ada")
	step(5, 0, 2)
	check("behind it", "ada", "ada")
	step(6, 0, 2) // their checkpoint was not whole
	c.loseWorker(2, 0)
	c.postStep(0, 8, collective.Reshape)
	c.statePlace(0, 1)
	step(9, 0)
	check("when they had trained on", "ada", "ada")
}

// TestUnprovedReshapeOutlivesItsHead: a reshape whose fingerprints differ does not count either
// where the head is lost before it has heard so: the next head adds them up as well.
func TestUnprovedReshapeOutlivesItsHead(t *testing.T) {
	arrange := func(_ head.Shape, _ string, members topo.View) (meshes.Arranged, error) {
		to := meshes.Arranged{Mesh: "dp=2", Order: members.Workers()}
		slices.Reverse(to.Order)
		return to, nil
	}
	p := &pair{t: t, seen: map[string][]head.Action{}, agents: map[string]*head.Agent{
		"A": head.New(head.Config{Self: "A", Slots: member.NoSlots, Arrange: arrange,
			Job: &member.Config{Want: 2}})}}
	hosts := []string{"A", "B", "C"}
	for _, host := range hosts[1:] {
		p.agents[host] = head.New(head.Config{Self: host, Slots: 1, Arrange: arrange})
	}
	for _, host := range hosts {
		for _, other := range hosts {
			if other != host {
				p.agents[host].LinkUp(other)
			}
		}
	}
	p.runAll()
	for w, host := range hosts[1:] {
		a := p.agents[host]
		id := topo.WorkerID(w)
		a.WorkerStarted(id)
		a.ReportLayout(wire.Shaped{Worker: id, State: "state", Mesh: "tp=2", Ranks: 2})
		a.ReportData(id, openData(), setting.Levers{})
		a.WorkerAsks(id)
		p.runAll()
	}
	post := func(ticket uint64, kind collective.Kind) {
		for w, host := range hosts[1:] {
			call := collective.Call{Kind: kind, DType: tensor.U8, Shape: []int{0}}
			call.Step = true
			p.agents[host].PostCall(
				&collective.Posted{Worker: topo.WorkerID(w), Ticket: ticket, Call: call})
		}
		p.runAll()
	}
	if err := p.agents["A"].Reshape("dp=2", 2, "somebody"); err != nil {
		t.Fatal(err)
	}
	post(1, collective.Barrier)
	if s := p.agents["B"].State().Shape; s.Next != "dp=2" {
		t.Fatalf("the job goes to %+v", s)
	}
	p.proof = digest.Proof{Old: digest.Sum{Value: 1, Bytes: 8}, New: digest.Sum{Value: 2, Bytes: 8}}
	p.spy = func(m wire.Message) {
		if f, is := m.(*wire.Frame); is && f.Up && slices.ContainsFunc(f.Payloads,
			func(b wire.Payload) bool { _, is := b.(*wire.Executed); return is }) {
			delete(p.agents, "A")
		}
	}
	post(2, collective.Reshape)
	p.spy = nil
	for _, host := range hosts[1:] {
		p.agents[host].LinkDown("A", "was killed")
		p.runAll()
	}
	for range 20 {
		for _, host := range hosts[1:] {
			p.agents[host].Tick()
			p.runAll()
		}
	}
	for _, host := range hosts[1:] {
		a := newestAction[*head.Apply](p, host)
		if s := p.agents[host].State().Shape; s.Mesh != "tp=2" || s.Next != "dp=2" {
			t.Errorf("%s is on %+v", host, s)
		}
		if len(a.Parts) != 1 || a.Parts[0].Err == nil ||
			!strings.Contains(a.Parts[0].Err.Error(), "a fingerprint differs") {
			t.Errorf("%s applies %+v", host, a)
		}
	}
}
