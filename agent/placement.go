package agent

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// placement is where a worker is on a mesh that stays. It is made on the engine's thread; its
// methods look at all tensors, and run on the session's goroutine. A nil placement has no answers.
type placement struct {
	layout *reshape.Layout
	rank   int // rank of the worker; -1 = the mesh does not need it
	// domain is the failure domain of each rank, a host or a worker by number, which is lost as
	// one; nil = the worker of some rank is lost already.
	domain []int
	// domainKind is what a failure domain is: "host" or "worker".
	domainKind string
	placed     bool // replicas were placed on two hosts, where that is possible
}

// placementOf finds where a worker is on the mesh of a shape, on the engine's thread. The result
// keeps nothing that changes. It is an error if no layout is known here.
func (d *driver) placementOf(shape *head.Shape, w topo.WorkerID) (*placement, error) {
	l, err := d.planner.Layout(shape.Mesh)
	if err != nil {
		return nil, err
	}
	at, hosts := meshes.LocateWorkers(shape, d.head.State().View)
	s := &placement{layout: l, rank: slices.Index(shape.Workers, w), placed: shape.Redundant}
	switch {
	case slices.Contains(at.Ranks, reshape.Lost):
	case len(hosts) > 1:
		s.domainKind = "host"
		for _, w := range at.Ranks {
			s.domain = append(s.domain, at.Hosts[w])
		}
	default:
		s.domainKind, s.domain = "worker", at.Ranks
	}
	return s, nil
}

// writtenMarks has a bit for each of the worker's tensors: 1 = the worker writes it into
// checkpoints.
func (s *placement) writtenMarks() []byte {
	if s == nil || s.rank < 0 {
		return nil
	}
	return ranks.ShareMarks(s.layout.Layout, s.rank)
}

// unreplicatedText says, to rank 0 only, what of the state is on one host, or in a job of one host
// with one worker, and is lost with it; "" = nothing.
func (s *placement) unreplicatedText() string {
	if s == nil || s.rank != 0 || s.domain == nil {
		return ""
	}
	bytes, tensors, first := s.layout.Unreplicated(s.domain)
	if bytes == 0 {
		return ""
	}
	said := fmt.Sprintf("%d bytes of %d tensors, %s the first, are on one %s only", bytes, tensors,
		first, s.domainKind)
	if n := bytes - s.layout.SingleRankBytes(); n > 0 && s.domainKind == "host" && !s.placed {
		said += fmt.Sprintf(" (%d of them on several workers there: shoal run --redundant can "+
			"have those on two hosts)", n)
	}
	return said
}
