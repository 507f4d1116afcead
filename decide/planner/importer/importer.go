// Package importer makes models of what other planners measured, as they keep it. Where such a file
// is known to be wrong or to leave something out, a rule says what stands in its place, and what a
// rule has changed is told. It is pure: it takes the text of a file.
package importer

import (
	"encoding/json"
	"fmt"

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

// checked returns a model as it is read from a file, or what is wrong with it.
func checked(m *model.Model) (*model.Model, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return model.Parse(text)
}
