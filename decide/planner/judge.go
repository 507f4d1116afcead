package planner

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/state/layout"
)

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
	if stage, bytes := p.missing(c); bytes > 0 {
		return nil, fmt.Errorf("mesh %s does not fit into memory: a worker of stage %d needs %d "+
			"bytes, and a %s has %d", mesh, stage, p.memory(c, stage), p.kind.Name,
			p.kind.Memory-p.kind.Reserve)
	}
	t, err := timeline.Run(p.stagesOf(c), c.micro)
	if err != nil {
		return nil, fmt.Errorf("mesh %s: %w", mesh, err)
	}
	least, _ := bound.Cuts(p.chain(&c.grid), c.stages, c.micro)
	result := p.result([]solved{{*c, t}}, least)
	result.Best.Certificate.Space = "layers cut elsewhere and other numbers of held micro-batches"
	return result, nil
}

// parse returns the plan that is the text of a mesh. An error says what of it does not fit the
// request.
func (p *problem) parse(text string) (*candidate, error) {
	mesh, err := layout.ParseMesh(text)
	if err != nil {
		return nil, err
	}
	if err := mesh.CheckAxes("dp", "pp"); err != nil {
		return nil, err
	}
	replicas, stages := layout.Axis{Size: 1}, layout.Axis{Size: 1}
	c := &candidate{}
	micro := 0
	for _, a := range mesh {
		switch a.Name {
		case "dp":
			replicas = a
			c.dpFast = stages.Name != "" // the last axis is the fastest
		case "pp":
			stages = a
		}
		micro = max(micro, a.Micro)
	}
	if replicas.Shares != nil || replicas.Ahead != nil || replicas.Chunks > 1 || stages.Chunks > 1 {
		return nil, fmt.Errorf("shares and held micro-batches of replicas, and chunks, are not " +
			"judged")
	}
	switch c.point = p.model.Point(p.kind.Name, 1, micro); {
	case replicas.Size*stages.Size > len(p.places):
		return nil, fmt.Errorf("%d workers; the hosts have places for %d",
			replicas.Size*stages.Size, len(p.places))
	case c.point == nil:
		return nil, fmt.Errorf("micro-batches of %d samples were not measured on %s; those of %v "+
			"were", micro, p.kind.Name, p.model.Micros(p.kind.Name, 1))
	case p.batch%(replicas.Size*micro) != 0:
		return nil, fmt.Errorf("a batch of %d samples cannot be divided among %d replicas with "+
			"micro-batches of %d", p.batch, replicas.Size, micro)
	case stages.Size > len(p.model.Layers):
		return nil, fmt.Errorf("%d stages, and the model has %d layers", stages.Size,
			len(p.model.Layers))
	}
	c.replicas, c.stages, c.micro = replicas.Size, stages.Size, p.batch/replicas.Size/micro
	c.starts = evenStarts(len(p.model.Layers), c.stages)
	if stages.Shares != nil {
		sum := 0
		for s, share := range stages.Shares {
			c.starts[s] = sum
			if sum += share; share == 0 {
				return nil, fmt.Errorf("stage %d has no layers", s)
			}
		}
		if sum != len(p.model.Layers) {
			return nil, fmt.Errorf("the shares of pp are %d in all, and the model has %d layers",
				sum, len(p.model.Layers))
		}
	}
	if c.ahead = slices.Clone(stages.Ahead); c.ahead == nil {
		for s := range c.stages { // 1F1B
			c.ahead = append(c.ahead, c.stages-s)
		}
	}
	for s := range c.ahead {
		c.ahead[s] = min(c.ahead[s], c.micro)
	}
	return c, nil
}
