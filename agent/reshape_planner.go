package agent

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// seated finds the workers of a shape among the members, whose hosts count from 0 in the order of
// their names.
func located(s *head.Shape, members topo.View) (at reshape.Placement, hosts []string) {
	for _, m := range members.Members {
		hosts = append(hosts, m.Host)
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	for _, m := range members.Members {
		at.Hosts = append(at.Hosts, slices.Index(hosts, m.Host))
	}
	for _, w := range s.Workers {
		i := slices.IndexFunc(members.Members, func(m topo.Member) bool { return m.Worker == w })
		at.Ranks = append(at.Ranks, i) // reshape.Gone where it is no member
	}
	for i, host := range hosts {
		if slices.Contains(s.Leaving, host) {
			at.Leaving = append(at.Leaving, i)
		}
	}
	at.Redundant = s.Redundant
	return at, hosts
}

// planned is a plan and the question that it answers.
type planned struct {
	old, new *reshape.Layout
	at       reshape.Placement
	change   *reshape.Change
}

// plan plans the way from the mesh of a shape to another. Who asks the same as the one before gets
// the same plan.
func (s *reshapePlanner) plan(shape *head.Shape, mesh string,
	at reshape.Placement) (*reshape.Change,
	error) {
	old, err := s.on(shape.Mesh)
	if err != nil {
		return nil, err
	}
	new, err := s.on(mesh)
	if err != nil {
		return nil, err
	}
	if p := s.planned; p.change != nil && p.old == old && p.new == new &&
		reflect.DeepEqual(p.at, at) {
		return p.change, nil
	}
	change, err := reshape.Plan(old, new, at)
	if err != nil {
		return nil, err
	}
	s.planned = planned{old, new, at, change}
	return change, nil
}

// arrange is head.Arrange. The data parallel axis is the one that can have fewer ranks at no loss:
// it is called dp.
func (s *reshapePlanner) arrange(shape head.Shape, mesh string, members topo.View) (next string,
	order []topo.WorkerID, err error) {
	next, why := mesh, shape.Lost
	var takers []topo.WorkerID
	for _, m := range members.Members {
		if !slices.Contains(shape.Leaving, m.Host) {
			takers = append(takers, m.Worker)
		}
	}
	if next == "" {
		var ok bool
		if next, ok = reshape.LargestMesh(shape.Mesh, "dp", len(takers), func(mesh string) bool {
			_, err := s.on(mesh)
			return err == nil
		}); !ok {
			return "", nil, fmt.Errorf(
				"mesh %s cannot do with %s, and the layout has no smaller one", shape.Mesh,
				plural.Of(len(takers), "worker"))
		}
	}
	if why == "" {
		at, _ := located(&shape, members)
		change, err := s.plan(&shape, next, at)
		var lost *plan.LostError
		switch {
		case err == nil:
			return next, ordered(change, members), nil
		case !errors.As(err, &lost):
			return "", nil, err
		}
		why = fmt.Sprintf(
			"mesh %s cannot do with %s, as only lost ones had %d bytes of %s, %s the first",
			shape.Mesh, plural.Of(members.Size(), "worker"), lost.Bytes,
			plural.Of(len(lost.Tensors), "tensor"), lost.Tensors[0])
	}
	l, err := s.on(next)
	if err != nil || l.Ranks > len(takers) {
		return "", nil, errors.Join(err,
			fmt.Errorf("mesh %s is more than %s can hold", next, plural.Of(len(takers), "worker")))
	}
	order = takers[:l.Ranks]
	if shape.Redundant { // as if they were on the mesh already
		there := head.Shape{Mesh: next, Workers: order, Leaving: shape.Leaving, Redundant: true}
		at, _ := located(&there, members)
		change, err := s.plan(&there, next, at)
		if err != nil {
			return "", nil, err
		}
		order = ordered(change, members)
	}
	return next, order, &head.StateLost{Why: why}
}

// ordered is the workers of the new ranks.
func ordered(c *reshape.Change, members topo.View) (order []topo.WorkerID) {
	for _, i := range c.Workers {
		order = append(order, members.Members[i].Worker)
	}
	return order
}
