package head

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// A job that states a layout has its state in parts on its workers, which a mesh arranges. It
// changes the mesh with a collective, Reshape, which ends with the generation of the new mesh; and
// a step in which a worker is lost is aborted, since nobody can do its part. docs/design/reshape.md
// has the protocol. The methods of Agent, leader and batch in this file run on the thread of the
// Agent, and do no I/O.

// Shape is which part of the state of a job is on which worker, as package meshes has it.
type Shape = meshes.Shape

// requestedMesh is a mesh that somebody asks for.
type requestedMesh struct {
	mesh  string // the mesh, as layout.ParseMesh reads it
	ranks int    // the number of its ranks
	who   string // who asks for it, as a person reads it
	// workers is how many there are to be before the job goes there. They can be more than the
	// ranks, where members are not on hosts of the kinds that the mesh names.
	workers int
}

// ReportLayout tells what a worker states of the layout of the job's state. Every worker must state
// the same; one that does not is told with Refuse.
func (a *Agent) ReportLayout(s wire.Shaped) {
	a.follower.shaped = &s
	a.sendToHead(s)
	a.finishInput()
}

// Reshape asks for another mesh, of so many ranks, on the head. Workers that it takes more start at
// once, those that it does not take are released when it is there. Elsewhere: ErrNotHead.
func (a *Agent) Reshape(mesh string, ranks int, who string) error {
	return a.askHead(func(r *leader) error {
		return r.requestReshape(requestedMesh{mesh, ranks, who, ranks})
	})
}

// RequestedMesh is the mesh that the job goes to when it has the workers, on the head; "" = none.
func (a *Agent) RequestedMesh() string {
	if a.leader == nil || a.leader.requested == nil {
		return ""
	}
	return a.leader.requested.mesh
}

// ShapelessError returns the answer to a request for another mesh in a job without a shape, by what
// is known of the job: whether it has no mesh is known when it has made a step.
func ShapelessError(known State) error {
	if known.Steps == 0 {
		return errors.New("the job is still starting: none of its workers has come to " +
			"shoal.train, which states the mesh; ask again when it trains")
	}
	return errors.New("this job has no mesh: its program states none, as shoal.train does")
}

// errShaped refuses another number of workers, which leaves open what becomes of the mesh.
var errShaped = errors.New("this job has a mesh, and each of its workers a part of the state: " +
	"say which mesh it should have, with shoal reshape")

// requestReshape records a request for another mesh, and asks the membership for workers that are
// missing; an error says why the job does not go there.
func (r *leader) requestReshape(w requestedMesh) error {
	switch s := r.state.Shape; {
	case s == nil:
		return ShapelessError(r.state)
	case r.machine.View().Generation == 0:
		return errEarly
	case s.Broken != "":
		return errors.New(s.Broken)
	case s.NeedsCheckpoint() && !r.machine.IsPaused():
		return errors.New("the job is going back to a checkpoint; ask again when it trains")
	case r.releasing != "":
		return errors.New("the job is ending")
	case s.Next != "" && !r.machine.IsPaused() || r.requested != nil:
		return fmt.Errorf("the job is on its way to mesh %s; ask again when it is there",
			cmp.Or(s.Next, r.agent.RequestedMesh()))
	}
	if err := r.machine.CheckSize(w.ranks); err != nil {
		return err
	}
	m := meshes.Parse(w.mesh)
	if err := m.CheckKinds(r.machine.RoomByKind(w.ranks)); err != nil {
		return err
	}
	r.machine.PreferKinds(m.Kinds())
	w.workers = r.machine.SizeFor(w.ranks, m.Kinds())
	if w.workers > r.machine.CountStaying() {
		if err := r.machine.Resize(w.workers, w.who); err != nil {
			return err
		}
	}
	r.requested = &w
	r.carryOutOrders()
	r.advanceLog()
	return nil
}

