// Package reshape says how the state of a running job moves from one mesh to another: which bytes
// of which worker's memory go where. The job states its state once, as a catalogue and the rules of
// a layout; the mesh changes. Plans come from state/plan, fingerprints from state/digest; this
// package relates both to the memory of workers.
//
// It touches no memory except what callers pass to fingerprint. docs/design/reshape.md describes
// the protocol around it.
package reshape

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// align is the alignment of local tensors in the memory of a worker, in bytes.
const align = 64

// maxRanks bounds a mesh: a job has no more workers.
const maxRanks = 1 << 16

// A State is the state of a job as the job has stated it: the logical tensors, and the rules that
// place them on any mesh. Nothing changes it after NewState, so any goroutine may use it.
type State struct {
	spec    layout.Spec     // rules that place the tensors
	axes    layout.Mesh     // axes that the layout names
	tensors []layout.Tensor // logical tensors
	id      string          // hash of the fields above, alike on all workers
}

// A Statement is what a worker says about the state: all of it, and what it holds.
// docs/formats/reshape.md describes the JSON.
type Statement struct {
	Layout  string   `json:"layout"`  // spec; of its mesh only the names of the axes count
	Mesh    string   `json:"mesh"`    // mesh with which the job begins
	Tensors []Tensor `json:"tensors"` // logical tensors
	// Local lists the tensors that this worker holds; absent = nothing yet.
	Local []Tensor `json:"local"`
}

// A Tensor is a logical tensor, or one in the memory of a worker.
type Tensor struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
}

// ParseStatement reads a statement. An unknown field is an error.
func ParseStatement(text []byte) (*Statement, error) {
	var s Statement
	if err := strict.JSON(text, &s); err != nil {
		return nil, fmt.Errorf("the statement of the state cannot be read: %w", err)
	}
	return &s, nil
}

// NewState checks a statement and returns its state.
func NewState(s *Statement) (*State, error) {
	spec, err := layout.Parse([]byte(s.Layout))
	if err != nil {
		return nil, err
	}
	state := &State{spec: *spec}
	if state.axes, err = layout.ParseMesh(spec.Mesh); err != nil {
		return nil, err
	}
	for _, t := range s.Tensors {
		d, err := tensor.ParseDType(t.DType)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		state.tensors = append(state.tensors, layout.Tensor{Name: t.Name, DType: d, Shape: t.Shape})
	}
	if _, err := state.OnMesh(s.Mesh); err != nil {
		return nil, err
	}
	text, err := json.Marshal([]any{s.Layout, s.Tensors})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	state.id = hex.EncodeToString(sum[:16])
	return state, nil
}

// ID identifies the state: workers that state the same have the same ID.
func (s *State) ID() string { return s.id }

// replicas is the axis that every layout has. Where nothing is cut over it, its ranks hold the same
// state, and divide the samples.
const replicas = "dp"

// OnMesh places the state on a mesh. An axis of the layout that the mesh lacks has degree 1. It
// fails if the mesh has an axis that the layout does not name, because the model does not know it
// either.
func (s *State) OnMesh(mesh string) (*Layout, error) {
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		return nil, err
	}
	if m.Ranks() > maxRanks {
		return nil, fmt.Errorf("mesh %s has %d ranks; a job has at most %d workers", m, m.Ranks(),
			maxRanks)
	}
	known := []string{replicas}
	if err := s.checkAttributes(m); err != nil {
		return nil, err
	}
	spec, whole := s.spec, slices.Clone(m)
	for _, a := range s.axes {
		if a.Name != replicas {
			known = append(known, a.Name)
		}
		if !slices.ContainsFunc(m, func(b layout.Axis) bool { return a.Name == b.Name }) {
			whole = append(whole, layout.Axis{Name: a.Name, Size: 1})
		}
	}
	if err := m.CheckAxes(known...); err != nil {
		return nil, fmt.Errorf(
			"mesh %s: %w: an axis over which nothing is cut must be in the layout's mesh too", m,
			err)
	}
	spec.Mesh = whole.String()
	l, err := spec.Resolve(s.tensors)
	if err != nil {
		return nil, err
	}
	return newLayout(m, spec, l), nil
}

