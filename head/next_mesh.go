package head

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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
	switch leaving := r.settleLeavingHosts(next); {
	case r.reachableMesh(next, leaving) != "":
		r.startReshape(next, leaving, r.requested.who+" asked for it")
	case len(leaving) > 0:
		r.startReshape(next, leaving, "the job leaves "+strings.Join(leaving, ", "))
	case !r.state.Shape.fitsMembers(next):
		r.startReshape(next, nil, "a worker is lost")
	default:
		return r.spreadReplicas(next)
	}
	return true
}

// spreadReplicas has the members of a redundant job take other ranks of the mesh that it begins
// with, where those of its workers, which they have whatever they hold, are not the best. It plans
// that once; every reshape places the ranks.
func (r *leader) spreadReplicas(next topo.View) bool {
	s := *r.state.Shape
	if !s.Redundant || r.placed || s.Lost != "" || r.requested != nil {
		return false
	}
	r.placed = true
	_, order, err := r.agent.cfg.Arrange(s, s.Mesh, next)
	if err != nil || slices.Equal(order, s.Workers) {
		return false
	}
	r.emitMeshed(
		"the state can be on two hosts where it is on one; the workers take other ranks of "+
			"mesh %s", s.Mesh)
	s.Next, s.Order = s.Mesh, order
	r.state.Shape = &s
	return true
}

// fitsMembers reports whether the ranks of the mesh are those of the members.
func (s *Shape) fitsMembers(v topo.View) bool {
	return slices.EqualFunc(s.Workers, v.Members, func(w topo.WorkerID, m topo.Member) bool {
		return w == m.Worker
	})
}

// startReshape sets r.state.Shape so that the members that come go to the mesh that was requested,
// or else to the one that those can hold that are on no host to be left. Without one the job is
// broken. A request that hosts are left before goes on afterwards. People are told why.
func (r *leader) startReshape(next topo.View, leaving []string, why string) {
	s := *r.state.Shape
	s.Leaving = leaving
	mesh := r.reachableMesh(next, leaving)
	switch {
	case mesh != "":
		r.requested = nil
	case r.requested != nil && len(leaving) == 0:
		r.cancelRequest("a worker is lost that was to come to mesh " + r.requested.mesh)
	}
	var err error
	var lost *StateLost
	switch s.Next, s.Order, err = r.agent.cfg.Arrange(s, mesh, next); {
	case errors.As(err, &lost):
		s.Lost = lost.Why
		r.emitMeshed("%s; from mesh %s to %s, where only a checkpoint has all of the state: %s",
			why,
			s.Mesh, s.Next, s.Lost)
	case err != nil:
		err = fmt.Errorf("%w. Start the job again from a checkpoint", err)
		s.Next, s.Order, s.Leaving, s.Broken = "", nil, nil, err.Error()
		r.emitMeshed("%s, and the job cannot go on: %v", why, err)
	default:
		r.emitMeshed("%s; from mesh %s to %s", why, s.Mesh, s.Next)
	}
	r.state.Shape = &s
}
