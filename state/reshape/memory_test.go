package reshape_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/state/reshape"
)

// TestMemory has tensors in another order than that of their names: in the memory of a rank, where
// a worker packs them too, they stand by name, each at a multiple of 64 bytes. What has no elements
// takes no room, and need not be there.
func TestMemory(t *testing.T) {
	s, err := reshape.NewState(&reshape.Statement{Mesh: "tp=2",
		Layout: `{shoal: layout/1, mesh: "tp=2", ` +
			`rules: [{match: c, place: "tp=shard(0,ceil)"}, {match: "**"}]}`,
		Tensors: []reshape.Tensor{{Name: "c", DType: "f32", Shape: []int{1}},
			{Name: "b", DType: "f32", Shape: []int{17}}, {Name: "a", DType: "u8", Shape: nil}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.OnMesh("tp=2")
	if err != nil {
		t.Fatal(err)
	}
	for rank, bytes := range []int{256, 192} {
		if l.Bytes(rank) != bytes {
			t.Errorf("rank %d has %d bytes, want %d", rank, l.Bytes(rank), bytes)
		}
		for name, at := range map[string]int{"a": 0, "b": 64, "c": 192} {
			if l.Offset(rank, name) != at {
				t.Errorf("%s is at byte %d of rank %d, want %d", name, l.Offset(rank, name), rank,
					at)
			}
		}
	}
	have := []reshape.Tensor{{Name: "a", DType: "u8"}, {Name: "b", DType: "f32", Shape: []int{17}}}
	if err := l.CheckHeld(1, have); err != nil {
		t.Error(err)
	}
	if err := l.CheckHeld(0, have); err == nil || !strings.Contains(err.Error(), `no tensor "c"`) {
		t.Error(err)
	}
}
