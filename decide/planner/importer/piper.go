package importer

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/internal/strict"
)

const (
	// piperSample is from how many seconds a sample on, over all layers, times are taken for
	// milliseconds.
	piperSample = 30.0
	// piperForward is which part of the time of a layer is its forward pass, where only both passes
	// together are known: a backward pass multiplies matrices twice as often.
	piperForward = 1.0 / 3
	// piperPlain is the id of the variant without recomputation.
	piperPlain = "vanilla"
)

// piperGraph is a file of inputs of Piper. It belongs to one call of Piper.
type piperGraph struct {
	Devices   int         `json:"maxDevices"`
	Memory    float64     `json:"maxMemoryPerDevice"` // bytes
	Bandwidth float64     `json:"bandwidth"`          // bytes a second
	Micro     int         `json:"mbsInBatch"`         // micro-batches of a batch
	Nodes     []piperNode `json:"nodes"`
	Edges     []piperEdge `json:"edges"`
}

// piperNode is a layer.
type piperNode struct {
	ID       int                       `json:"id"`
	Name     string                    `json:"name"`
	Variants map[string][]piperVariant `json:"TMPCs"` // by the degree of tensor parallelism
}

// piperVariant is a way in which devices make a layer.
type piperVariant struct {
	ID     string             `json:"id"`
	Took   float64            `json:"timePerSample"` // forward and backward
	Params float64            `json:"parameterSize"` // bytes
	Kept   float64            `json:"memoryUsageA"`  // bytes for each micro-batch that is held
	State  float64            `json:"memoryUsageB"`  // bytes beside those
	Down   map[string]float64 `json:"syncTimeFw"`    // bytes by neighbour; not used
	Up     map[string]float64 `json:"syncTimeBw"`
}

// piperEdge is what a layer gives to another one.
type piperEdge struct {
	From  int     `json:"sourceId"`
	To    int     `json:"destId"`
	Bytes float64 `json:"communicationCost"`
}

// Piper reads an input of Piper: layers with what each takes by degrees of tensor parallelism. They
// become a chain in topological order; edges are kept.
func Piper(text []byte) (*Imported, error) {
	got, err := readPiper(text)
	if err != nil {
		return nil, fmt.Errorf("piper: %w", err)
	}
	return got, nil
}

// readPiper is Piper, with errors that do not say the source.
func readPiper(text []byte) (*Imported, error) {
	var g piperGraph
	if err := strict.JSON(text, &g); err != nil {
		return nil, err
	}
	degrees, err := g.check()
	if err != nil {
		return nil, err
	}
	if err := checkSize(len(g.Nodes), len(g.Edges)); err != nil {
		return nil, err
	}
	second, quirks := g.unit()
	layers, index := make([]model.Layer, len(g.Nodes)), map[int]int{}
	for i, n := range g.Nodes {
		plain := n.plain(1)
		layers[i] = model.Layer{ID: "node" + strconv.Itoa(n.ID), Kind: n.Name,
			Params: int64(plain.Params), State: int64(plain.State)}
		for _, tp := range degrees[1:] {
			v := n.plain(tp)
			layers[i].Split = append(layers[i].Split, model.Split{TP: tp, Params: int64(v.Params),
				State: int64(v.State)})
		}
		index[n.ID] = i
	}
	tensors := make([]tensor, len(g.Nodes))
	for i, e := range g.Edges {
		from, isFrom := index[e.From]
		to, isTo := index[e.To]
		switch {
		case !isFrom || !isTo:
			return nil, fmt.Errorf("edge %d goes from node %d to node %d, and one of them is not "+
				"there", i, e.From, e.To)
		case !amount(e.Bytes):
			return nil, fmt.Errorf("the edge from node %d to node %d has %v bytes", e.From, e.To,
				e.Bytes)
		}
		t := &tensors[from]
		t.from, t.to, t.bytes = from, append(t.to, to), max(t.bytes, wholeBytes(e.Bytes))
	}
	m := &model.Model{Shoal: model.Version, Name: "piper", Source: "an input of Piper"}
	_, more, err := inChain(m, layers, tensors)
	if err != nil {
		return nil, err
	}
	for _, tp := range degrees {
		m.Points = append(m.Points, g.point(tp, second))
	}
	if m, err = checked(m); err != nil {
		return nil, err
	}
	quirks = append(append(quirks, more...),
		"a layer has one time for both passes: a third of it is forward",
		"a micro-batch is one sample",
		fmt.Sprintf("memory, bandwidth and the number of devices are those of the file, which "+
			"its authors replace in their experiments; a batch has %d micro-batches there",
			g.Micro),
		"recomputation, and what devices send each other beside the edges because of tensor "+
			"parallelism, are left out")
	c := &cluster.Cluster{Shoal: cluster.Version,
		Kinds: []cluster.Kind{{Name: "gpu", Memory: int64(g.Memory)}},
		Hosts: []cluster.Host{{Name: "host", Kind: "gpu", Places: g.Devices}},
		Links: []cluster.Link{{Inside: true, Curve: cluster.Curve{Rate: g.Bandwidth}}}}
	return &Imported{Model: m, Cluster: c, Quirks: quirks}, nil
}

