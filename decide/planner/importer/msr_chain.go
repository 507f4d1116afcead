package importer

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide/planner/model"
)

// How a graph of operators, as MSR has it, becomes a chain of layers. MSR calls it once, on its own
// graph, which these methods only read.

// groups returns the number of the layer of each node: those of one class are one, a backward node
// of no class, or of a class without forward nodes, is in that of a neighbour, and layers that take
// from each other in a circle are one. It tells the latter two.
func (g *msrGraph) groups(index map[int]int) (group []int, quirks []string, err error) {
	group = make([]int, len(g.Nodes))
	classes := map[int]int{}
	count := 0
	for i, n := range g.Nodes {
		if n.Class != nil {
			if first, is := classes[*n.Class]; is {
				group[i] = first
				continue
			}
			classes[*n.Class] = count
		}
		group[i] = count
		count++
	}
	forward := make([]bool, count) // whether it has forward nodes
	for i, n := range g.Nodes {
		forward[group[i]] = forward[group[i]] || !bool(n.Backward)
	}
	// join is the layer that a group without forward nodes is in.
	join, joined := make([]int, count), 0
	for i := range join {
		join[i] = i
	}
	rounds := 0
	for moved := true; moved; rounds++ {
		if moved = false; rounds == mostJoins {
			return nil, nil, fmt.Errorf("more than %d backward nodes in a row belong to no "+
				"forward node", mostJoins)
		}
		for _, e := range g.Edges {
			a, b := group[index[e.From]], group[index[e.To]]
			for range 2 {
				if a, b = b, a; !forward[a] && forward[join[b]] && join[a] == a {
					join[a], forward[a], moved = join[b], true, true
					joined++
				}
			}
		}
	}
	for i := range group {
		group[i] = join[group[i]]
	}
	if joined > 0 {
		quirks = append(quirks, fmt.Sprintf("%d backward nodes or classes of them belong to no "+
			"forward node: each is in the layer of a neighbour", joined))
	}
	from := make([][]int, count)
	for _, e := range g.Edges {
		a, b := index[e.From], index[e.To]
		if !bool(g.Nodes[a].Backward) && !bool(g.Nodes[b].Backward) {
			from[group[b]] = append(from[group[b]], group[a])
		}
	}
	circles := components(from)
	merged := 0
	for i, c := range circles {
		if c != i {
			merged++
		}
	}
	if merged > 0 {
		quirks = append(quirks, fmt.Sprintf("%d classes of nodes take from each other in circles: "+
			"those of a circle are one layer", merged))
	}
	for i := range group {
		group[i] = circles[group[i]]
	}
	return group, quirks, nil
}

// components returns for each vertex of a graph the least one of those that it takes from and that
// take from it, on any way (Tarjan 1972).
func components(from [][]int) []int {
	n := len(from)
	number, low, least := make([]int, n), make([]int, n), make([]int, n)
	on := make([]bool, n)
	var stack []int
	next := 1
	var visit func(at int)
	visit = func(at int) {
		number[at], low[at] = next, next
		next++
		stack, on[at] = append(stack, at), true
		for _, to := range from[at] {
			if number[to] == 0 {
				visit(to)
				low[at] = min(low[at], low[to])
			} else if on[to] {
				low[at] = min(low[at], number[to])
			}
		}
		if low[at] < number[at] {
			return
		}
		first := len(stack) - 1
		for stack[first] != at {
			first--
		}
		smallest := slices.Min(stack[first:])
		for _, v := range stack[first:] {
			least[v], on[v] = smallest, false
		}
		stack = stack[:first]
	}
	for at := range n {
		if number[at] == 0 {
			visit(at)
		}
	}
	return least
}

// model returns the chain of the layers of the nodes, where a unit of cost is so many seconds.
func (g *msrGraph) model(index map[int]int, group []int, second float64) (*model.Model, []string,
	error) {
	number := map[int]int{} // of a layer by its group
	var layers []model.Layer
	var costs []model.Cost
	for i, n := range g.Nodes {
		at, is := number[group[i]]
		if !is {
			at = len(layers)
			number[group[i]] = at
			layers = append(layers, model.Layer{ID: "node" + strconv.Itoa(n.ID), Kind: n.Name})
			costs = append(costs, model.Cost{})
		}
		l, c := &layers[at], &costs[at]
		if l.State = plus(l.State, int64(n.Size)); bool(n.Backward) {
			c.Backward += n.Took / 1e3
		} else {
			c.Forward += n.Took / 1e3
			l.Params = plus(l.Params, int64(n.Size))
		}
	}
	// A tensor is what a forward node gives to other layers.
	tensors := make([]tensor, len(g.Nodes))
	for _, e := range g.Edges {
		a, b := index[e.From], index[e.To]
		from, to := number[group[a]], number[group[b]]
		if bool(g.Nodes[a].Backward) || bool(g.Nodes[b].Backward) || from == to {
			continue
		}
		t := &tensors[a]
		t.from, t.to = from, append(t.to, to)
		t.bytes = max(t.bytes, wholeBytes(e.Cost*second*msrBandwidth))
	}
	m := &model.Model{Shoal: model.Version, Name: "msr",
		Source: "a graph of MSR's DNN partitioning"}
	order, quirks, err := inChain(m, layers, tensors)
	if err != nil {
		return nil, nil, err
	}
	point := model.Point{Device: "accelerator", Micro: 1, Layers: map[string]model.Cost{}}
	for _, at := range order {
		point.Layers[layers[at].ID] = costs[at]
	}
	m.Points = []model.Point{point}
	return m, quirks, nil
}
