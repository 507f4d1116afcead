package head

import (
	"errors"

	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
)

// What people and policies ask of the head. A job with a mesh is asked for another one, in
// shape.go. The methods run on the thread of the Agent and do no I/O.

// ErrNotHead answers a request that only the head can serve.
var ErrNotHead = errors.New("this host does not lead the job; shoal ps says which one does, " +
	"or why none does")

// askHead has the head do what somebody asks for, and what follows from that; elsewhere it returns
// ErrNotHead.
func (a *Agent) askHead(do func(r *leader) error) error {
	if !a.Leads() {
		return ErrNotHead
	}
	err := do(a.leader)
	a.finishInput()
	return err
}

// Resize asks for another number of workers, on the head; elsewhere it returns ErrNotHead, and so
// does Drain. who asks is part of the reason that people read.
func (a *Agent) Resize(n int, who string) error {
	return a.askHead(func(r *leader) error { return r.resize(n, who) })
}

// Drain asks for a host to be left, on the head: its members are released at the end of a step and
// replaced where there is room; on a mesh, when the others have their parts of the state. It is not
// left with a *meshes.UnfitError or a *member.NeededError: the others could not hold the state. A
// head that is drained hands over.
func (a *Agent) Drain(host, who string) error {
	return a.askHead(func(r *leader) error { return r.drain(host, who) })
}

// ReleaseWorkers lets every member go when the step ends that is under way, on the head; false in a
// job that has no steps or has not begun, and elsewhere.
func (a *Agent) ReleaseWorkers(why string) bool {
	ok := a.Leads() && a.leader.releaseWorkers(why)
	a.finishInput()
	return ok
}

// Park has the members make a checkpoint when the step ends that is under way, and end before their
// loops go on, on the head; elsewhere it returns ErrNotHead. who wants that is for people. Whether
// there is a checkpoint the members find out. Like what else is asked for, it is lost with the
// head. The step of a paused job ends for it, but not on a mesh, where the others have not all of
// the state.
func (a *Agent) Park(who string) error {
	return a.askHead(func(r *leader) error {
		err := r.checkPark()
		if err == nil {
			r.parkBy = who
			r.advanceLog()
		}
		return err
	})
}

// checkPark returns why the job cannot be parked; nil where it can, as far as the head knows.
func (r *leader) checkPark() error {
	switch {
	case r.releasing != "" || r.state.AllReleased != "":
		return errors.New("the job is ending")
	case r.machine.View().Generation == 0:
		return errEarly
	case r.state.Shape == nil:
		return r.checkResizable()
	case r.machine.IsPaused():
		return errors.New("the job is paused, so no step ends; ask again when it trains")
	case r.state.Shape.Broken != "":
		return errors.New(r.state.Shape.Broken)
	}
	return nil
}

// parksPaused reports whether the step ends though the members are too few to go on, since they are
// to be parked after it: they make no other one.
func (r *leader) parksPaused() bool {
	return r.parkBy != "" && r.state.Shape == nil && r.machine.IsPaused()
}

// enterPark has the members parked after the step that ends with the entry c of the log, if
// somebody wants that. Nobody joins them there, and nothing is under way.
func (r *leader) enterPark(c *wire.Commit) {
	if r.parkBy != "" {
		c.Park, c.Changed, r.parking, r.state.Joined = r.parkBy, true, r.parkBy, 0
		r.parkBy = ""
	}
}

// ForceHead makes this agent the head with whoever is left, though they are too few to be sure that
// no other head goes on. A person must know that the others are gone.
func (a *Agent) ForceHead() {
	record, known := a.acceptor.Record()
	if !known || a.left {
		return
	}
	proposed := a.proposer.Wanted() // of a head that cannot have it decided
	if a.leader == nil {
		proposed = a.proposeSelf(record)
	}
	if proposed != nil {
		a.sendDecision(*proposed)
		a.applyDecision(*proposed)
	}
	a.finishInput()
}

// releaseWorkers has every member let go when the step ends that is under way, and ends at once
// those who wait to become members; false in a job that has no steps, or has not begun. why is the
// reason for people, and is not empty.
func (r *leader) releaseWorkers(why string) bool {
	if !r.state.Elastic || r.machine.View().Generation == 0 {
		return false
	}
	r.releasing = why
	for _, w := range sortedKeys(r.asked) {
		r.stopWorker(member.Stop{Worker: w, Because: member.Because(why)})
	}
	r.advanceLog()
	return true
}

// errRigid refuses another size for a job that does not train in steps.
var errRigid = errors.New("this job cannot change its size: its workers call plain collectives; " +
	"a job that trains in steps (shoal.torch.loader, job.steps, client.Train) can")

// errEarly refuses changes while workers that the job begins with may be in their first step, of
// which the membership has not heard.
var errEarly = errors.New(
	"the job has not begun: not all of its first workers have joined; ask again when they have")

// errUnused refuses what errRigid does, as long as it is open whether the job trains in steps.
var errUnused = errors.New("this job cannot change its size yet: it is still starting, and its " +
	"workers have called nothing; ask again when it trains")

// checkResizable returns why nobody can take workers from the job now, or give it some; nil where
// somebody can.
func (r *leader) checkResizable() error {
	switch {
	case r.state.Shape != nil:
		return errShaped
	case r.machine.View().Generation == 0: // whether it has steps is not known
		return errEarly
	case !r.state.Elastic && r.count == 0:
		return errUnused
	case !r.state.Elastic:
		return errRigid
	}
	return nil
}

// drain asks for a host to be left, and carries out what the membership orders.
func (r *leader) drain(host, who string) error {
	if r.state.Shape != nil {
		return r.drainMeshHost(host, who)
	}
	if err := r.checkResizable(); err != nil {
		return err
	}
	err := r.machine.Drain(host, who)
	r.carryOutOrders()
	r.advanceLog()
	return err
}
