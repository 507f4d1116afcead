package checkpoint

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/tensor"
)

// writeMatrices writes a file of safetensors with a matrix of two bytes for each name, both of
// which are the given one, and returns its path.
func writeMatrices(t *testing.T, name string, matrices map[string]byte) string {
	t.Helper()
	var list []safetensors.Tensor
	for x := range matrices {
		list = append(list,
			safetensors.Tensor{Name: x, DType: tensor.U8, Shape: tensor.Shape{1, 2}})
	}
	path := filepath.Join(t.TempDir(), name)
	writeTensors(t, path, list, func(x string) []byte { return []byte{matrices[x], matrices[x]} })
	return path
}

// TestTied compares models of which one has an output layer, and the other shares the embedding for
// it: in either direction that is no difference if the two are alike. What both have is one if it
// differs, whatever else it is like.
func TestTied(t *testing.T) {
	const out, in = "lm_head.weight", "wte.weight"
	both := map[string]byte{in: 1, out: 1}
	for _, c := range []struct {
		a, b map[string]byte
		want []string // differences
		tied []Tie
	}{
		{both, map[string]byte{in: 1}, nil, []Tie{{out, in, "A"}}},
		{map[string]byte{in: 1}, both, nil, []Tie{{out, in, "B"}}},
		{map[string]byte{in: 1, out: 2}, map[string]byte{in: 1}, []string{`"` + out +
			`": only in A`}, nil},
		{map[string]byte{in: 1, "other.weight": 1}, map[string]byte{in: 1},
			[]string{`"other.weight": only in A`}, nil},
		{both, map[string]byte{in: 1, out: 2}, []string{`"` + out +
			`": 2 elements differ, the first at [0,0]`}, nil},
	} {
		found, tied, err := Compare(t.Context(),
			openCheckpoint(t, writeMatrices(t, "a.safetensors", c.a)),
			openCheckpoint(t, writeMatrices(t, "b.safetensors", c.b)), 1)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range found {
			got = append(got, d.String())
		}
		if !slices.Equal(got, c.want) || !slices.Equal(tied, c.tied) {
			t.Errorf("%v and %v: %q, %v, want %q, %v", c.a, c.b, got, tied, c.want, c.tied)
		}
	}
}