// OtherSize says of a mesh that it has so many ranks where the job has another number of workers.
func OtherSize(mesh string, ranks, workers int) string {
	return fmt.Sprintf("%q has %s, and the job %s: start it with %d, or state a mesh of %d",
		mesh, plural.Of(ranks, "rank"), plural.Of(workers, "worker"), ranks, workers)
}

// onShaped handles what a worker states of the layout: the first statement gives the job its shape,
// and a worker that contradicts it is refused.
func (r *leader) onShaped(s wire.Shaped, host string) {
	why := ""
	switch have := r.state.Shape; {
	case have == nil && r.state.Elastic:
		why = "the layout was stated when the job trained already; state it before its data"
	case have == nil && s.Ranks != r.state.View.Size():
		why = "mesh " + OtherSize(s.Mesh, s.Ranks, r.state.View.Size())
	case have == nil:
		r.state.Shape = &Shape{State: s.State, Mesh: s.Mesh, Workers: r.memberIDs(),
			Redundant: s.Redundant}
		r.news = true
		r.setElastic()
		r.machine.JoinAllAtOnce(s.Ranks, meshes.Parse(s.Mesh).Kinds())
	case have.State != s.State:
		why = "it states another layout, or other tensors, than the workers before it; every " +
			"worker must state the same"
	case r.state.Steps == 0 && have.Next == "" && have.Mesh != s.Mesh &&
		slices.Contains(have.Workers, s.Worker):
		why = fmt.Sprintf("it states mesh %s, the workers before it %s", s.Mesh, have.Mesh)
	}
	if why != "" {
		r.send(host, wire.Refuses{Worker: s.Worker, Why: why})
		return
	}
	r.learnLayout(s)
}

// learnLayout tells the shell the layout of the state, which only hosts with workers know, by what
// a worker has stated.
func (r *leader) learnLayout(s wire.Shaped) {
	if r.agent.cfg.Learn != nil && r.state.Shape != nil && r.state.Shape.State == s.State {
		r.agent.cfg.Learn(s.Layout)
	}
}

// adoptShaped handles what a host that reports has stated of the layout. Where the log there has a
// shape, that is no news, but this host may not know the layout.
func (r *leader) adoptShaped(rep wire.Report, host string) {
	switch {
	case rep.Shaped == nil:
	case rep.State.Shape == nil:
		r.onShaped(*rep.Shaped, host)
	default:
		r.learnLayout(*rep.Shaped)
	}
}

// setElastic makes the job one that survives losses of workers. Where every worker has a part of
// the state, collectives fail with a loss all the same, so the Shape of such a job is set before.
// The next entry tells it to the other hosts; r.news has one written where nothing else does.
func (r *leader) setElastic() {
	r.state.Elastic = true
	if r.state.Shape == nil {
		r.matcher.SetElastic()
	}
}

// acceptPlace makes a place in the data that a worker states the one of the job, if the job begins
// there, or goes back to it; else the job knows better. It opens what the worker says is open. An
// error says how the worker contradicts the others; then nothing has changed.
func (r *leader) acceptPlace(stated wire.Stated) error {
	have, place := r.state.Data, stated.Data
	err := cmp.Or(r.state.CheckData(place), r.state.CheckLevers(stated.Levers))
	if err != nil {
		return err
	}
	if r.state.OpensClosedLevers(stated.Levers) {
		r.state.OpenLevers(stated.Levers)
		r.tellSetting, r.news = true, true
	}
	switch {
	case have != nil && r.state.Shape.Reloads(stated.Worker):
		s := *r.state.Shape
		s.Back = fmt.Sprintf("the job went back from step %d to the checkpoint of step %d, on "+
			"mesh %s, and makes %d steps again: %s",
			have.Step, place.Step, s.Mesh, have.Step-min(place.Step, have.Step), s.Lost)
		s.Lost = ""
		r.state.Shape = &s
		r.emitMeshed("%s", s.Back)
	case have == nil || r.isResumePlace(place):
		r.setElastic()
	default:
		return nil
	}
	r.setPlace(stated)
	r.news = true
	return nil
}

