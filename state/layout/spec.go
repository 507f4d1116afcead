package layout

import (
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/shoal-ml/shoal/internal/strict"
)

// Version stands in every Spec.
const Version = "layout/1"

// MaxSpecBytes bounds what Parse reads; layouts have some kilobytes.
const MaxSpecBytes = 4 << 20

// A Spec is a layout as people write it, in YAML or JSON. docs/formats/layout.md describes each
// field. Its methods read it and do no I/O; any goroutine may call them while nobody sets a field.
type Spec struct {
	Shoal string  `json:"shoal"`          // always Version
	Mesh  string  `json:"mesh,omitempty"` // as in ParseMesh
	Store []Store `json:"store,omitempty"`
	Rules []Rule  `json:"rules"`
}

// A Store says that logical tensors lie in memory, or in a file, under another name, joined,
// stacked or padded. Logical tensors that no Store takes are stored as they are.
type Store struct {
	// Name is the name in memory. Its wildcards are filled from the parts.
	Name  string   `json:"name"`
	Parts []string `json:"parts"`         // patterns of the logical tensors, joined in this order
	Dim   int      `json:"dim,omitempty"` // dimension along which they are joined
	// Units interleave the parts: this many rows of each part, then again from the first part. nil
	// joins whole parts.
	Units []int `json:"units,omitempty"`
	// Stack is which # of the pattern, from 1, becomes a new first dimension; 0 means none.
	Stack int  `json:"stack,omitempty"`
	Pad   *Pad `json:"pad,omitempty"`
}

// A Pad extends a dimension of a stored tensor with zeros to a multiple.
type Pad struct {
	Dim      int `json:"dim"`      // dimension, from 0
	Multiple int `json:"multiple"` // in rows
}

// A Rule places the stored tensors whose name matches a pattern. The first rule that matches
// counts.
type Rule struct {
	Match string `json:"match"`           // pattern of names
	Place string `json:"place,omitempty"` // placement; "" = every rank has the whole tensor
}

// A compiled is a Spec ready to resolve. Nothing changes it after Spec.compile; it does no I/O.
type compiled struct {
	mesh   Mesh
	stores []storeEntry
	rules  []rule
}

// A storeEntry is a Store ready to resolve, not changed after Store.compile.
type storeEntry struct {
	Store
	name  pattern
	parts []pattern
	stack int // index of the capture that is stacked, -1 for none
}

// A rule is a Rule ready to resolve, not changed after Rule.compile.
type rule struct {
	match pattern
	place placement
}

// Parse reads a Spec and checks everything that can be checked without a catalogue. An unknown
// field is an error.
func Parse(text []byte) (*Spec, error) {
	if len(text) > MaxSpecBytes {
		return nil, fmt.Errorf("layout: %d bytes; a layout has at most %d", len(text), MaxSpecBytes)
	}
	var s Spec
	if err := strict.YAML(text, &s); err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &s, nil
}

// YAML writes the spec in the form that Parse reads.
func (s *Spec) YAML() ([]byte, error) { return yaml.Marshal(s) }

// Validate fails for what is wrong with the spec itself, without a catalogue.
func (s *Spec) Validate() error {
	_, err := s.compile()
	return err
}

// Spreads reports whether a rule spreads numbered tensors, such as those of layers, over an axis.
func (s *Spec) Spreads(axis string) bool {
	for _, r := range s.Rules {
		place, _ := parsePlacement(r.Place)
		for _, p := range place {
			if p.kind == spread && slices.Contains(p.axes, axis) {
				return true
			}
		}
	}
	return false
}

