package layout_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// TestParts reads what the preset megatron-core joins, renames and fills up the other way: it is
// the catalogue that was stored.
func TestParts(t *testing.T) {
	for _, experts := range []int{0, 3} {
		tensors := slices.DeleteFunc(decoderTensors(2, experts), func(x layout.Tensor) bool {
			return len(x.Shape) == 0
		})
		spec, l := resolvePreset(t, "megatron-core", "", tensors)
		parts, err := layout.NewParts(spec.Store)
		if err != nil {
			t.Fatal(err)
		}
		var found []layout.Tensor
		for _, local := range l.RankLocals(0) {
			list, err := parts.Split(
				layout.Tensor{Name: local.Name, DType: local.DType, Shape: local.Shape}, 10)
			if err != nil || len(list) == 0 {
				t.Fatalf("%s: %v, %v", local.Name, list, err)
			}
			var names []string
			for _, x := range list {
				names = append(names, x.Name)
				if stored, n := parts.StoredName(x.Name); stored != local.Name || n != len(list) {
					t.Errorf("%s is one of %d parts of %s, want %d of %s", x.Name, n, stored,
						len(list), local.Name)
				}
			}
			if again := parts.Names(local.Name); !slices.Equal(again, names) {
				t.Errorf("%s: %v, and by name %v", local.Name, names, again)
			}
			if padded := strings.HasSuffix(local.Name, "word_embeddings.weight") ||
				strings.HasSuffix(local.Name,
					"output_layer.weight"); parts.IsPadded(local.Name) != padded {
				t.Errorf("%s is padded: %v", local.Name, !padded)
			}
			found = append(found, list...)
		}
		byName := func(a, b layout.Tensor) int { return cmp.Compare(a.Name, b.Name) }
		slices.SortFunc(found, byName)
		slices.SortFunc(tensors, byName)
		if diff := gocmp.Diff(tensors, found); diff != "" {
			t.Errorf("%d experts\n%s", experts, diff)
		}
	}
}

// TestPartsRefuses says which stored tensors cannot be split.
func TestPartsRefuses(t *testing.T) {
	parts, err := layout.NewParts([]layout.Store{
		{Name: "ab#", Parts: []string{"a#", "b#"}, Units: []int{2, 1}},
		{Name: "cd", Parts: []string{"c", "d"}, Dim: 1},
		{Name: "e", Parts: []string{"f"}, Pad: &layout.Pad{Multiple: 4}},
		{Name: "s", Parts: []string{"s#"}, Stack: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		shape tensor.Shape
		rows  int
		err   string
	}{
		{"ab1", tensor.Shape{6, 2}, 0, ""},
		{"ab1", tensor.Shape{5, 2}, 0,
			"ab1 has 5 rows, which do not come out even over [2 1] of 2 parts"},
		{"ab1", nil, 0, "joined along dimension 0, and its shape is []"},
		{"cd", tensor.Shape{4}, 0, "joined along dimension 1, and its shape is [4]"},
		{"cd", tensor.Shape{4, 3}, 0, "cd has 3 rows"},
		{"e", tensor.Shape{4}, 0, "of which 0 along dimension 0 cannot be what is not padding"},
		{"e", tensor.Shape{4}, 5, "of which 5 along dimension 0 cannot be what is not padding"},
		{"e", nil, 1, "of which 1 along dimension 0 cannot be what is not padding"},
	} {
		if _, err := parts.Split(layout.Tensor{Name: c.name, DType: tensor.F32, Shape: c.shape},
			c.rows); (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s %v: %v; want %q", c.name, c.shape, err, c.err)
		}
	}
	for _, name := range []string{"s", "x", "abx"} {
		if stored, n := parts.StoredName(name); stored != "" || n != 0 {
			t.Errorf("%s is part of %q", name, stored)
		}
		if list, err := parts.Split(
			layout.Tensor{Name: name, DType: tensor.F32, Shape: tensor.Shape{4}}, 0); list != nil ||
			err != nil || parts.Names(name) != nil {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	if _, err := layout.NewParts([]layout.Store{{Name: "a"}}); err == nil ||
		!strings.Contains(err.Error(), "store 1") {
		t.Error(err)
	}
}