// cancelUnreachableRequest cancels a request for which a worker is missing that was lost before it
// was a member.
func (r *leader) cancelUnreachableRequest() {
	if r.requested != nil && r.requested.workers > r.machine.CountExpected() {
		r.cancelRequest("a worker is lost that was to come to mesh " + r.requested.mesh)
	}
}

// dropUnfitRequest cancels the request of a mesh if the generation that comes has as many members
// as it waits for, on whatever hosts, and they are not on hosts of the kinds that it names.
func (r *leader) dropUnfitRequest(next topo.View) {
	if r.requested == nil {
		return
	}
	n, have := meshes.CountByKind(r.machine.Hosts(), next, nil)
	if err := meshes.Parse(r.requested.mesh).CheckKinds(have); n >= r.requested.workers &&
		err != nil {
		r.cancelRequest(err.Error())
	}
}

// cancelRequest cancels r.requested, which is not nil, and lets the workers go that were started
// for it. People are told why.
func (r *leader) cancelRequest(why string) {
	r.emitMeshed("the job keeps mesh %s, since %s", r.state.Shape.Mesh, why)
	r.machine.KeepMembers(member.Because(why))
	r.requested = nil
}

// livingMembers lists the members that are not lost. Of those that an earlier head has lost only
// the matcher knows.
func (r *leader) livingMembers() []topo.WorkerID {
	return slices.DeleteFunc(r.memberIDs(), func(w topo.WorkerID) bool {
		_, dead := r.dead[w]
		return dead || r.matcher.IsLost(w) && !r.aborted[w]
	})
}

// emitMeshed tells a person about the mesh, by an action.
func (r *leader) emitMeshed(format string, args ...any) {
	r.agent.emit(Meshed{member.Because(fmt.Sprintf(format, args...))})
}

// isReshape reports whether a batch brings the state to another mesh.
func (b *batch) isReshape() bool {
	n := len(b.sets)
	return n > 0 && len(b.sets[n-1].Calls) > 0 &&
		b.sets[n-1].Calls[0].Call.Kind == collective.Reshape
}

// errUnproved fails a reshape that has not brought the state to where it belongs.
var errUnproved = errors.New("the state on the new mesh is not the old one: a fingerprint " +
	"differs. Replicas of a tensor that should be the same are not, or the memory of a host is " +
	"faulty; the old state is as it was")

// revokeReshape takes back a batch with a reshape that nobody has committed: its calls fail with
// why, and the old state counts.
func (r *leader) revokeReshape(b *batch, why error) {
	b.sets[len(b.sets)-1].Err = why
	b.replaces, b.number, b.step = b.number, 0, false
	r.dispatchFree()
}

// abortReshape takes a reshape back that would count and leave the job without a part of its state,
// since the worker that has it on the new mesh is lost. An earlier head may have committed it, but
// then only hosts that are lost know: the state is the same on either mesh.
func (r *leader) abortReshape() {
	i := slices.IndexFunc(r.batches, func(b *batch) bool {
		return b.isReshape() && b.step && b.isDone() && !b.told
	})
	if i < 0 {
		return
	}
	s, living, left := r.state.Shape.AfterReshape(), r.livingMembers(), r.state.View
	left.Members = slices.DeleteFunc(slices.Clone(left.Members), func(m topo.Member) bool {
		return !slices.Contains(living, m.Worker)
	})
	if r.allLive(s.Workers) {
		return
	}
	if _, err := r.arrange(s, "", left); err != nil {
		r.revokeReshape(r.batches[i], &lostCall{"the reshape is taken back, since a worker is " +
			"lost that alone had a part of the state on the new mesh"})
	}
}

// allLive reports whether none of some members is lost.
func (r *leader) allLive(members []topo.WorkerID) bool {
	living := r.livingMembers()
	return !slices.ContainsFunc(members, func(w topo.WorkerID) bool {
		return !slices.Contains(living, w)
	})
}

