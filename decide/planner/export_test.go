package planner

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/spp"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// JudgeStages returns the seconds of a plan whose stages begin at some layers and at some places,
// with micro-batches of one size that was measured, by 1F1B.
func JudgeStages(r Request, samples int, starts, places []int) (float64, error) {
	p, err := newProblem(r)
	if err != nil {
		return 0, err
	}
	g := ownGrid{point: p.model.Point(p.kinds[0].Name, 1, samples), parts: 1,
		micro: p.batch / samples}
	o, stages, fit := p.costsOf(g, p.places).stages(&spp.Plan{Starts: starts, Places: places})
	held := timeline.Held(len(starts), 2, g.micro)
	for s := range held {
		if held[s] > fit[s] {
			return 0, fmt.Errorf("stage %d does not fit into memory", s)
		}
	}
	o.try(stages, held, nil)
	return o.timeline.Seconds, nil
}

// SolveMixed is Solve by the search over kinds of devices, even where there is one.
func SolveMixed(r Request) (*Result, error) {
	p, err := newProblem(r)
	if err != nil {
		return nil, err
	}
	return p.solveMixed(r.Workers)
}

// MixedBound returns what no plan takes less than that the search over kinds of devices knows, up
// to some seconds.
func MixedBound(r Request, most float64) (float64, error) {
	p, err := newProblem(r)
	if err != nil {
		return 0, err
	}
	s, combos := &mixedSearch{problem: p}, p.combos()
	for i := range combos {
		s.estimates = append(s.estimates, p.newEstimate(&combos[i]))
	}
	return s.bound(most), nil
}

// Begins returns with which layers stages may begin on several kinds of devices, for the first
// degrees and micro-batch.
func Begins(r Request) ([]bool, error) {
	p, err := newProblem(r)
	if err != nil {
		return nil, err
	}
	return p.newEstimate(&p.combos()[0]).begins(), nil
}

// LinkOf returns the link that estimates take between stages on two kinds of devices, by their
// names; nil = there is one device alone.
func LinkOf(r Request, a, b string) (*cluster.Link, error) {
	p, err := newProblem(r)
	if err != nil {
		return nil, err
	}
	number := func(name string) int {
		return slices.IndexFunc(p.kinds, func(k cluster.Kind) bool { return k.Name == name })
	}
	return p.linkOf(number(a), number(b)), nil
}

// LinksOf returns between what the links are that a worker on a kind of device, by its name, may
// have to one on any kind, or on that one if alike is set.
func LinksOf(r Request, kind string, alike bool) (between [][]string, err error) {
	p, err := newProblem(r)
	if err != nil {
		return nil, err
	}
	for k := range p.kinds {
		if p.kinds[k].Name == kind {
			for _, l := range p.linksOf(k, alike) {
				between = append(between, l.Between)
			}
		}
	}
	return between, nil
}
