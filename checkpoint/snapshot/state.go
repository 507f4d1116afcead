// Package snapshot writes and reads the checkpoints of running jobs, which
// docs/formats/job-checkpoints.md describes: each worker's share of the state becomes a file, and
// the worker that writes the last file seals the checkpoint. The agent writes them for its workers,
// and a Go program without an agent for itself; Python does the same for a job of one.
package snapshot

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/tensor"
)

// The description of a state. The functions are pure, and may be called on any goroutine.

const (
	stateVersion = "job/1"
	// StateName is the file with the description of a job's state.
	StateName = "shoal-checkpoint.json"
	// MaxTextBytes bounds the JSON that is read, in bytes.
	MaxTextBytes = 1 << 30
	maxWorkers   = 1 << 16 // largest number of workers that write a checkpoint
	// maxBytes is the largest state in bytes, so that no product with a rank overflows.
	maxBytes = 1 << 46
)

// A State describes the state in a checkpoint. Its methods read it and do no I/O; any goroutine may
// call them while nobody sets a field.
type State struct {
	Step    uint64 // steps committed before the checkpoint
	Cursor  []byte // position in the data, as data/cursor encodes it
	Workers int    // number of workers that write the checkpoint
	// Notes is a JSON object with the parts of the state that are alike on all workers, by name.
	Notes json.RawMessage
	// People has the names of the parts of the job's setting that people had set; nil = none.
	People []string
	// Tensors are in the order in which their bytes make up the state.
	Tensors []Tensor
	// Mesh is the mesh on which each worker holds a part of the tensors; nil means that all workers
	// hold all tensors.
	Mesh  *string
	Items [][]byte // bytes of the arrays in Notes; only with a mesh
}

// stateJSON is a State as it stands in a file.
type stateJSON struct {
	Shoal   string          `json:"shoal"`
	Step    uint64          `json:"step"`
	Cursor  string          `json:"cursor"`
	Workers int             `json:"workers"`
	Notes   json.RawMessage `json:"notes"`
	People  []string        `json:"people,omitempty"`
	Tensors []tensorJSON    `json:"tensors"`
	Mesh    *string         `json:"mesh,omitempty"`
	Items   [][]byte        `json:"items,omitempty"`
}

// tensorJSON is a Tensor as it stands in a file.
type tensorJSON struct {
	Name  string       `json:"name"`
	DType string       `json:"dtype"`
	Shape tensor.Shape `json:"shape"`
	Bytes int          `json:"bytes"`
	Cuts  []int        `json:"cuts,omitempty"`
}

// AppendJSON appends the JSON form of a state to b. It fails when ParseState would not read it.
func (s *State) AppendJSON(b []byte) ([]byte, error) {
	j := stateJSON{Shoal: stateVersion, Step: s.Step, Cursor: hex.EncodeToString(s.Cursor),
		Workers: s.Workers, Notes: s.Notes, People: s.People, Tensors: []tensorJSON{},
		Mesh: s.Mesh, Items: s.Items}
	for _, t := range s.Tensors {
		if _, err := t.Shape.Elements(); err != nil {
			return b, fmt.Errorf("the description of the state: tensor %.80q: %w", t.Name, err)
		}
		j.Tensors = append(j.Tensors,
			tensorJSON{t.Name, strings.ToUpper(t.DType.String()),
				append(tensor.Shape{}, t.Shape...), t.Bytes(), t.Cuts})
	}
	text, err := json.Marshal(j)
	if err != nil {
		return b, err
	}
	if _, err := ParseState(text); err != nil {
		return b, err
	}
	return append(b, text...), nil
}

// ParseState reads a state strictly. The result can be cut into shares, each of which is a
// safetensors file.
func ParseState(text []byte) (*State, error) {
	s, err := parseState(text)
	if err != nil {
		return nil, fmt.Errorf("the description of the state: %w", err)
	}
	return s, nil
}

// parseState is ParseState, with errors that do not say that they are about the state.
func parseState(text []byte) (*State, error) {
	var j stateJSON
	if err := strict.JSON(text, &j); err != nil {
		return nil, err
	}
	cursor, err := hex.DecodeString(j.Cursor)
	switch {
	case j.Shoal != stateVersion:
		return nil, fmt.Errorf("it is of version %.20q, not %q", j.Shoal, stateVersion)
	case err != nil:
		return nil, fmt.Errorf("cursor: %w", err)
	case j.Workers < 1 || j.Workers > maxWorkers:
		return nil, fmt.Errorf("%d workers; it takes 1 to %d", j.Workers, maxWorkers)
	case !isObject(j.Notes):
		return nil, errors.New("notes is no object")
	}
	s := &State{Step: j.Step, Cursor: cursor, Workers: j.Workers, Notes: j.Notes,
		People: j.People, Mesh: j.Mesh, Items: j.Items}
	whole, total := []safetensors.Tensor{}, 0
	for _, t := range j.Tensors {
		x, err := t.tensor(j.Workers)
		if err != nil {
			return nil, fmt.Errorf("tensor %.80q: %w", t.Name, err)
		}
		if total += x.Bytes(); total > maxBytes {
			return nil, fmt.Errorf("the state has more than %d bytes", maxBytes)
		}
		s.Tensors = append(s.Tensors, x)
		whole = append(whole, safetensors.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	_, err = safetensors.Layout(whole, nil) // a file that holds everything could hold any share
	return s, err
}

// tensor returns the tensor of a checkpoint of so many workers that j describes. It fails for a
// tensor that cannot be.
func (j *tensorJSON) tensor(workers int) (t Tensor, err error) {
	t = Tensor{Name: j.Name, Shape: j.Shape, Cuts: j.Cuts}
	if t.DType, err = tensor.ParseDType(strings.ToLower(j.DType)); err != nil {
		return t, err
	}
	n, err := j.Shape.Elements()
	switch {
	case err != nil:
		return t, err
	case PlainName(j.Name) != j.Name:
		return t, errors.New("the name is not printable ASCII without quotes")
	case t.DType.Size() == 0:
		return t, fmt.Errorf("elements of %s share bytes", j.DType)
	case n > maxBytes || j.Bytes != n*t.DType.Size():
		return t, fmt.Errorf("%d bytes, where %s of shape %v have another number", j.Bytes, j.DType,
			j.Shape)
	case t.Cuts != nil && !t.hasValidCuts(workers):
		return t, fmt.Errorf("cuts %.80v do not part %d bytes in rows of %d among %d workers",
			t.Cuts, j.Bytes, t.rowBytes(), workers)
	}
	return t, nil
}

// hasValidCuts reports whether the cuts give every row to exactly one of the workers.
func (t Tensor) hasValidCuts(workers int) bool {
	n := len(t.Cuts)
	return n == workers+1 && t.Cuts[0] == 0 && t.Cuts[n-1] == t.Bytes() && t.Bytes() > 0 &&
		slices.IsSorted(t.Cuts) &&
		!slices.ContainsFunc(t.Cuts, func(cut int) bool { return cut%t.rowBytes() != 0 })
}

// PlainName returns a name in the form that it has in a checkpoint: printable ASCII, without quotes
// and backslashes.
func PlainName(name string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return '_'
		}
		return c
	}, name)
}

// isObject reports whether a text is a JSON object.
func isObject(text json.RawMessage) bool {
	var object map[string]json.RawMessage
	return json.Unmarshal(text, &object) == nil && object != nil
}
