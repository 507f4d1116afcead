package importer

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/internal/strict"
)

const (
	// msrBandwidth is the bytes a second by which the costs of edges were made.
	msrBandwidth = 1 << 31
	// msrLoading is from how many milliseconds on a node that takes from no other is taken for one
	// that loads data.
	msrLoading = 1.0
)

// flag is true or false, which files also write as 1 and 0.
type flag bool

// UnmarshalJSON reads true, false, 1 and 0.
func (f *flag) UnmarshalJSON(text []byte) error {
	switch {
	case bytes.Equal(text, []byte("true")), bytes.Equal(text, []byte("1")):
		*f = true
	case bytes.Equal(text, []byte("false")), bytes.Equal(text, []byte("0")):
		*f = false
	default:
		return fmt.Errorf("%s is neither true, false, 1 nor 0", text)
	}
	return nil
}

// msrGraph is a file of MSR's DNN partitioning. It belongs to one call of MSR.
type msrGraph struct {
	Memory       float64   `json:"maxSizePerFPGA"` // bytes of an accelerator
	Accelerators int       `json:"maxFPGAs"`
	CPUs         int       `json:"maxCPUs"`
	Nodes        []msrNode `json:"nodes"`
	Edges        []msrEdge `json:"edges"`
}

// msrNode is an operator, or a layer, of one direction.
type msrNode struct {
	ID        int     `json:"id"`
	Name      string  `json:"name"`
	Supported *flag   `json:"supportedOnFpga"`
	CPU       float64 `json:"cpuLatency"`  // milliseconds
	Took      float64 `json:"fpgaLatency"` // milliseconds on an accelerator
	Backward  flag    `json:"isBackwardNode"`
	Class     *int    `json:"colorClass"` // nodes of one class are on one device; nil = of none
	Size      float64 `json:"size"`       // bytes that it takes on an accelerator
	Layer     any     `json:"layerId"`    // not used
}

// msrEdge is what a node gives to another one.
type msrEdge struct {
	From int     `json:"sourceId"`
	To   int     `json:"destId"`
	Cost float64 `json:"cost"` // time of the source's output
	Size float64 `json:"size"` // for information; wrong on backward edges of some files
}

// MSR reads a graph of MSR's DNN partitioning: nodes of a forward and a backward pass with what
// each takes on an accelerator. Nodes that must be on one device become a layer, with the backward
// nodes that belong to them, and layers a chain in topological order; edges are kept.
func MSR(text []byte) (*Imported, error) {
	got, err := readMSR(text)
	if err != nil {
		return nil, fmt.Errorf("msr: %w", err)
	}
	return got, nil
}

// readMSR is MSR, with errors that do not say the source.
func readMSR(text []byte) (*Imported, error) {
	var g msrGraph
	if err := strict.JSON(text, &g); err != nil {
		return nil, err
	}
	index, err := g.check()
	if err != nil {
		return nil, err
	}
	second, quirks, err := g.unit(index)
	if err != nil {
		return nil, err
	}
	quirks = append(quirks, g.leaveOutLoading(index)...)
	groups, more, err := g.groups(index)
	if err != nil {
		return nil, err
	}
	quirks = append(quirks, more...)
	m, more, err := g.model(index, groups, second)
	if err != nil {
		return nil, err
	}
	quirks = append(quirks, more...)
	quirks = append(quirks, "not in the graph: which bytes of a layer are parameters, so all that "+
		"its forward nodes take count as parameters; steps of the optimizer take no time, and "+
		"nothing is kept for the backward pass beside what nodes take",
		fmt.Sprintf("the %d CPUs of the graph are left out", g.CPUs))
	if m, err = checked(m); err != nil {
		return nil, err
	}
	c := &cluster.Cluster{Shoal: cluster.Version,
		Kinds: []cluster.Kind{{Name: "accelerator", Memory: int64(g.Memory)}},
		Hosts: []cluster.Host{{Name: "host", Kind: "accelerator", Places: g.Accelerators}},
		Links: []cluster.Link{{Inside: true, Curve: cluster.Curve{Rate: msrBandwidth}}}}
	return &Imported{Model: m, Cluster: c, Quirks: quirks}, nil
}