// checkAttributes fails for an axis that says how layers are dealt, and over which the layout deals
// nothing.
func (s *State) checkAttributes(m layout.Mesh) error {
	for _, a := range m {
		if (a.Chunks > 0 || a.Shares != nil && a.Name != replicas) && !s.spec.Spreads(a.Name) {
			return fmt.Errorf("mesh %s: the layout spreads nothing over %s, so %s says nothing; "+
				"give it without parentheses", m, a.Name, a)
		}
	}
	return nil
}

// A Layout is the state on a mesh, and where it lies in the memory of each rank: local tensors in
// the order of their names, each packed and at the next multiple of 64 bytes.
// Nothing changes it after OnMesh has returned it, so any goroutine may use it; its methods do no
// I/O.
type Layout struct {
	Mesh layout.Mesh
	Spec layout.Spec // spec whose mesh has all axes of the rules
	*layout.Layout
	ranks []local // memory of each rank
}

// A local is the memory of one rank.
type local struct {
	at    map[string]int // first byte of each local tensor, by its name
	bytes int            // bytes of all local tensors, each padded to a multiple of align
}

// newLayout lays out the memory of each rank for a layout that spec has given on a mesh.
func newLayout(m layout.Mesh, spec layout.Spec, l *layout.Layout) *Layout {
	type entry struct {
		name  string
		bytes int
	}
	entries := make([][]entry, l.Ranks)
	for i := range l.Slots {
		s := &l.Slots[i]
		for _, r := range l.Sets[s.Set] {
			for _, name := range s.Names {
				entries[r] = append(entries[r], entry{name, s.Bytes()})
			}
		}
	}
	out := &Layout{Mesh: m, Spec: spec, Layout: l, ranks: make([]local, l.Ranks)}
	for r, list := range entries {
		slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.name, b.name) })
		mem := local{at: make(map[string]int, len(list))}
		for _, e := range list {
			mem.at[e.name] = mem.bytes
			mem.bytes += (e.bytes + align - 1) / align * align
		}
		out.ranks[r] = mem
	}
	return out
}

// Bytes returns the size of a rank's memory, a multiple of 64.
func (l *Layout) Bytes(rank int) int { return l.ranks[rank].bytes }

// CheckHeld compares the tensors that a rank says it holds with the layout. Tensors without
// elements may be missing.
func (l *Layout) CheckHeld(rank int, have []Tensor) error {
	stated := map[string]Tensor{}
	for _, t := range have {
		if _, twice := stated[t.Name]; twice {
			return fmt.Errorf("rank %d of mesh %s has two tensors called %q", rank, l.Mesh, t.Name)
		}
		stated[t.Name] = t
	}
	for _, want := range l.RankLocals(rank) {
		t, is := stated[want.Name]
		delete(stated, want.Name)
		switch empty := want.Shape.Box().Empty(); {
		case !is && empty:
		case !is:
			return fmt.Errorf(
				"rank %d of mesh %s has no tensor %q; the layout says that it holds %v%v", rank,
				l.Mesh, want.Name, want.DType, want.Shape)
		case t.DType != want.DType.String() || !want.Shape.Equal(t.Shape):
			return fmt.Errorf("rank %d of mesh %s has %q as %s%v; the layout says %v%v", rank,
				l.Mesh, want.Name, t.DType, tensor.Shape(t.Shape), want.DType, want.Shape)
		}
	}
	for name, t := range stated {
		if !tensor.Shape(t.Shape).Box().Empty() {
			return fmt.Errorf("rank %d of mesh %s has a tensor %q, and the layout places none "+
				"of that name there", rank, l.Mesh, name)
		}
	}
	return nil
}

// Offset returns where a local tensor begins in the memory of a rank, in bytes.
func (l *Layout) Offset(rank int, name string) int { return l.ranks[rank].at[name] }
