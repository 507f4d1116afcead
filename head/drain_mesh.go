package head

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// A host of a job with a mesh is left with a reshape: its workers hand their parts of the state to
// those on other hosts, on the largest mesh that these can hold. Spares that wait there take their
// ranks, if they are as many. The methods of leader run on the thread of the Agent and do no I/O.

// drainMeshHost asks for a host to be left by a job with a mesh; an error says why it will not be.
// That its step has a loss, or that the job is on its way to another mesh, only puts it off. who
// asks is part of the reason that people read.
func (r *leader) drainMeshHost(host, who string) error {
	switch s := r.state.Shape; {
	case r.machine.View().Generation == 0:
		return errEarly
	case s.Broken != "":
		return errors.New(s.Broken)
	case r.releasing != "":
		return errors.New("the job is ending")
	}
	if err := r.machine.CheckDrain(host); err != nil {
		return err
	}
	if err := r.checkFallbackMesh(host); err != nil {
		return err
	}
	err := r.machine.Drain(host, who)
	if r.requested != nil { // who was to come to it there comes elsewhere
		_ = r.machine.Resize(r.requested.workers, r.requested.who) // as it was allowed before
	}
	if r.requested != nil && r.machine.Unplaced() > 0 {
		r.cancelRequest("no other host than " + host + " has room for all workers of mesh " +
			r.requested.mesh)
	}
	r.carryOutOrders()
	r.advanceLog()
	return err
}

// checkFallbackMesh returns why there is no mesh that the job could go to without a host and those
// that are being left already; nil = there is one. It changes nothing.
func (r *leader) checkFallbackMesh(host string) error {
	s, view, leaving := *r.state.Shape, topo.View{}, 0
	if s.Next != "" {
		s = s.AfterReshape()
	}
	if s.Leaving = r.machine.DrainingHosts(); slices.Contains(s.Leaving, host) {
		return nil
	}
	s.Leaving = append(s.Leaving, host)
	for _, m := range r.machine.View().Members {
		if _, dead := r.dead[m.Worker]; dead || !slices.Contains(s.Workers, m.Worker) {
			continue
		}
		if view.Members = append(view.Members, m); slices.Contains(s.Leaving, m.Host) {
			leaving++
		}
	}
	if leaving == 0 {
		return nil
	}
	spares := slices.DeleteFunc(r.machine.WaitingWorkers(), func(w topo.WorkerID) bool {
		return slices.Contains(s.Leaving, r.home[w])
	})
	if r.requested == nil && len(spares) >= leaving {
		for _, w := range spares[:leaving] {
			view.Members = append(view.Members, topo.Member{Worker: w, Host: r.home[w]})
		}
	}
	to, err := r.arrange(s, "", view)
	return r.checkMeshWithout(host, to.Order, err)
}

// reportBlockedDrains tells that hosts are not left for now, since those who had taken over their
// state are lost. On a mesh settleLeavingHosts does.
func (r *leader) reportBlockedDrains() {
	hosts := r.machine.BlockedDrains()
	if r.state.Shape != nil || r.releasing != "" || len(hosts) == 0 {
		return
	}
	r.agent.emit(DrainBlocked{
		member.Because(fmt.Sprintf("%s cannot be left before another host has a "+
			"worker: have one start there (shoal resize), or let a host join (shoal agent --join)",
			strings.Join(hosts, ", ")))})
}

// checkMeshWithout returns why a host cannot be left, by what Arrange gave without it: the workers
// by rank, and err, of which a *StateLost is no reason, for the job can go on; nil = it can.
func (r *leader) checkMeshWithout(host string, order []topo.WorkerID, err error) error {
	lost := new(meshes.StateLost)
	switch least := r.machine.Record().Min; {
	case err != nil && !errors.As(err, &lost):
		return &meshes.UnfitError{Host: host, Why: err.Error()}
	case len(order) < least:
		return &meshes.UnfitError{Host: host,
			Why: fmt.Sprintf("without it the mesh has %d ranks, and the job's minimum is %d "+
				"workers", len(order), least)}
	}
	return nil
}

// settleLeavingHosts lists the hosts that members of the generation that comes leave with the mesh
// that they go to. Since they were asked for, others can have been lost: hosts without which no
// mesh is left any more are kept, the newest first, and the membership is told that they stay.
func (r *leader) settleLeavingHosts(next topo.View) []string {
	hosts := r.machine.DrainingHosts()
	if len(hosts) == 0 || r.state.Shape.Broken != "" {
		return nil
	}
	hosts = slices.DeleteFunc(hosts, func(host string) bool { return !next.HasHost(host) })
	s := *r.state.Shape
	for ; len(hosts) > 0; hosts = hosts[:len(hosts)-1] {
		s.Leaving = hosts
		to, err := r.arrange(s, r.reachableMesh(next, hosts), next)
		newest := hosts[len(hosts)-1]
		if err = r.checkMeshWithout(newest, to.Order, err); err == nil {
			break
		}
		r.machine.Undrain(newest)
		r.emitMeshed("%v", err)
	}
	return hosts
}

// reachableMesh is the requested mesh, if there are workers for it on hosts that are not left, and
// of the kinds that it names; else "".
func (r *leader) reachableMesh(next topo.View, leaving []string) string {
	if r.requested == nil {
		return ""
	}
	n, have := meshes.CountByKind(r.machine.Hosts(), next, leaving)
	if n < r.requested.ranks || meshes.Parse(r.requested.mesh).CheckKinds(have) != nil {
		return ""
	}
	return r.requested.mesh
}
