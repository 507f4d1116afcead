// Package importer makes models of what other planners measured, as they keep it. Where such a file
// is known to be wrong or to leave something out, a rule says what stands in its place, and what a
// rule has changed is told. It is pure: it takes the text of a file.
package importer

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// MaxBytes bounds the text of a file.
const MaxBytes = 64 << 20

// An Imported is what a file has.
type Imported struct {
	Model   *model.Model
	Cluster *cluster.Cluster // nil = the file says nothing of machines
	Quirks  []string         // what was changed or assumed, for people, a sentence each
}

// A Source is a kind of file.
type Source struct {
	Name string // as people write it on the command line
	What string // what it is, for people
	Read func(text []byte) (*Imported, error)
}

// Sources lists all kinds of files that are read.
func Sources() []Source {
	return []Source{
		{"pipedream", "the graph.txt of a profile of PipeDream", PipeDream},
		{"msr", "a graph of MSR's DNN partitioning, throughput or latency inputs", MSR},
		{"piper", "an input of Piper", Piper},
	}
}

const (
	// mostNodes and mostEdges bound the graphs that are read, and mostJoins the rounds in which
	// nodes of a graph are joined.
	mostNodes, mostEdges, mostJoins = 1 << 16, 1 << 20, 1 << 8
	// mostBytes is more than a model takes for any number, and what larger ones are read as.
	mostBytes = 1 << 51
)

// checkSize refuses a graph with too many nodes or edges.
func checkSize(nodes, edges int) error {
	if nodes > mostNodes || edges > mostEdges {
		return fmt.Errorf("%d nodes and %d edges; up to %d and %d are read", nodes, edges,
			mostNodes, mostEdges)
	}
	return nil
}

// wholeBytes returns a number of bytes, which is not negative, without a fraction.
func wholeBytes(x float64) int64 { return int64(math.Round(min(x, mostBytes))) }

// plus returns the sum of two numbers of bytes; where it is more than a model takes, so is what it
// returns.
func plus(a, b int64) int64 { return min(a+b, mostBytes) }

// crossing returns, for each layer in an order, how many bytes those up to it give to later ones.
// It fails where all together are more than can be counted. place is where each layer is.
func crossing(place []int, tensors []tensor) ([]int64, error) {
	bytes := make([]int64, len(place)+1) // first as differences
	all := 0.0
	for _, t := range tensors {
		last := place[t.from]
		for _, to := range t.to {
			last = max(last, place[to])
		}
		bytes[place[t.from]] += t.bytes
		bytes[last] -= t.bytes
		if all += float64(t.bytes); all > 1<<62 {
			return nil, fmt.Errorf("layers give each other more than 2^62 bytes")
		}
	}
	for i := 1; i < len(bytes); i++ {
		bytes[i] += bytes[i-1]
	}
	return bytes[:len(place)], nil
}

// placesOf returns where each layer is in an order.
func placesOf(order []int) []int {
	place := make([]int, len(order))
	for i, at := range order {
		place[at] = i
	}
	return place
}

// checked returns a model as it is read from a file, or what is wrong with it.
func checked(m *model.Model) (*model.Model, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return model.Parse(text)
}