// check returns the nodes by ID, or what is wrong with a graph.
func (g *msrGraph) check() (index map[int]int, err error) {
	switch {
	case len(g.Nodes) == 0:
		return nil, fmt.Errorf("it has no nodes: this is no graph")
	case !(g.Memory >= 1 && g.Memory <= 1<<50):
		return nil, fmt.Errorf("maxSizePerFPGA is %v bytes; it is from 1 to 2^50", g.Memory)
	case g.Accelerators < 1 || g.Accelerators > 1<<16:
		return nil, fmt.Errorf("maxFPGAs is %d; it is from 1 to 65536", g.Accelerators)
	}
	if err := checkSize(len(g.Nodes), len(g.Edges)); err != nil {
		return nil, err
	}
	index = map[int]int{}
	for i, n := range g.Nodes {
		if _, twice := index[n.ID]; twice {
			return nil, fmt.Errorf("two nodes have the id %d", n.ID)
		}
		index[n.ID] = i
		switch {
		case !amount(n.Took) || !amount(n.CPU):
			return nil, fmt.Errorf("node %d takes %v ms, and %v on a CPU", n.ID, n.Took, n.CPU)
		case !amount(n.Size):
			return nil, fmt.Errorf("node %d has %v bytes", n.ID, n.Size)
		case n.Supported != nil && !bool(*n.Supported):
			return nil, fmt.Errorf("node %d is not supported on an accelerator: layers run on any "+
				"device of their kind", n.ID)
		}
	}
	for i, e := range g.Edges {
		_, isFrom := index[e.From]
		_, isTo := index[e.To]
		switch {
		case !isFrom || !isTo:
			return nil, fmt.Errorf("edge %d goes from node %d to node %d, and one of them is not "+
				"there", i, e.From, e.To)
		case !amount(e.Cost) || !amount(e.Size):
			return nil, fmt.Errorf("the edge from node %d to node %d has a cost of %v and %v bytes",
				e.From, e.To, e.Cost, e.Size)
		}
	}
	return index, nil
}

// amount reports whether a number can be one of seconds or bytes.
func amount(x float64) bool { return x >= 0 && x <= 1<<50 } // NaN is not

// unit returns the seconds of the costs of edges, of which some files have seconds and some
// milliseconds. That is seen on forward edges, whose bytes are right in all files.
func (g *msrGraph) unit(index map[int]int) (second float64, quirks []string, err error) {
	var ratios []float64
	for _, e := range g.Edges {
		if e.Cost > 0 && e.Size > 0 && !bool(g.Nodes[index[e.From]].Backward) &&
			!bool(g.Nodes[index[e.To]].Backward) {
			ratios = append(ratios, e.Size/e.Cost/msrBandwidth)
		}
	}
	if len(ratios) == 0 {
		return 1e-3, []string{"no forward edge has a cost and bytes, and so costs count as " +
			"milliseconds, as times of nodes do"}, nil
	}
	slices.Sort(ratios)
	const off = 0.01 // by which part a ratio may be off
	switch middle := ratios[len(ratios)/2]; {
	case math.Abs(middle-1) < off:
		return 1, []string{"the costs of edges are seconds, though times of nodes are " +
			"milliseconds: they are taken as the seconds that they are, and published optima " +
			"were made with costs 1,000 times too small"}, nil
	case math.Abs(float64(1000*middle)-1) < off:
		return 1e-3, nil, nil
	default:
		return 0, nil, fmt.Errorf("forward edges have %.4g bytes for each unit of cost; they have "+
			"2^31 where costs are seconds, and 2^31/1000 where they are milliseconds",
			middle*msrBandwidth)
	}
}

// leaveOutLoading sets the times of nodes that load data to 0, and tells that.
func (g *msrGraph) leaveOutLoading(index map[int]int) (quirks []string) {
	takes := map[int]bool{}
	for _, e := range g.Edges {
		takes[index[e.To]] = true
	}
	for i := range g.Nodes {
		if n := &g.Nodes[i]; !takes[i] && !bool(n.Backward) && n.Took >= msrLoading {
			quirks = append(quirks, fmt.Sprintf("node %d, which takes from no other, takes %.3g "+
				"ms: that is loading data, no work of the device, and is left out", n.ID, n.Took))
			n.Took = 0
		}
	}
	return quirks
}
