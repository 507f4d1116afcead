package importer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/decide/planner/model"
)

const (
	// stateOfParams is how many bytes of state stand for one of parameters, where a profile does
	// not say it: parameters, gradients and one moment.
	stateOfParams = 3
	// lostBackward is below which part of its forward pass the backward pass of a recurrent layer
	// was lost by the profiler. recurrentRatio is its usual multiple, where a profile has no other.
	lostBackward, recurrentRatio = 0.01, 2.0
)

// A node is an operator of a profile, in seconds and bytes of a minibatch.
type node struct {
	number            int // as the file calls it
	what              string
	forward, backward float64
	out, params       int64
	from, to          []int // indices of the nodes that it takes from, and gives to
}

// PipeDream reads a profile of PipeDream: a graph of operators with what each took for a minibatch
// on one GPU. The operators become a chain in topological order, of those that could come next that
// with the least number first; what goes from one to the next is all that later ones still need. A
// sample of the model is a minibatch of the profile, which does not say how many samples it has.
func PipeDream(text []byte) (*Imported, error) {
	nodes, err := readGraph(text)
	if err != nil {
		return nil, fmt.Errorf("pipedream: %w", err)
	}
	order, err := topological(nodes)
	if err != nil {
		return nil, fmt.Errorf("pipedream: %w", err)
	}
	quirks := mend(nodes)
	point := model.Point{Device: "gpu", Micro: 1, Layers: map[string]model.Cost{}}
	m := &model.Model{Shoal: model.Version, Name: "pipedream",
		Source: "a profile of PipeDream, whose minibatch is one sample here"}
	tensors := make([]tensor, len(nodes))
	for i, n := range nodes {
		tensors[i] = tensor{i, n.to, n.out}
	}
	out, err := crossing(placesOf(order), tensors)
	if err != nil {
		return nil, fmt.Errorf("pipedream: %w", err)
	}
	for i, at := range order {
		n := &nodes[at]
		id := fmt.Sprint("node", n.number)
		m.Layers = append(m.Layers, model.Layer{ID: id, Kind: n.what, Params: n.params,
			State: stateOfParams * n.params, Out: out[i]})
		point.Layers[id] = model.Cost{Forward: n.forward, Backward: n.backward, Kept: n.out}
	}
	m.Points = []model.Point{point}
	if m, err = checked(m); err != nil {
		return nil, fmt.Errorf("pipedream: %w", err)
	}
	return &Imported{Model: m, Quirks: quirks}, nil
}

// readGraph reads the lines of a profile: a node each, or, indented, an edge.
func readGraph(text []byte) (nodes []node, err error) {
	index := map[int]int{}
	type edge struct{ line, from, to int }
	var edges []edge
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		switch {
		case strings.TrimSpace(line) == "":
			continue
		case line[0] == '\t' || line[0] == ' ':
			from, to, _ := strings.Cut(strings.TrimSpace(line), " -- ")
			a, errA := nodeNumber(from)
			b, errB := nodeNumber(to)
			if errA != nil || errB != nil {
				return nil, fmt.Errorf("line %d: %q is no edge such as nodeA -- nodeB", i+1, line)
			}
			edges = append(edges, edge{i + 1, a, b})
		default:
			n, err := readNode(line)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			if _, twice := index[n.number]; twice {
				return nil, fmt.Errorf("line %d: node%d comes twice", i+1, n.number)
			}
			index[n.number] = len(nodes)
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("it has no nodes: this is no profile")
	}
	if err := checkSize(len(nodes), len(edges)); err != nil {
		return nil, err
	}
	for _, e := range edges {
		a, isA := index[e.from]
		b, isB := index[e.to]
		if !isA || !isB {
			return nil, fmt.Errorf("line %d: an edge from node%d to node%d, and one of them is "+
				"not there", e.line, e.from, e.to)
		}
		nodes[a].to, nodes[b].from = append(nodes[a].to, b), append(nodes[b].from, a)
	}
	return nodes, nil
}

// nodeNumber returns the number of a node by its name.
func nodeNumber(name string) (int, error) {
	digits, is := strings.CutPrefix(name, "node")
	n, err := strconv.Atoi(digits)
	if !is || err != nil || n < 0 || strconv.Itoa(n) != digits {
		return 0, fmt.Errorf("%q is no name of a node, such as node7", name)
	}
	return n, nil
}

// readNode reads the line of a node.
func readNode(line string) (n node, err error) {
	parts := strings.Split(line, " -- ")
	if len(parts) != 3 {
		return n, fmt.Errorf("%d parts between --; a node has its name, what it is, and what it "+
			"takes", len(parts))
	}
	if n.number, err = nodeNumber(parts[0]); err != nil {
		return n, err
	}
	n.what = parts[1]
	fields := strings.Split(parts[2], ", ")
	names := []string{"forward_compute_time", "backward_compute_time", "activation_size",
		"parameter_size"}
	if len(fields) != len(names) {
		return n, fmt.Errorf("%d fields; a node has %s", len(fields), strings.Join(names, ", "))
	}
	var values [4]float64
	for i, field := range fields {
		name, value, _ := strings.Cut(field, "=")
		if name != names[i] {
			return n, fmt.Errorf("the field %q stands where %s does", name, names[i])
		}
		if values[i], err = number(value, i == 2); err != nil {
			return n, fmt.Errorf("%s: %w", name, err)
		}
	}
	const milliseconds = 1e3
	n.forward, n.backward = values[0]/milliseconds, values[1]/milliseconds
	n.out, n.params = wholeBytes(values[2]), wholeBytes(values[3])
	return n, nil
}

