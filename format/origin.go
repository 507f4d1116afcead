package format

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// This file is what shoal writes into each file of a checkpoint in parts, whichever the format, so
// that a missing or renamed part is noticed. It does no I/O.

// OriginKey is the key of a safetensors file's metadata under which shoal says which part of which
// checkpoint the file is. All files that shoal writes in parts have an Origin there, those of
// running jobs too.
const OriginKey = "shoal"

// An Origin identifies one of the files of a checkpoint, so that a reader notices a missing or
// renamed file.
type Origin struct {
	Rank  int `json:"rank"`  // rank that wrote the file
	Ranks int `json:"ranks"` // number of ranks
	// File is the number of the file among those of the rank, from 1; 0 where a rank has at most
	// one file.
	File  int `json:"file,omitempty"`
	Files int `json:"files,omitempty"` // number of files of the rank
	// Shapes are the shapes of the whole tensors of which the file has parts, by name.
	Shapes map[string]tensor.Shape `json:"shapes,omitempty"`
	// Own is the state that a worker of a running job has for itself, beside tensors; nil for other
	// files.
	Own json.RawMessage `json:"own,omitempty"`
}

// Text returns the text under OriginKey, byte for byte as Python writes it.
func (o Origin) Text() (string, error) {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(o)
	return strings.TrimSuffix(text.String(), "\n"), err
}

// IsOfJob reports whether the metadata of a file says that a worker of a running job wrote it.
func IsOfJob(metadata map[string]string) bool {
	var is struct{ Own json.RawMessage }
	return json.Unmarshal([]byte(metadata[OriginKey]), &is) == nil && is.Own != nil
}

// ParseOrigin reads the origin from the metadata of a file; nil if there is none, or only the rank
// and own state that older shards of running jobs have.
func ParseOrigin(metadata map[string]string) (*Origin, error) {
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
