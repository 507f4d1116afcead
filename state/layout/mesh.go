package layout

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// MaxText bounds the text of a mesh, in bytes: it is in many messages.
const MaxText = 1 << 16

// MaxRanks bounds the number of ranks of a mesh, so that a typing error does not fill the memory.
const MaxRanks = 1 << 18

// A Mesh arranges ranks along named axes, such as pp=2,dp=4,tp=8. The last axis varies fastest:
// neighbours on it have neighbouring ranks. A mesh without axes is one rank.
// Its methods read it, return what is new, and do no I/O.
type Mesh []Axis

// ParseMesh reads the form "pp=2,dp=4,tp=8", in which axes may have attributes, as in
// "dp=2,pp=2(8/6;micro=4)"; the empty text is one rank.
func ParseMesh(text string) (Mesh, error) {
	var m Mesh
	if len(text) > MaxText {
		return nil, fmt.Errorf("layout: a mesh of %d bytes; it has up to %d", len(text), MaxText)
	}
	for _, item := range splitOutside(text, ',') {
		a, err := parseAxis(item)
		if err != nil {
			return nil, fmt.Errorf("layout: mesh %q: %w", text, err)
		}
		m = append(m, a)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("layout: mesh %q: %w", text, err)
	}
	return m, nil
}

// validate fails for axes without proper names or sizes, for too many ranks, and where two axes say
// how large a micro-batch is, or on which kinds of hosts ranks are.
func (m Mesh) validate() error {
	n, micro, on := 1, "", ""
	for i, a := range m {
		if err := a.validate(); err != nil {
			return err
		}
		switch {
		case m.axisIndex(a.Name) != i:
			return fmt.Errorf("axis %s comes twice", a.Name)
		case a.Micro > 0 && micro != "":
			return fmt.Errorf("%s and %s both have micro; a mesh has it once", micro, a.Name)
		case a.On != nil && on != "":
			return fmt.Errorf("%s and %s both have on; a mesh has it once", on, a.Name)
		}
		if a.Micro > 0 {
			micro = a.Name
		}
		if a.On != nil {
			on = a.Name
		}
		if n *= a.Size; n > MaxRanks {
			return errors.New("more than " + strconv.Itoa(MaxRanks) + " ranks")
		}
	}
	return nil
}

// usualAxes are axes that layouts have, so whoever writes one of them has not misspelt another.
var usualAxes = []string{"dp", "tp", "pp", "cp", "ep"}

// CheckAxes fails if an axis with several positions is not known, and suggests a known name that is
// spelled alike, and that the mesh does not have yet. All positions of an unknown axis would hold
// the same state, and do the same work.
func (m Mesh) CheckAxes(known ...string) error {
	for _, a := range m {
		if a.Size == 1 || slices.Contains(known, a.Name) {
			continue
		}
		meant := ""
		if !slices.Contains(usualAxes, a.Name) {
			meant = spelling.Meant(a.Name, slices.DeleteFunc(slices.Clone(known),
				func(name string) bool { return m.axisIndex(name) >= 0 }))
		}
		return fmt.Errorf("the layout has no axis %s%s, only %s; all %d places on it would have "+
			"the same, and do the same work", a.Name, meant, strings.Join(known, ", "), a.Size)
	}
	return nil
}

// Ranks returns the number of ranks.
func (m Mesh) Ranks() int {
	n := 1
	for _, a := range m {
		n *= a.Size
	}
	return n
}

// axisIndex returns the index of the axis of a name, -1 if there is none.
func (m Mesh) axisIndex(name string) int {
	return slices.IndexFunc(m, func(a Axis) bool { return a.Name == name })
}

// String writes the form that ParseMesh reads.
func (m Mesh) String() string {
	parts := make([]string, len(m))
	for i, a := range m {
		parts[i] = a.String()
	}
	return strings.Join(parts, ",")
}

// ranksAt returns the ranks whose position on each axis is allowed, in ascending order; nil allows
// every position.
func (m Mesh) ranksAt(allowed [][]int) Set {
	set := Set{0}
	for i, a := range m {
		places := allowed[i]
		if places == nil {
			places = make([]int, a.Size)
			for k := range places {
				places[k] = k
			}
		}
		next := make(Set, 0, len(set)*len(places))
		for _, base := range set {
			for _, k := range places {
				next = append(next, base*int32(a.Size)+int32(k))
			}
		}
		set = next
	}
	return set
}

// splitOutside splits a text at a separator outside parentheses, and trims the parts; the empty
// text has none.
func splitOutside(text string, at byte) (parts []string) {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	depth, from := 0, 0
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == at && depth == 0:
			parts = append(parts, strings.TrimSpace(text[from:i]))
			from = i + 1
		case text[i] == '(':
			depth++
		case text[i] == ')':
			depth--
		}
	}
	return parts
}
