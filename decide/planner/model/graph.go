package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// The edges of a model whose layers are no plain chain. Parse checks them; Order is also for
// package importer. Nothing here changes a Model, so any goroutine may call it.

const (
	// maxEdges bounds the edges of a model.
	maxEdges = 1 << 20
	// mostNamed is how many layers of a circle are named.
	mostNamed = 8
)

// An Edge says that a layer takes what another one gives.
type Edge struct {
	From  string `json:"from"` // ID of the layer that gives
	To    string `json:"to"`
	Bytes int64  `json:"bytes"` // for a sample
}

// validateEdges returns what is wrong with the edges of a model, whose layers are given by ID; nil
// = nothing.
func (m *Model) validateEdges(index map[string]int) error {
	if len(m.Edges) > maxEdges {
		return fmt.Errorf("%d edges; it takes up to %d", len(m.Edges), maxEdges)
	}
	ids := make([]string, len(m.Layers))
	for i, l := range m.Layers {
		ids[i] = l.ID
	}
	from := make([][]int, len(m.Layers))
	for i, e := range m.Edges {
		for _, id := range []string{e.From, e.To} {
			if _, is := index[id]; !is {
				return fmt.Errorf("edge %d, from %q to %q: the model has no layer %q%s", i, e.From,
					e.To, id, spelling.Meant(id, ids))
			}
		}
		if e.Bytes < 0 || e.Bytes > maxNumber {
			return fmt.Errorf("the edge from %s to %s has %d bytes; it is from 0 to 2^50", e.From,
				e.To, e.Bytes)
		}
		from[index[e.To]] = append(from[index[e.To]], index[e.From])
	}
	if _, err := Order(ids, from); err != nil {
		return err
	}
	for _, e := range m.Edges {
		if index[e.From] > index[e.To] {
			return fmt.Errorf("layer %s takes from %s, which stands behind it: layers stand in an "+
				"order in which samples can go through them", e.To, e.From)
		}
	}
	return m.validateCuts(index)
}

// validateCuts returns after which layer less goes on than the largest edge over the cut there;
// nil = after none.
func (m *Model) validateCuts(index map[string]int) error {
	edges := slices.Clone(m.Edges)
	slices.SortStableFunc(edges, func(a, b Edge) int { return cmp.Compare(b.Bytes, a.Bytes) })
	// next has for each cut the first one from it on that was not looked at: the largest edges come
	// first, and each cut is looked at once.
	next := make([]int, len(m.Layers)+1)
	for i := range next {
		next[i] = i
	}
	find := func(at int) int {
		for next[at] != at {
			next[at] = next[next[at]]
			at = next[at]
		}
		return at
	}
	for _, e := range edges {
		for at := find(index[e.From]); at < index[e.To]; at = find(at) {
			if l := m.Layers[at]; l.Out < e.Bytes {
				return fmt.Errorf("layer %s: out is %d bytes, and the edge from %s to %s over the "+
					"cut behind it has %d: out is all that later layers need", l.ID, l.Out, e.From,
					e.To, e.Bytes)
			}
			next[at] = at + 1
		}
	}
	return nil
}

// Order returns the layers of a graph in an order in which each comes after those that it takes
// from, given by their numbers: the longest way to a layer first, and what is needed only there,
// such as weights, right before it. It fails where layers take from each other in a circle, and
// names them.
func Order(names []string, from [][]int) (order []int, err error) {
	depth := depths(from)
	last := make([]bool, len(names)) // nobody takes from it
	for i := range last {
		last[i] = true
	}
	for _, list := range from {
		for _, i := range list {
			last[i] = false
		}
	}
	const begun, done = 1, 2
	state := make([]int, len(names))
	var path []int // to the layer that is visited, each takes from the next
	var visit func(at int) error
	visit = func(at int) error {
		switch state[at] {
		case done:
			return nil
		case begun:
			circle := append(slices.Clone(path[slices.Index(path, at):]), at)
			slices.Reverse(circle)
			return fmt.Errorf("layers take from each other in a circle: %s",
				named(names, circle))
		}
		state[at], path = begun, append(path, at)
		list := slices.Clone(from[at])
		slices.SortStableFunc(list, func(a, b int) int { return depth[b] - depth[a] })
		for _, before := range list {
			if err := visit(before); err != nil {
				return err
			}
		}
		state[at], path = done, path[:len(path)-1]
		order = append(order, at)
		return nil
	}
	for _, only := range []bool{true, false} { // a circle may have no last one
		for at := range names {
			if last[at] == only {
				if err := visit(at); err != nil {
					return nil, err
				}
			}
		}
	}
	return order, nil
}

// depths returns how many layers are on the longest way to each; 0 = it is in a circle, or after
// one.
func depths(from [][]int) []int {
	to, missing := make([][]int, len(from)), make([]int, len(from))
	depth := make([]int, len(from))
	var ready []int
	for at, list := range from {
		if missing[at] = len(list); missing[at] == 0 {
			ready = append(ready, at)
		}
		for _, before := range list {
			to[before] = append(to[before], at)
		}
	}
	for len(ready) > 0 {
		at := ready[0]
		ready = ready[1:]
		for _, before := range from[at] {
			depth[at] = max(depth[at], depth[before])
		}
		depth[at]++
		for _, next := range to[at] {
			if missing[next]--; missing[next] == 0 {
				ready = append(ready, next)
			}
		}
	}
	return depth
}

// named writes the names of some layers with arrows, or of the first of many and the last.
func named(names []string, path []int) string {
	var list []string
	for _, at := range path {
		list = append(list, names[at])
	}
	if len(list) > mostNamed {
		list = append(list[:mostNamed-1:mostNamed-1], "…", list[len(list)-1])
	}
	return strings.Join(list, " → ")
}
