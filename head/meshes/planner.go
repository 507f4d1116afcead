package meshes

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// Planner knows the layout of a job's state, as workers have stated it, and owns the plan of the
// reshape that comes. It is made once, when the head arranges the reshape or another agent hears of
// it, and kept until the reshape is executed. Every agent of the job plans the same from the same
// shape and members. The zero value knows no layout. A Planner does no I/O, and is not safe for
// concurrent use: the agent and the head call it on the engine's thread. Callers must not alter
// what its methods return.
type Planner struct {
	// Redundant says that the job asks for replicas on two hosts, on a host with workers of the
	// job.
	Redundant bool
	// Meshes are the meshes that a job is to begin with, by its number of workers.
	Meshes map[int]string

	state   *reshape.State             // nil = no layout is known
	layouts map[string]*reshape.Layout // by mesh
	newest  planned                    // the plan that was made last
}

// planned is a plan, with the arguments that it was made from.
type planned struct {
	old, new *reshape.Layout
	at       reshape.Placement // where the workers are
	change   *reshape.Change   // nil = there is no plan
}

// State is the state whose layout is known; nil = none is.
func (p *Planner) State() *reshape.State { return p.state }

// SetState keeps a state, whose layout is then known, and forgets the layouts of the state before
// it.
func (p *Planner) SetState(state *reshape.State) {
	p.state, p.layouts = state, map[string]*reshape.Layout{}
}

// Layout places the state on a mesh, and keeps the layouts that were asked for last. It is an error
// if no layout is known, or the state does not fit the mesh.
func (p *Planner) Layout(mesh string) (*reshape.Layout, error) {
	if p.state == nil {
		return nil, errors.New("no worker of this host has stated the layout: ask on a host " +
			"that has workers of the job")
	}
	if l := p.layouts[mesh]; l != nil {
		return l, nil
	}
	l, err := p.state.OnMesh(mesh)
	if err != nil {
		return nil, err
	}
	if len(p.layouts) > 4 { // the old, the new, and what somebody has asked about
		clear(p.layouts)
	}
	p.layouts[mesh] = l
	return l, nil
}

// PreparePlan returns the plan of the reshape that takes a shape to its next mesh, and keeps it as
// the newest.
func (p *Planner) PreparePlan(shape *Shape, members topo.View) (*reshape.Change, error) {
	at, _ := LocateWorkers(shape, members)
	return p.planTo(shape, shape.Next, at)
}

// PopPlan is PreparePlan for the agent that executes the plan now; the planner forgets the plan.
// It is an error if the head has arranged another order of the workers.
func (p *Planner) PopPlan(shape *Shape, members topo.View) (*reshape.Change, error) {
	change, err := p.PreparePlan(shape, members)
	p.newest = planned{}
	if err != nil {
		return nil, err
	}
	if !slices.Equal(workersByRank(change, members), shape.Order) {
		return nil, errors.New("this host plans another reshape than the head: run the same " +
			"release of shoal on all hosts")
	}
	return change, nil
}

// PlanBoth plans what a reshape to a mesh would do, and the contrary: what it would do if the job
// were redundant where it is not, or were not where it is. The shape has the kinds of hosts. The
// newest plan, of a reshape that comes, is not touched.
func (p *Planner) PlanBoth(shape *Shape, members topo.View, to *reshape.Layout) (change,
	contrary *reshape.Change, err error) {
	old, err := p.Layout(shape.Mesh)
	if err != nil {
		return nil, nil, err
	}
	at, hosts := LocateWorkers(shape, members)
	for _, h := range shape.Kinds {
		if !slices.Contains(hosts, h.Host) {
			hosts, at.Kinds = append(hosts, h.Host), append(at.Kinds, h.Kind)
		}
	}
	addWorkers(&at, to, len(hosts))
	if change, err = reshape.PlanChange(old, to, at); err != nil {
		return nil, nil, err
	}
	at.Redundant = !at.Redundant
	contrary, err = reshape.PlanChange(old, to, at)
	return change, contrary, err
}

// addWorkers adds the workers to a placement that a mesh takes more, each on the host with the
// fewest: one of a kind that the mesh names and that lacks workers, if there is one.
func addWorkers(at *reshape.Placement, to *reshape.Layout, hosts int) {
	need := to.Mesh.Kinds()
	for {
		have, best, lacks := at.CountKinds(), 0, false
		load := make([]int, max(hosts, 1))
		for _, h := range at.Hosts {
			load[h]++
		}
		for h := range load {
			kind := ""
			if h < len(at.Kinds) {
				kind = at.Kinds[h]
			}
			lacking := need[kind] > have[kind]
			if lacking && !lacks || lacking == lacks && load[h] < load[best] {
				best, lacks = h, lacking
			}
		}
		if !lacks && len(at.Hosts) >= to.Ranks {
			return
		}
		at.Hosts = append(at.Hosts, best)
	}
}

