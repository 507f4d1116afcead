package importer

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/model"
)

// A tensor is what a layer gives to others, all of it to each.
type tensor struct {
	from  int
	to    []int
	bytes int64 // for a sample
}

// inChain puts the layers of a graph into a model, as a chain: each comes after those that it
// takes from, and gives on all tensors that later ones need. The graph is in the model's edges. It
// returns the numbers of the layers in their order, and tells where the graph is no chain.
func inChain(m *model.Model, layers []model.Layer, tensors []tensor) (order []int, quirks []string,
	err error) {
	names, from := make([]string, len(layers)), make([][]int, len(layers))
	for i, l := range layers {
		names[i] = l.ID
	}
	for _, t := range tensors {
		for _, to := range t.to {
			if !slices.Contains(from[to], t.from) {
				from[to] = append(from[to], t.from)
			}
		}
	}
	if order, err = model.Order(names, from); err != nil {
		return nil, nil, err
	}
	place := placesOf(order)
	out, err := crossing(place, tensors)
	if err != nil {
		return nil, nil, err
	}
	type pair struct{ from, to int }
	bytes := map[pair]int64{}
	for _, t := range tensors {
		to := slices.Clone(t.to)
		slices.Sort(to)
		for _, b := range slices.Compact(to) {
			p := pair{place[t.from], place[b]}
			bytes[p] = plus(bytes[p], t.bytes)
		}
	}
	pairs := make([]pair, 0, len(bytes))
	forks := 0 // edges that go past the next layer
	for p := range bytes {
		if pairs = append(pairs, p); p.to != p.from+1 {
			forks++
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return a.to - b.to
	})
	for i, at := range order {
		l := layers[at]
		l.Out = out[i]
		m.Layers = append(m.Layers, l)
	}
	for _, p := range pairs {
		m.Edges = append(m.Edges, model.Edge{From: m.Layers[p.from].ID, To: m.Layers[p.to].ID,
			Bytes: bytes[p]})
	}
	if forks > 0 {
		quirks = append(quirks, fmt.Sprintf("the graph is no chain: %d of %d edges go past the "+
			"next layer, and what later layers need goes over each cut on its way to them", forks,
			len(pairs)))
	}
	return order, quirks, nil
}
