// Package meshes has which part of the state of a job with a mesh is on which worker, and plans how
// the job goes to another mesh: who takes which rank, what moves between their memories, and in
// which turns. Nothing here does I/O.
package meshes

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/topo"
)

// Shape is which part of the state of a job is on which worker, and on which kinds of hosts its
// ranks are to be. It is not changed: another shape is another value. Any goroutine may call the
// functions of this file, which do not change what they are given.
type Shape struct {
	// State names the catalogue and the rules that the workers have stated.
	State string
	// Mesh is the mesh of the job, as layout.ParseMesh reads it.
	Mesh string
	// Workers has the worker of each rank of Mesh. Some may be lost.
	Workers []topo.WorkerID
	// Next is the mesh to go to when all members have called Reshape; "" = none.
	Next string
	// Order has the worker of each rank of Next; empty where Next is.
	Order []topo.WorkerID
	// Leaving are the hosts that have no rank of Next, because they are drained.
	Leaving []string
	// Broken says why the job cannot go on; "" = it can.
	Broken string
	// Lost says why the members do not have all of the state, so that a checkpoint must give it;
	// "" = they have it.
	Lost string
	// Back says, for people, how the job last went back to a checkpoint; "" = it never did.
	Back string
	// Redundant asks Arrange to place replicas on different hosts, wherever the members allow it.
	Redundant bool
	// Kinds are the hosts that take workers and whose kind is known, while the job goes to Next, if
	// Mesh or Next says on which kinds of hosts ranks are to be.
	Kinds []HostKind
}

// HostKind is the kind of a host.
type HostKind struct{ Host, Kind string }

// WithKinds returns the shape with the kinds of hosts, if its mesh or another one says on which
// kinds ranks are to be; s stays as it is.
func (s Shape) WithKinds(hosts []member.Host, mesh string) Shape {
	s.Kinds = nil
	if Parse(s.Mesh).Kinds() == nil && Parse(mesh).Kinds() == nil {
		return s
	}
	for _, h := range hosts {
		if h.Kind != "" && h.Slots != member.NoSlots {
			s.Kinds = append(s.Kinds, HostKind{h.Name, h.Kind})
		}
	}
	return s
}

// Parse reads the text of a mesh; one that cannot be read has no axes.
func Parse(text string) layout.Mesh {
	m, err := layout.ParseMesh(text)
	if err != nil {
		return nil
	}
	return m
}

// NeedsCheckpoint reports whether the workers are on their mesh, and must read the state from a
// checkpoint.
func (s *Shape) NeedsCheckpoint() bool { return s != nil && s.Lost != "" && s.Next == "" }

// Reloads reports whether a worker is one that reads the state from a checkpoint, and is to say at
// which place in the data it is.
func (s *Shape) Reloads(w topo.WorkerID) bool {
	return s.NeedsCheckpoint() && slices.Contains(s.Workers, w)
}

// RankCount returns how many ranks the mesh to go to has; without one, the mesh that there is.
func (s *Shape) RankCount() int {
	if s.Next != "" {
		return len(s.Order)
	}
	return len(s.Workers)
}

// Arrange decides which members take the ranks of a mesh: "" asks for the one that these members
// can hold. The head calls it on the thread of its agent, and waits for it. Those on hosts that are
// Leaving take none. With a *StateLost it returns them as well: there the job can go on, with the
// state of a checkpoint. A *layout.KindError says that members lack on hosts of a kind that the
// mesh names.
type Arrange func(s Shape, mesh string, members topo.View) (Arranged, error)

// Arranged is a mesh, and who takes its ranks.
type Arranged struct {
	Mesh  string
	Order []topo.WorkerID // by rank
	// Note says, for people, what the mesh has lost beside ranks; "" = nothing.
	Note string
}

// StateLost is the error of an Arrange that finds a part of the state on no member, and of every
// one for a shape that is Lost.
type StateLost struct{ Why string }

// Error implements error.
func (e *StateLost) Error() string { return e.Why }

// AfterReshape returns the shape after the reshape that is under way; s stays as it is.
func (s Shape) AfterReshape() Shape {
	s.Mesh, s.Workers, s.Next, s.Order, s.Leaving, s.Kinds = s.Next, s.Order, "", nil, nil, nil
	return s
}

// KeepsRanks reports whether the reshape that comes leaves every rank of the mesh on its worker, so
// that nothing moves between workers, and no plan is needed.
func (s *Shape) KeepsRanks() bool {
	return s.Next == s.Mesh && slices.Equal(s.Order, s.Workers)
}

// FitsMembers reports whether the ranks of the mesh are those of the members.
func (s *Shape) FitsMembers(v topo.View) bool {
	return slices.EqualFunc(s.Workers, v.Members, func(w topo.WorkerID, m topo.Member) bool {
		return w == m.Worker
	})
}

// IsOnOtherKinds reports whether some rank is on a host of another kind than the mesh says. The
// shape has the kinds of hosts.
func (s *Shape) IsOnOtherKinds(members topo.View) bool {
	m := Parse(s.Mesh)
	for rank, w := range s.Workers {
		kind := m.KindOf(rank)
		if i, is := members.Rank(w); kind != "" && is &&
			!slices.Contains(s.Kinds, HostKind{members.Members[i].Host, kind}) {
			return true
		}
	}
	return false
}

// CountByKind counts the members of a generation that are on none of the hosts that are left, and
// those of each kind of host.
func CountByKind(hosts []member.Host, v topo.View, leaving []string) (n int, have map[string]int) {
	kinds := map[string]string{}
	for _, h := range hosts {
		kinds[h.Name] = h.Kind
	}
	have = map[string]int{}
	for _, m := range v.Members {
		if !slices.Contains(leaving, m.Host) {
			n++
			have[kinds[m.Host]]++
		}
	}
	return n, have
}

// UnfitError says why a host of a job with a mesh is not left, or not any more: the others cannot
// hold a mesh.
type UnfitError struct{ Host, Why string }

// Error implements error.
func (e *UnfitError) Error() string {
	return fmt.Sprintf("the job needs %s: %s. Have more workers on other hosts first (shoal "+
		"reshape to a larger mesh, a host that joins, or --spares), and ask again", e.Host, e.Why)
}
