package layout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// On which kinds of hosts the ranks of a Mesh are to be. Nothing here changes a Mesh, so any
// goroutine may call it.

// Kinds counts the ranks that are to be on hosts of each kind; nil where they may be on any.
func (m Mesh) Kinds() map[string]int {
	for _, a := range m {
		if a.On == nil {
			continue
		}
		need := map[string]int{}
		for _, kind := range a.On {
			need[kind] += m.Ranks() / a.Size
		}
		return need
	}
	return nil
}

// KindOf returns on which kind of host a rank is to be; "" = on any.
func (m Mesh) KindOf(rank int) string {
	for i := len(m) - 1; i >= 0; i-- {
		if on := m[i].On; on != nil {
			return on[rank%m[i].Size]
		}
		rank /= m[i].Size
	}
	return ""
}

// OnAnyHost returns the mesh without the kinds of hosts on which its ranks are to be.
func (m Mesh) OnAnyHost() Mesh {
	m = slices.Clone(m)
	for i := range m {
		m[i].On = nil
	}
	return m
}

// A KindError says that a mesh needs more workers on hosts of some kinds than there are.
type KindError struct {
	Mesh       string         // the mesh
	Need, Have map[string]int // workers by kind of host; "" = not known
}

// Error says what the mesh needs, what there is, and what to do.
func (e *KindError) Error() string {
	missing := ""
	for _, kind := range slices.Sorted(maps.Keys(e.Need)) {
		if missing == "" && e.Need[kind] > e.Have[kind] {
			missing = kind
		}
	}
	return fmt.Sprintf("mesh %s needs workers on hosts of kind %s; there are %s. Let a host join "+
		"with shoal agent --kind %s, or leave the kinds of hosts (on) out of the mesh", e.Mesh,
		countsText(e.Need), countsText(e.Have), missing)
}

// countsText lists numbers by kind, such as "a100: 2, v100: 1".
func countsText(counts map[string]int) string {
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		name := kind
		if name == "" {
			name = "no known kind"
		}
		list = append(list, fmt.Sprintf("%s: %d", name, counts[kind]))
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, ", ")
}

// CheckKinds fails with a *KindError where the mesh needs more workers on hosts of a kind than
// there are, by kind.
func (m Mesh) CheckKinds(have map[string]int) error {
	need := m.Kinds()
	for kind, n := range need {
		if n > have[kind] {
			return &KindError{Mesh: m.String(), Need: need, Have: have}
		}
	}
	return nil
}
