package zoo

import (
	"fmt"
	"strconv"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// The layers of a model of a Shape, with what each takes on devices, as package model has them. A
// Shape is a value, which nothing here changes.

// Spread is by which part what was not measured may differ: kernels reach between half and all of
// what a device does at its best here.
const Spread = 0.5

// layer is what a layer has and does for a sample.
type layer struct {
	id, kind string
	// shared are the parameters that the ranks of tensor parallelism share, and whole those that
	// each of them has.
	shared, whole int64
	operations    float64 // of the forward pass, which ranks share
	moved         float64 // bytes that it reads and writes, if it has no operations
	// sums and sumsBack are how often the ranks add up what goes from layer to layer, forward and
	// backward (Shoeybi et al. 2019, section 3).
	sums, sumsBack int
	kept           func(ranks int) int64 // bytes of a rank
}

// layers lists the layers of the model.
func (s Shape) layers() []layer {
	width := int64(s.Width)
	row := float64(wordBytes * float64(s.Context) * float64(s.Width))
	list := []layer{{id: "embedding", kind: "Embedding", shared: int64(s.Vocabulary) * width,
		whole: int64(s.Positions) * width, moved: 2 * row, sums: 1,
		kept: func(int) int64 { return 8 * int64(s.Context) }}}
	for b := range s.Blocks {
		list = append(list, layer{id: "block." + strconv.Itoa(b), kind: "Block",
			shared: s.matrices(), whole: int64(s.Vectors) * width, operations: s.operations(),
			sums: 2, sumsBack: 2, kept: s.keptByBlock})
	}
	return append(list, layer{id: "head", kind: "Head", shared: int64(s.Vocabulary) * width,
		whole: int64(s.Last) * width, operations: s.headOperations(), sumsBack: 1,
		kept: s.keptByHead})
}

// parameters returns how many parameters each of so many ranks has of the layer.
func (l layer) parameters(ranks int) int64 {
	n := int64(ranks)
	return (l.shared+n-1)/n + l.whole
}

// Model returns the model with a point for each device, micro-batch, and degree of tensor
// parallelism, 1, 2, 4 or 8, that divides the heads and fits into a host.
func (s Shape) Model(devices []Device, micros []int) *model.Model {
	m := &model.Model{Shoal: model.Version, Name: s.Name,
		Source: fmt.Sprintf("%s, by formula, with samples of %d tokens", s.Title, s.Context)}
	degrees := []int{1}
	for ranks := 2; ranks <= 8; ranks *= 2 {
		fits := false
		for _, d := range devices {
			fits = fits || d.Places >= ranks
		}
		if fits && s.Heads%ranks == 0 && s.KeyHeads%ranks == 0 {
			degrees = append(degrees, ranks)
		}
	}
	layers := s.layers()
	for _, l := range layers {
		one := model.Layer{ID: l.id, Kind: l.kind, Out: s.out(),
			Params: gradientBytes * l.parameters(1), State: stateBytes * l.parameters(1)}
		for _, ranks := range degrees[1:] {
			one.Split = append(one.Split, model.Split{TP: ranks,
				Params: gradientBytes * l.parameters(ranks),
				State:  stateBytes * l.parameters(ranks)})
		}
		m.Layers = append(m.Layers, one)
	}
	for _, d := range devices {
		for _, ranks := range degrees {
			for _, micro := range micros {
				if ranks == 1 || ranks <= d.Places {
					m.Points = append(m.Points, s.point(layers, d, ranks, micro))
				}
			}
		}
	}
	return m
}

// out returns the bytes of what a layer gives to the next one for a sample.
func (s Shape) out() int64 { return int64(s.Context) * int64(wordBytes*s.Width) }

// point returns what the layers take on each of some ranks for a micro-batch.
func (s Shape) point(layers []layer, d Device, ranks, micro int) model.Point {
	p := model.Point{Device: d.Kind, TP: ranks, Micro: micro, Spread: Spread, Formula: d.String(),
		Layers: map[string]model.Cost{}}
	sum := 0.0 // seconds of adding up what goes between layers
	if ranks == 1 {
		p.TP = 0
	} else {
		sum = cost.RingSeconds(ranks, int64(micro)*s.out(), d.Inside.SecondsOf)
	}
	for _, l := range layers {
		forward := float64(float64(micro) * max(
			l.operations/float64(ranks)/(d.Flops*d.Efficiency), l.moved/d.Bandwidth))
		p.Layers[l.id] = model.Cost{Forward: forward + float64(float64(l.sums)*sum),
			Backward: float64(2*forward) + float64(float64(l.sumsBack)*sum),
			Update:   updateBytes * float64(l.parameters(ranks)) / d.Bandwidth,
			Kept:     int64(micro) * l.kept(ranks)}
	}
	return p
}
