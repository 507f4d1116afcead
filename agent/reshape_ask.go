package agent

import (
	"fmt"
	"slices"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/sense/probe"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/reshape"
)

// Another mesh for the job, as people ask for it, or ask what it would cost.

// Reshape asks for another mesh, on the head, and waits for the engine's thread; the reshape comes
// later. who asks is part of the reason that people read. Any goroutine but the engine's thread may
// call the methods of Agent in this file. Where this agent does not lead they return
// head.ErrNotHead.
func (a *Agent) Reshape(mesh, who string) error {
	return a.askHead(func() error {
		l, err := a.driver.layoutOnMesh(mesh)
		if err != nil {
			return err
		}
		return a.driver.head.Reshape(l.Mesh.String(), l.Ranks, who)
	})
}

// planChange plans what Reshape would do, and what it would do if Redundant were the contrary, as
// Planner.PlanBoth does. It waits for the engine's thread, and changes nothing.
func (a *Agent) planChange(mesh string) (c, contrary *reshape.Change, err error) {
	err = a.askHead(func() error {
		l, err := a.driver.layoutOnMesh(mesh)
		if err != nil {
			return err
		}
		known := a.driver.head.State()
		shape := known.Shape.WithKinds(a.driver.head.Machine().Hosts(), l.Mesh.String())
		c, contrary, err = a.driver.planner.PlanBoth(&shape, known.View, l)
		return err
	})
	return c, contrary, err
}

// layoutOnMesh places the state of the job on a mesh that somebody asks for, or returns why that
// cannot be: head.ErrNotHead where this agent does not lead. It runs on the engine's thread.
func (d *driver) layoutOnMesh(mesh string) (*reshape.Layout, error) {
	if !d.head.Leads() {
		return nil, head.ErrNotHead
	}
	known := d.head.State()
	shape := known.Shape
	if shape == nil {
		return nil, head.ShapelessError(known)
	}
	m, err := layout.ParseMesh(mesh)
	switch {
	case err != nil:
		return nil, err
	case m.Ranks() > job.MaxWorkers:
		return nil, fmt.Errorf("mesh %s has %d ranks, and a job has at most %d workers", mesh,
			m.Ranks(), job.MaxWorkers)
	case m.String() == shape.Mesh:
		return nil, fmt.Errorf("the job has mesh %s already", shape.Mesh)
	}
	if err := m.CheckKinds(d.head.Machine().RoomByKind(m.Ranks())); err != nil {
		return nil, err
	}
	return d.planner.Layout(m.String())
}

// PlanReshape returns what a reshape would cost. It waits for the engine's thread, and changes
// nothing.
func (a *Agent) PlanReshape(mesh string) (api.Plan, error) {
	c, contrary, err := a.planChange(mesh)
	if err != nil {
		return api.Plan{}, err
	}
	f := c.Cost()
	p := api.Plan{From: c.Old.Mesh.String(), To: c.New.Mesh.String(), Workers: c.New.Ranks,
		Tensors: len(c.New.Tensors), State: f.State, Bytes: f.Bytes, Bound: f.Bound,
		Device: f.Device, Busiest: f.Busiest, BusiestBound: f.BusiestBound,
		Extra: slices.Max(f.Extra), Memory: slices.Max(f.Memory), Copied: f.Copied}
	fillInSeconds(&p, &a.driver.routes)
	p.Redundant = c.IsRedundant()
	p.Unreplicated, p.Where = c.Unreplicated()
	p.OtherUnreplicated, _ = contrary.Unreplicated()
	p.OtherBytes = contrary.Plan.Stats.Bytes
	return p, nil
}

// fillInSeconds fills in how long a plan takes: in memory as a probe measures it now, which takes
// some milliseconds, and on links if all-reduces have shown how fast those are. It locks r.mu, and
// is not for the engine's thread.
func fillInSeconds(p *api.Plan, r *routes) {
	p.MemorySeconds = float64(p.Copied) * probe.MeasureReshape(newClock())
	p.Seconds = p.MemorySeconds
	beta, known := r.cableSecondsPerByte()
	if links := float64(p.Busiest) * beta; known || p.Busiest == 0 {
		p.LinkSeconds, p.Seconds = &links, p.Seconds+links
	}
}
