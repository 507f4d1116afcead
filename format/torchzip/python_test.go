package torchzip_test

// This file tests which Python types values keep.
import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// TestPickled demands that what torch.load with weights_only does not take becomes something that
// it does, inside of tuples too, and that the output says so.
func TestPickled(t *testing.T) {
	array := &pickle.Array{Type: &pickle.NumpyType{Code: "u4", Order: "<"}, Shape: []int64{1},
		Data: []byte{1, 0, 0, 0}}
	slice := &pickle.Object{Class: pickle.Global{Module: "builtins", Name: "slice"},
		Args: []any{nil, int64(2), nil}}
	set := func(items ...any) any {
		return &pickle.Object{Class: pickle.Global{Module: "builtins", Name: "set"},
			Args: []any{&pickle.List{Items: items}}}
	}
	for name, c := range map[string]struct {
		python, want any
		was, is      string
	}{
		"all kept": {pickle.Tuple{int64(1), &pickle.List{Items: []any{pickle.Tuple{"a"}}}},
			pickle.Tuple{int64(1), &pickle.List{Items: []any{pickle.Tuple{"a"}}}}, "", ""},
		"a set": {&pickle.Set{Items: []any{int64(1)}}, set(int64(1)), "", ""},
		"a frozenset": {&pickle.Set{Items: []any{int64(1)}, Frozen: true}, set(int64(1)),
			"frozenset", "set"},
		"an array": {array, []byte{1, 0, 0, 0}, "numpy.ndarray", "bytes"},
		"arrays in tuple": {pickle.Tuple{array, slice},
			pickle.Tuple{[]byte{1, 0, 0, 0}, "builtins.slice[<nil>,2,<nil>]"}, "numpy.ndarray",
			"bytes"},
		"a slice": {slice, "builtins.slice[<nil>,2,<nil>]", "slice", "str"},
		"a class": {pickle.Global{Module: "builtins", Name: "int"}, "builtins.int",
			"builtins.int", "str"},
		"a member": {
			pickle.Member{Class: pickle.Global{Module: "m", Name: "E"}, Name: "one"}, "m.E.one",
			"m.E", "str"},
		"an element type": {array.Type, "numpy.dtype[u4]", "numpy.dtype", "str"},
		"a buffer":        {&pickle.Buffer{Data: []byte{7}}, []byte{7}, "io.BytesIO", "bytes"},
	} {
		o := &format.Output{}
		got, err := torchzip.PickledValue(o,
			format.Value{Path: "x", Data: "not this", Python: c.python})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		var altered []format.Altered
		if c.was != "" {
			altered = []format.Altered{{Path: "x", Was: c.was, Is: c.is}}
		}
		if diff := cmp.Diff(altered, o.Altered); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