// compile parses the texts of the spec, and fails for what is wrong in them.
func (s *Spec) compile() (*compiled, error) {
	if s.Shoal != Version {
		return nil, fmt.Errorf(
			"layout: the field shoal is %q, not %q; this is no layout, or one of another version",
			s.Shoal, Version)
	}
	var c compiled
	var err error
	if c.mesh, err = ParseMesh(s.Mesh); err != nil {
		return nil, err
	}
	for i, st := range s.Store {
		e, err := st.compile()
		if err != nil {
			return nil, fmt.Errorf("layout: store %d: %w", i+1, err)
		}
		c.stores = append(c.stores, e)
	}
	if len(s.Rules) == 0 {
		return nil, errors.New(`layout: no rules; {match: "**"} replicates every tensor`)
	}
	for i, r := range s.Rules {
		compiled, err := r.compile(c.mesh)
		if err != nil {
			return nil, fmt.Errorf("layout: rule %d: %w", i+1, err)
		}
		c.rules = append(c.rules, compiled)
	}
	return &c, nil
}

// compile parses the texts of the rule for a mesh, and fails for an axis that the mesh lacks.
func (r Rule) compile(m Mesh) (c rule, err error) {
	if c.match, err = parsePattern(r.Match); err != nil {
		return c, err
	}
	if c.place, err = parsePlacement(r.Place); err != nil {
		return c, err
	}
	for _, s := range c.place {
		for _, axis := range s.axes {
			if m.axisIndex(axis) < 0 {
				return c, fmt.Errorf("place %q: the mesh %q has no axis %s", r.Place, m, axis)
			}
		}
		if len(s.axes) > 1 && (s.kind == at || s.kind == spread) {
			return c, fmt.Errorf("place %q: %s is for one axis", r.Place, kinds[s.kind])
		}
	}
	return c, nil
}

// compile parses the texts of the store, and fails for what is wrong in them.
func (s Store) compile() (e storeEntry, err error) {
	e = storeEntry{Store: s, stack: -1}
	if e.name, err = parsePattern(s.Name); err != nil {
		return e, err
	}
	if len(s.Parts) == 0 {
		return e, fmt.Errorf("%q has no parts", s.Name)
	}
	for _, text := range s.Parts {
		p, err := parsePattern(text)
		if err != nil {
			return e, err
		}
		e.parts = append(e.parts, p)
	}
	kinds := e.parts[0].wildcardKinds()
	if s.Stack != 0 {
		n := 0
		for i, k := range kinds {
			if k == number {
				if n++; n == s.Stack {
					e.stack = i
				}
			}
		}
		if e.stack < 0 {
			return e, fmt.Errorf("stack: %q has no # number %d", s.Parts[0], s.Stack)
		}
	}
	return e, e.check(kinds)
}

// check fails for a store whose parts and name do not have the same wildcards, and for bad numbers.
// kinds are the wildcards of the first part.
func (e *storeEntry) check(kinds []tokenKind) error {
	for _, p := range e.parts {
		if fmt.Sprint(p.wildcardKinds()) != fmt.Sprint(kinds) {
			return fmt.Errorf("the parts %q and %q differ in their wildcards", e.Parts[0], p.text)
		}
	}
	kept := []tokenKind{}
	for i, k := range kinds {
		if i != e.stack {
			kept = append(kept, k)
		}
	}
	if fmt.Sprint(e.name.wildcardKinds()) != fmt.Sprint(kept) {
		return fmt.Errorf(
			"the name %q does not have the wildcards of its parts, without the stacked one", e.Name)
	}
	if len(e.Units) != 0 && len(e.Units) != len(e.Parts) {
		return fmt.Errorf("%q: %d units for %d parts", e.Name, len(e.Units), len(e.Parts))
	}
	for _, u := range e.Units {
		if u < 1 {
			return fmt.Errorf("%q: a unit of %d rows", e.Name, u)
		}
	}
	if e.Dim < 0 {
		return fmt.Errorf("%q: dimension %d", e.Name, e.Dim)
	}
	if e.Pad != nil && (e.Pad.Dim < 0 || e.Pad.Multiple < 1 || e.Pad.Multiple > 1<<30) {
		return fmt.Errorf("%q: pad %+v: a dimension from 0 and a multiple from 1 to 2^30", e.Name,
			*e.Pad)
	}
	return nil
}
