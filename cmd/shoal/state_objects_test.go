package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// writeObjects writes files into dir as torch.save writes them: objects.pt with a tensor and values
// of all kinds, one.pt with a tensor and one value, alone.pt with a tensor alone, listed.pt with
// one in a tuple, none.pt with a value alone, and gathered.pt with a tensor of no elements. What
// WritePaddedOutput cannot do ends the test; other errors are returned.
func writeObjects(t testing.TB, dir string) error {
	weight := format.Tensor{Name: "w", DType: tensor.U8, Shape: tensor.Shape{2}}
	w, err := torchzip.Placeholder(0, weight)
	if err != nil {
		return err
	}
	// item, dict and call return what pickles of a key with its value, of a dict that begins with
	// the tensor, and of an object that a function of Python makes.
	item := func(key string, value any) pickle.Item { return pickle.Item{Key: key, Value: value} }
	dict := func(items ...pickle.Item) *pickle.Dict {
		return &pickle.Dict{Items: append([]pickle.Item{item("w", w)}, items...)}
	}
	call := func(module, name string, state any, args ...any) *pickle.Object {
		return &pickle.Object{Class: pickle.Global{Module: module, Name: name}, Args: args,
			State: state}
	}
	u4 := call("numpy", "dtype",
		pickle.Tuple{int64(3), "<", nil, nil, nil, int64(-1), int64(-1), int64(0)}, "u4", false,
		true)
	array := call("numpy.core.multiarray", "_reconstruct",
		pickle.Tuple{int64(1), pickle.Tuple{int64(2)}, u4, false, []byte{1, 0, 0, 0, 2, 0, 0, 0}},
		pickle.Global{Module: "numpy", Name: "ndarray"}, pickle.Tuple{int64(0)}, []byte("b"))
	for name, root := range map[string]any{
		"objects.pt": dict(
			item("betas", pickle.Tuple{0.9, 0.95}),
			item("cut", call("builtins", "slice", nil, nil, int64(2), nil)),
			item("device", call("torch", "device", nil, "cpu")),
			item("dtype", pickle.Global{Module: "torch", Name: "bfloat16"}),
			item("model", &pickle.Dict{Items: []pickle.Item{item("depth", int64(2))}}),
			item("rng", pickle.Tuple{"MT19937", array}),
			item("scale", call("builtins", "complex", nil, 1.0, -2.0)),
			item("seen", call("builtins", "set", nil, &pickle.List{Items: []any{int64(3)}})),
			item("state", &pickle.Dict{}),
			item("tags", call("builtins", "frozenset", nil, &pickle.List{Items: []any{"a"}})),
		),
		"one.pt": dict(item("step", int64(3))), "alone.pt": w,
		"listed.pt": dict(item("parts", pickle.Tuple{w, int64(2)})),
		"none.pt": &pickle.Dict{Items: []pickle.Item{
			item("text", "<\u009b>"+strings.Repeat("é", 100))}},
	} {
		o := &format.Output{}
		if _, err := torchzip.LayoutRoot(o, name, root, []format.Tensor{weight}); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name),
			formattest.WritePaddedOutput(t, o, nil, nil)[name].Data, 0o666); err != nil {
			return err
		}
	}
	o, err := torchzip.Layout("gathered.pt",
		[]format.Tensor{{Name: "layer.weight", DType: tensor.BF16, Shape: tensor.Shape{0}}}, nil)
	if err != nil {
		return err
	}
	o.Tensors = nil // there is nothing to write of them
	return os.WriteFile(filepath.Join(dir, "gathered.pt"),
		formattest.WritePaddedOutput(t, o, nil, nil)["gathered.pt"].Data, 0o666)
}