// callOffReshape takes a reshape back in which a host cannot take its part: the others would wait
// for that without end. All members drop the step, as after a loss, and the job keeps its mesh, and
// the hosts that it was to leave. A job that has lost a worker of its mesh cannot keep that: it
// goes back to a checkpoint, for which nothing moves. People are told which host it is, and why.
func (r *leader) callOffReshape(b *batch, host, why string) {
	s := *r.state.Shape
	why = fmt.Sprintf("host %s cannot take its part in the reshape to mesh %s: %s", host, s.Next,
		why)
	if s.Lost == "" && !s.KeepsRanks() && r.allLive(s.Workers) {
		r.calledOff = true
		r.emitMeshed("the job keeps %s, since %s",
			strings.Join(append([]string{"mesh " + s.Mesh}, s.Leaving...), " and "), why)
	} else {
		s.Lost = cmp.Or(s.Lost, why)
		r.state.Shape = &s
	}
	r.revokeReshape(b, &lostCall{"the reshape is called off, since " + why})
}

// stayOnMesh sets r.state.Shape so that all members come to the mesh that the job has, with every
// rank on the worker that has it: they have dropped the step, and begin anew with groups of their
// own. Who has no rank is released then.
func (r *leader) stayOnMesh() {
	s := *r.state.Shape
	s.Next, s.Order, s.Leaving, s.Kinds = s.Mesh, s.Workers, nil, nil
	r.state.Shape = &s
}

// commitReshape commits a reshape: it makes the new mesh the mesh of the job, and the generation
// that goes with it its members. From there the job goes to a further mesh at once where one of
// them is lost.
func (r *leader) commitReshape(next topo.View, c wire.Commit, b *batch) {
	s := r.state.Shape.AfterReshape()
	r.state.Shape, r.placed = &s, true
	r.machine.PreferKinds(meshes.Parse(s.Mesh).Kinds())
	if r.requested != nil { // since before the job was there
		// one that is ending takes none anyway
		_ = r.machine.Resize(r.requested.workers, r.requested.who)
	}
	r.chooseReshape(next)
	r.commitView(next, c, b)
}

// droppedStep is why calls with a member fail that has dropped a step.
const droppedStep = "has dropped the step, of which a worker is lost,"

// dropStepOf records that a member drops the step, since somebody that it needs is lost, and fails
// its calls.
func (r *leader) dropStepOf(w topo.WorkerID) {
	r.aborted[w] = true
	delete(r.asked, w)
	r.addBatches(r.matcher.Abort(w, droppedStep, nil))
}

// abortStep aborts the step if a worker has dropped it and all members that are left have: they go
// on from its start, on the mesh that they can hold, or on the one that they have if a reshape was
// called off.
func (r *leader) abortStep() {
	if len(r.aborted) == 0 || len(r.batches) > 0 || r.state.View.Generation == 0 {
		return
	}
	left := r.livingMembers()
	if slices.ContainsFunc(left, func(w topo.WorkerID) bool { return !r.aborted[w] }) {
		return
	}
	if r.releasing != "" {
		clear(r.aborted)
		r.releaseAll(wire.Commit{}, nil)
		return
	}
	r.machine.Disarrange() // by a reshape that has failed
	keeps := r.calledOff && r.allLive(r.state.Shape.Workers)
	if keeps {
		for _, host := range r.state.Shape.Leaving {
			r.machine.Undrain(host)
		}
	}
	r.machine.ReachBoundary(left...)
	r.carryOutOrders()
	if r.machine.IsProposing() || r.machine.IsPaused() {
		return
	}
	// On a mesh a checkpoint that is made to park the job ends with the loss of a worker.
	r.parkBy, r.parking = cmp.Or(r.parkBy, r.parking), ""
	next := r.machine.View()
	r.dropUnfitRequest(next)
	if keeps {
		r.stayOnMesh()
	} else {
		r.startReshape(next, r.settleLeavingHosts(next),
			"the step is aborted, since a worker is lost")
	}
	r.calledOff = false
	clear(r.aborted)
	r.commitView(next, wire.Commit{Aborted: true}, nil)
	r.machine.BeginStep()
}
