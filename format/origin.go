package format

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// OriginKey is the key of a safetensors file's metadata under which shoal says of which checkpoint
// the file is a part, and which. All that shoal writes in parts has an Origin there, checkpoints of
// running jobs too.
const OriginKey = "shoal"

// An Origin tells which of the files of a checkpoint one is, so that a reader knows when one is
// missing or has another's name.
type Origin struct {
	Rank  int `json:"rank"`
	Ranks int `json:"ranks"`
	// of the rank's, from 1; 0 where a rank has one at most
	File  int `json:"file,omitempty"`
	Files int `json:"files,omitempty"` // that the rank has
	// of the whole tensors of which the file has parts
	Shapes map[string]tensor.Shape `json:"shapes,omitempty"`
	// what the worker of a running job has for itself, which is no tensor
	Own json.RawMessage `json:"own,omitempty"`
}

// Text is what stands under OriginKey: as Python writes it, byte by byte.
func (o Origin) Text() (string, error) {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(o)
	return strings.TrimSuffix(text.String(), "\n"), err
}

// OfJob reports whether the metadata of a file says that a worker of a running job wrote it.
func OfJob(metadata map[string]string) bool {
	var is struct{ Own json.RawMessage }
	return json.Unmarshal([]byte(metadata[OriginKey]), &is) == nil && is.Own != nil
}

// OriginOf reads what the metadata of a file says; nil where it says nothing of the kind, as older
// shards of running jobs, which have a rank and what is its own only.
func OriginOf(metadata map[string]string) (*Origin, error) {
	text, ok := metadata[OriginKey]
	if !ok {
		return nil, nil
	}
	var is struct{ Ranks *int }
	if json.Unmarshal([]byte(text), &is) != nil || is.Ranks == nil {
		return nil, nil
	}
	var o Origin
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return nil, fmt.Errorf("metadata %s: %w", OriginKey, err)
	}
	if o.Rank < 0 || o.Rank >= o.Ranks || o.File < 0 || o.File > o.Files {
		return nil, fmt.Errorf("metadata %s: rank %d of %d, file %d of %d", OriginKey, o.Rank,
			o.Ranks, o.File, o.Files)
	}
	return &o, nil
}