// planTo plans the way from the mesh of a shape to another, and keeps the plan as the newest. The
// same arguments as in the call before give the same plan.
func (p *Planner) planTo(shape *Shape, mesh string,
	at reshape.Placement) (*reshape.Change, error) {
	old, err := p.Layout(shape.Mesh)
	if err != nil {
		return nil, err
	}
	new, err := p.Layout(mesh)
	if err != nil {
		return nil, err
	}
	if n := p.newest; n.change != nil && n.old == old && n.new == new &&
		reflect.DeepEqual(n.at, at) {
		return n.change, nil
	}
	change, err := reshape.PlanChange(old, new, at)
	if err != nil {
		return nil, err
	}
	p.newest = planned{old, new, at, change}
	return change, nil
}

// Arrange is an Arrange of a head: it decides on the mesh that comes next and on the workers of its
// ranks, and keeps the plan for PreparePlan and PopPlan. With mesh "" the next mesh is the largest
// that the workers can hold, preferably by fewer ranks of the data parallel axis, which is called
// dp: that is at no loss. It says nothing of kinds of hosts where the workers are not on them. With
// a *StateLost as the error the results hold, and the state must come from a checkpoint.
func (p *Planner) Arrange(shape Shape, mesh string, members topo.View) (to Arranged,
	err error) {
	next, why := mesh, shape.Lost
	at, _ := LocateWorkers(&shape, members)
	var takers []topo.WorkerID
	for _, m := range members.Members {
		if !slices.Contains(shape.Leaving, m.Host) {
			takers = append(takers, m.Worker)
		}
	}
	if next == "" {
		var ok bool
		if next, ok = p.largestMesh(shape.Mesh, len(takers)); !ok {
			return to, fmt.Errorf(
				"mesh %s cannot do with %s, and the layout has no smaller one", shape.Mesh,
				plural.Of(len(takers), "worker"))
		}
		next, to.Note = at.FitKinds(next)
	}
	if why == "" {
		change, err := p.planTo(&shape, next, at)
		var lost *plan.LostError
		switch {
		case err == nil:
			to.Mesh, to.Order = next, workersByRank(change, members)
			return to, nil
		case !errors.As(err, &lost):
			return to, err
		}
		why = fmt.Sprintf(
			"mesh %s cannot do with %s, as only lost ones had %d bytes of %s, %s the first",
			shape.Mesh, plural.Of(members.Size(), "worker"), lost.Bytes,
			plural.Of(len(lost.Tensors), "tensor"), lost.Tensors[0])
	}
	l, err := p.Layout(next)
	if err != nil || l.Ranks > len(takers) {
		return to, errors.Join(err,
			fmt.Errorf("mesh %s is more than %s can hold", next, plural.Of(len(takers), "worker")))
	}
	to.Mesh, to.Order = next, takers[:l.Ranks]
	if shape.Redundant || l.Mesh.Kinds() != nil { // as if they were on the mesh already
		there := shape
		there.Mesh, there.Workers = next, to.Order
		at, _ := LocateWorkers(&there, members)
		change, err := p.planTo(&there, next, at)
		if err != nil {
			return to, err
		}
		to.Order = workersByRank(change, members)
	}
	return to, &StateLost{Why: why}
}

// FirstMesh returns the mesh that a job of so many workers begins with, whose program states one:
// the one of Meshes, or else that one, or the largest that the workers can hold if they are fewer
// than its ranks and none of them is left over.
func (p *Planner) FirstMesh(stated string, workers int) string {
	if mesh := p.Meshes[workers]; mesh != "" {
		return mesh
	}
	if l, err := p.Layout(stated); err != nil || l.Ranks <= workers {
		return stated
	}
	mesh, ok := p.largestMesh(stated, workers)
	if l, err := p.Layout(mesh); !ok || err != nil || l.Ranks != workers {
		return stated
	}
	return mesh
}

// largestMesh returns the largest mesh that so many workers can hold, of those without a higher
// degree than a mesh has, preferably with fewer ranks of dp; false if there is none.
func (p *Planner) largestMesh(mesh string, workers int) (string, bool) {
	return reshape.LargestMesh(mesh, "dp", workers, func(mesh string) bool {
		_, err := p.Layout(mesh)
		return err == nil
	})
}

// workersByRank lists the workers that take the new ranks, by rank.
func workersByRank(c *reshape.Change, members topo.View) (order []topo.WorkerID) {
	for _, i := range c.Workers {
		order = append(order, members.Members[i].Worker)
	}
	return order
}

// LocateWorkers finds the workers of a shape among the members, by position. hosts are the names of
// the members' hosts, sorted; at counts hosts from 0 in that order.
func LocateWorkers(s *Shape, members topo.View) (at reshape.Placement, hosts []string) {
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
		at.Ranks = append(at.Ranks, i) // reshape.Lost where it is no member
	}
	for i, host := range hosts {
		if slices.Contains(s.Leaving, host) {
			at.Leaving = append(at.Leaving, i)
		}
	}
	at.Redundant = s.Redundant
	kinds := map[string]string{}
	for _, h := range s.Kinds {
		kinds[h.Host] = h.Kind
	}
	for _, host := range hosts {
		at.Kinds = append(at.Kinds, kinds[host])
	}
	return at, hosts
}
