package planner

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/state/layout"
)

// How a mesh that somebody has chosen is judged: it is read as a plan of a problem, played, and
// compared with a bound. All runs on the goroutine that calls Judge.

// Judge returns what a step takes on a mesh that somebody has chosen, by the timeline that compares
// all plans. It is certified among the plans of the same degrees and micro-batch. The request's
// number of workers does not count.
func Judge(r Request, mesh string) (*Result, error) {
	p, err := newProblem(r)
	if err != nil {
		return nil, err
	}
	c, err := p.parse(mesh)
	if err != nil {
		return nil, fmt.Errorf("mesh %s: %w", mesh, err)
	}
	if m := p.missing(c); m.bytes > 0 {
		return nil, p.tooLargeError(mesh, m)
	}
	played, err := p.play(c)
	if err != nil {
		return nil, fmt.Errorf("mesh %s: %w", mesh, err)
	}
	least, _ := bound.Cuts(p.chain(&c.grid), c.stages, c.micro)
	result := p.result([]*solved{played}, least)
	result.Best.Certificate.Space = "layers cut elsewhere and other numbers of held micro-batches"
	return result, nil
}

// parse returns the plan that is the text of a mesh. An error says what of it does not fit the
// request.
func (p *problem) parse(text string) (*candidate, error) {
	c, replicas, stages, err := parseAxes(text)
	if err != nil {
		return nil, err
	}
	c.replicas, c.stages = replicas.Size, stages.Size
	if replicas.Ahead != nil || replicas.Chunks > 1 || stages.Chunks > 1 {
		return nil, fmt.Errorf("held micro-batches of replicas, and chunks, are not judged")
	}
	if c.stages > len(p.model.Layers) {
		return nil, fmt.Errorf("%d stages, and the model has %d layers", c.stages,
			len(p.model.Layers))
	}
	if err := p.parseOn(c, replicas, stages); err != nil {
		return nil, err
	}
	if err := p.parseBatch(c, replicas); err != nil {
		return nil, err
	}
	if err := p.parseStages(c, stages); err != nil {
		return nil, err
	}
	if !c.isPlayable() {
		return nil, fmt.Errorf("%d micro-batches on %d stages are more than can be played: in all "+
			"it is up to %d", max(c.micro, c.total), c.stages, mostMicro)
	}
	if slices.Min(c.shares) == c.micro {
		c.shares = nil
	}
	if !p.lay(&c.grid) {
		return nil, fmt.Errorf("%d workers; the hosts have places for %d in all, and of each kind "+
			"and on each host there must be enough", c.replicas*c.stages*c.tp, len(p.places))
	}
	c.deal()
	return c, nil
}

// parseAxes reads the degrees and the micro-batch of the text of a mesh, which fits some request,
// and returns the axes of replicas and of stages, of size 1 where the mesh has none.
func parseAxes(text string) (c *candidate, replicas, stages layout.Axis, err error) {
	replicas, stages = layout.Axis{Size: 1}, layout.Axis{Size: 1}
	c = &candidate{grid: grid{tp: 1}}
	mesh, err := layout.ParseMesh(text)
	if err != nil {
		return nil, replicas, stages, err
	}
	if err := mesh.CheckAxes("dp", "pp", "tp"); err != nil {
		return nil, replicas, stages, err
	}
	for _, a := range mesh {
		switch a.Name {
		case "dp":
			replicas = a
			c.dpFast = stages.Name != "" // the last axis is the fastest
		case "pp":
			stages = a
		case "tp":
			c.tp = a.Size
			if a.Shares != nil || a.On != nil {
				return nil, replicas, stages, fmt.Errorf("ranks that share layers are alike, and " +
					"on one host: tp has no shares and no kinds of hosts")
			}
		}
		if a.Name != "tp" && c.tp > 1 {
			return nil, replicas, stages, fmt.Errorf("tp is not the last axis: ranks that share " +
				"layers are on one host")
		}
		c.sample = max(c.sample, a.Micro)
	}
	return c, replicas, stages, nil
}

// parseStages reads which layers the stages of a mesh have, and how many micro-batches they hold.
func (p *problem) parseStages(c *candidate, stages layout.Axis) error {
	c.starts = evenStarts(len(p.model.Layers), c.stages)
	if stages.Shares != nil {
		sum := 0
		for s, share := range stages.Shares {
			c.starts[s] = sum
			if sum += share; share == 0 {
				return fmt.Errorf("stage %d has no layers", s)
			}
		}
		if sum != len(p.model.Layers) {
			return fmt.Errorf("the shares of pp are %d in all, and the model has %d layers",
				sum, len(p.model.Layers))
		}
	}
	c.ahead = timeline.Held(c.stages, 2, c.micro)
	for s, held := range stages.Ahead {
		c.ahead[s] = min(held, c.micro)
	}
	return nil
}

// parseOn reads on which kinds of devices a mesh is to be.
func (p *problem) parseOn(c *candidate, replicas, stages layout.Axis) error {
	names := stages.On
	switch {
	case replicas.On != nil && stages.On != nil:
		return fmt.Errorf("kinds of hosts of both dp and pp are not judged: one of them has them")
	case replicas.On != nil:
		names, c.byReplica = replicas.On, true
	case stages.On == nil && len(p.kinds) > 1:
		return fmt.Errorf("the hosts have devices of several kinds, %s: say of each stage, or "+
			"each replica, on which it is, as in pp=2(on=%s/%s)", p.kindNames(), p.kinds[0].Name,
			p.kinds[1].Name)
	case stages.On == nil:
		c.on = make([]int, c.stages)
		return nil
	}
	for _, name := range names {
		k := slices.IndexFunc(p.kinds, func(k cluster.Kind) bool { return k.Name == name })
		has := func(h cluster.Host) bool { return h.Kind == name }
		switch {
		case k < 0 && slices.ContainsFunc(p.all.Hosts, has):
			return p.unmeasuredOn([]string{name})
		case k < 0:
			return fmt.Errorf("no host has devices of kind %s; there are %s", name, p.kindNames())
		}
		c.on = append(c.on, k)
	}
	return nil
}

// parseBatch deals the batch among the replicas of a mesh, and looks whether its layers were
// measured so.
func (p *problem) parseBatch(c *candidate, replicas layout.Axis) error {
	if c.sample == 0 {
		return fmt.Errorf("it does not say how many samples a micro-batch has: add that to one of "+
			"dp and pp, as in dp=%d(micro=8)", c.replicas)
	}
	for _, k := range c.on {
		if p.costs(k, c.tp, c.sample) == nil {
			return p.unmeasuredPointError(p.kinds[k].Name, c.tp, c.sample)
		}
	}
	if c.byReplica {
		c.total = p.batch / c.sample
	}
	shares, sum := replicas.Shares, 0
	if shares == nil {
		shares = slices.Repeat([]int{1}, c.replicas)
	}
	for _, share := range shares {
		sum += share
	}
	for _, share := range shares {
		micro := p.batch / c.sample * share / sum
		if share == 0 || micro*c.sample*sum != p.batch*share {
			return p.unsharedError(c, shares)
		}
		c.micro = max(c.micro, micro)
		c.shares = append(c.shares, micro)
	}
	return nil
}