// plain returns the variant of a layer without recomputation; nil = there is none.
func (n *piperNode) plain(tp int) *piperVariant {
	list := n.Variants[strconv.Itoa(tp)]
	i := slices.IndexFunc(list, func(v piperVariant) bool { return v.ID == piperPlain })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// check returns the degrees of tensor parallelism, ascending from 1, or what is wrong with a graph.
func (g *piperGraph) check() (degrees []int, err error) {
	const most = 1 << 16 // devices
	switch {
	case len(g.Nodes) == 0:
		return nil, fmt.Errorf("it has no nodes: this is no input of Piper")
	case g.Devices < 1 || g.Devices > most:
		return nil, fmt.Errorf("maxDevices is %d; it is from 1 to %d", g.Devices, most)
	case !(g.Memory >= 1 && g.Memory <= 1<<50):
		return nil, fmt.Errorf("maxMemoryPerDevice is %v bytes; it is from 1 to 2^50", g.Memory)
	case !(g.Bandwidth > 0 && g.Bandwidth <= 1<<50):
		return nil, fmt.Errorf("bandwidth is %v bytes a second; it is up to 2^50", g.Bandwidth)
	}
	for text := range g.Nodes[0].Variants {
		tp, err := strconv.Atoi(text)
		if err != nil || tp < 1 || strconv.Itoa(tp) != text {
			return nil, fmt.Errorf("node %d: %q is no degree of tensor parallelism",
				g.Nodes[0].ID, text)
		}
		degrees = append(degrees, tp)
	}
	if slices.Sort(degrees); len(degrees) == 0 || degrees[0] != 1 {
		return nil, fmt.Errorf("node %d has no variant for one device", g.Nodes[0].ID)
	}
	seen := map[int]bool{}
	for _, n := range g.Nodes {
		if seen[n.ID] {
			return nil, fmt.Errorf("two nodes have the id %d", n.ID)
		}
		seen[n.ID] = true
		if len(n.Variants) != len(degrees) {
			return nil, fmt.Errorf("node %d has %d degrees of tensor parallelism, and node %d has "+
				"%d", n.ID, len(n.Variants), g.Nodes[0].ID, len(degrees))
		}
		for _, tp := range degrees {
			v := n.plain(tp)
			if v == nil {
				return nil, fmt.Errorf("node %d has no variant %q for tensor parallelism of %d",
					n.ID, piperPlain, tp)
			}
			for _, x := range []float64{v.Took, v.Params, v.Kept, v.State} {
				if !amount(x) {
					return nil, fmt.Errorf("node %d, tensor parallelism of %d: %v is no time or "+
						"size from 0 to 2^50", n.ID, tp, x)
				}
			}
		}
	}
	return degrees, nil
}

// unit returns the seconds of the times of a graph. Files have seconds or milliseconds, and do not
// say which.
func (g *piperGraph) unit() (second float64, quirks []string) {
	sum := 0.0
	for _, n := range g.Nodes {
		sum += n.plain(1).Took
	}
	if sum < piperSample {
		return 1, nil
	}
	return 1e-3, []string{fmt.Sprintf("times are milliseconds, since a sample would take %.4g "+
		"seconds else; the planner of its authors adds them to seconds of transfers as they stand",
		sum)}
}

// point returns what the layers take where tp devices share each; second is the seconds of a unit
// of the times in the graph.
func (g *piperGraph) point(tp int, second float64) model.Point {
	p := model.Point{Device: "gpu", Micro: 1, Layers: map[string]model.Cost{}}
	if tp > 1 {
		p.TP = tp
	}
	for _, n := range g.Nodes {
		v := n.plain(tp)
		took := v.Took * second
		p.Layers["node"+strconv.Itoa(n.ID)] = model.Cost{Forward: took * piperForward,
			Backward: took * (1 - piperForward), Kept: int64(v.Kept)}
	}
	return p
}
