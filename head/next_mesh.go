package head

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/topo"
)

// How the head chooses the mesh that a job goes to next. The methods of leader run on the thread of
// the Agent and do no I/O.

// chooseReshape has the members of the generation that comes go to another mesh, and reports
// whether they do: to the one that was requested, once they are enough, or else to one that they
// can hold, where hosts are to be left, or they are not those of the mesh: a worker can be lost
// when it has had its part in the step that ends. Or they take other ranks of the mesh that they
// have.
func (r *leader) chooseReshape(next topo.View) bool {
	if r.state.Shape == nil {
		return false
	}
	r.dropUnfitRequest(next)
	switch leaving := r.settleLeavingHosts(next); {
	case r.reachableMesh(next, leaving) != "":
		r.startReshape(next, leaving, r.requested.who+" asked for it")
	case len(leaving) > 0:
		r.startReshape(next, leaving, "the job leaves "+strings.Join(leaving, ", "))
	case !r.state.Shape.FitsMembers(next):
		r.startReshape(next, nil, "a worker is lost")
	default:
		return r.placeRanks(next)
	}
	return true
}

// placeRanks has the members take other ranks of the mesh that the job begins with, where those of
// its workers, which they have whatever they hold, are not the best in a redundant job, or not on
// hosts of the kinds that the mesh names; a job that lacks workers there is broken. It plans that
// once; every reshape places the ranks. True = it has set r.state.Shape anew.
func (r *leader) placeRanks(next topo.View) bool {
	s := r.state.Shape.WithKinds(r.machine.Hosts(), "")
	onOtherKinds := s.IsOnOtherKinds(next)
	if r.placed || s.Lost != "" || r.requested != nil || !s.Redundant && !onOtherKinds {
		return false
	}
	r.placed = true
	to, err := r.arrange(s, s.Mesh, next)
	if unfit := (*layout.KindError)(nil); errors.As(err, &unfit) {
		s.Kinds, s.Broken = nil, "the job cannot begin so: "+err.Error()
		r.emitMeshed("%s", s.Broken)
		r.state.Shape = &s
		return true
	}
	if err != nil || slices.Equal(to.Order, s.Workers) {
		return false
	}
	why := "the state can be on two hosts where it is on one"
	if onOtherKinds {
		why = "ranks are on hosts of other kinds than they are to be"
	}
	r.emitMeshed("%s; the workers take other ranks of mesh %s", why, s.Mesh)
	s.Next, s.Order = s.Mesh, to.Order
	r.state.Shape = &s
	return true
}

// arrange asks Arrange, with the kinds of the hosts.
func (r *leader) arrange(s Shape, mesh string, members topo.View) (meshes.Arranged, error) {
	return r.agent.cfg.Arrange(s.WithKinds(r.machine.Hosts(), mesh), mesh, members)
}

// startReshape sets r.state.Shape so that the members that come go to the mesh that was requested,
// or else to the one that those can hold that are on no host to be left. Without one the job is
// broken. A request that hosts are left before goes on afterwards. People are told why.
func (r *leader) startReshape(next topo.View, leaving []string, why string) {
	mesh := r.reachableMesh(next, leaving)
	s := r.state.Shape.WithKinds(r.machine.Hosts(), mesh)
	s.Leaving = leaving
	switch {
	case mesh != "":
		r.requested = nil
	case r.requested != nil && len(leaving) == 0:
		r.cancelRequest("a worker is lost that was to come to mesh " + r.requested.mesh)
	}
	var lost *meshes.StateLost
	to, err := r.arrange(s, mesh, next)
	s.Next, s.Order = to.Mesh, to.Order
	if to.Note != "" {
		why += "; " + to.Note
	}
	switch {
	case errors.As(err, &lost):
		s.Lost = lost.Why
		r.emitMeshed("%s; from mesh %s to %s, where only a checkpoint has all of the state: %s",
			why, s.Mesh, s.Next, s.Lost)
	case err != nil:
		err = fmt.Errorf("%w. Start the job again from a checkpoint", err)
		s.Next, s.Order, s.Leaving, s.Kinds, s.Broken = "", nil, nil, nil, err.Error()
		r.emitMeshed("%s, and the job cannot go on: %v", why, err)
	default:
		r.emitMeshed("%s; from mesh %s to %s", why, s.Mesh, s.Next)
	}
	r.state.Shape = &s
}