// number reads a number from 0 to 2^50, or, where it may be one, the sum of a list [a; b; c].
func number(text string, list bool) (sum float64, err error) {
	terms := []string{text}
	if inner, is := strings.CutPrefix(text, "["); list && is && strings.HasSuffix(inner, "]") {
		terms = strings.Split(strings.TrimSuffix(inner, "]"), "; ")
	}
	for _, term := range terms {
		x, err := strconv.ParseFloat(term, 64)
		if err != nil || !(x >= 0 && x <= 1<<50) { // NaN is neither
			return 0, fmt.Errorf("%q is no number from 0 to 2^50", term)
		}
		sum += x
	}
	return sum, nil
}

// topological returns the indices of nodes in an order in which each comes after those that it
// takes from. It fails where they go round, and names them in order.
func topological(nodes []node) (order []int, err error) {
	missing := make([]int, len(nodes))
	var ready []int
	// add puts a node among those that could come next, sorted by number.
	add := func(at int) {
		i, _ := slices.BinarySearchFunc(ready, at, func(a, b int) int {
			return nodes[a].number - nodes[b].number
		})
		ready = slices.Insert(ready, i, at)
	}
	for at, n := range nodes {
		if missing[at] = len(n.from); missing[at] == 0 {
			add(at)
		}
	}
	for len(ready) > 0 {
		at := ready[0]
		ready = ready[1:]
		order = append(order, at)
		for _, next := range nodes[at].to {
			if missing[next]--; missing[next] == 0 {
				add(next)
			}
		}
	}
	if len(order) == len(nodes) {
		return order, nil
	}
	// Each node that is left takes from another such node; going back, one of them comes again.
	at := slices.IndexFunc(missing, func(n int) bool { return n > 0 }) // the first in the file
	seen := map[int]int{}
	var path []int
	for {
		if first, again := seen[at]; again {
			path = append(path[first:], at)
			break
		}
		seen[at] = len(path)
		path = append(path, at)
		before := slices.IndexFunc(nodes[at].from, func(b int) bool { return missing[b] > 0 })
		at = nodes[at].from[before]
	}
	slices.Reverse(path)
	const most = 8 // names that are told
	var names []string
	for _, at := range path {
		names = append(names, fmt.Sprint("node", nodes[at].number))
	}
	if len(names) > most {
		names = append(names[:most-1:most-1], "…", names[len(names)-1])
	}
	return nil, fmt.Errorf("the nodes take from each other in a circle: %s",
		strings.Join(names, " -- "))
}

// mend changes what a profile is known to have wrong, and tells that and what is assumed.
func mend(nodes []node) (quirks []string) {
	var input, recurrentForward, recurrentBackward float64
	short := 0
	for i := range nodes {
		n := &nodes[i]
		switch lost := n.backward < n.forward*lostBackward; {
		case strings.HasPrefix(n.what, "Input"):
			input += n.forward
			n.forward, n.backward = 0, 0
		case strings.HasPrefix(n.what, "LSTM(") && !lost:
			recurrentForward += n.forward
			recurrentBackward += n.backward
		case !strings.Contains(n.what, "LSTM(") && n.backward < n.forward/20:
			short++
		}
	}
	if input > 0 {
		quirks = append(quirks, fmt.Sprintf("%.1f ms of loading data, which the profile has as "+
			"the forward pass of its input, are left out: they are no work of the device",
			1e3*input))
	}
	ratio := recurrentRatio
	if recurrentForward > 0 {
		ratio = recurrentBackward / recurrentForward
	}
	for i := range nodes {
		n := &nodes[i]
		if strings.Contains(n.what, "LSTM(") && n.backward < n.forward*lostBackward {
			quirks = append(quirks, fmt.Sprintf("node%d goes back in %.3f ms and forward in "+
				"%.3f: the profiler lost that; it is %.3f ms, as in other such layers", n.number,
				1e3*n.backward, 1e3*n.forward, 1e3*n.forward*ratio))
			n.backward = n.forward * ratio
		}
	}
	if short > 0 {
		quirks = append(quirks, fmt.Sprintf("%d other nodes go back in less than 5 %% of their "+
			"forward pass, and stay as they are", short))
	}
	return append(quirks, "a sample is a whole minibatch of the profile, which does not say how "+
		"many it has", "not in the profile: steps of the optimizer take no time, state is three "+
		"times the parameters, and a node keeps what it gives on")
}
