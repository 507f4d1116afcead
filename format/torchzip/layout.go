package torchzip

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/tensor"
)

// This file lays out what torch.save writes, for the formats that have such files. It does no I/O:
// functions that take an output add to it, on the goroutine that lays it out.

// Layout lays out a file as torch.save writes it, which torch.load reads with weights_only: a dict
// of tensors under their names, and of values under their paths. Of the tensors, only names,
// element types and shapes count. It returns an output with this file alone.
func Layout(file string, tensors []format.Tensor, values []format.Value) (*format.Output, error) {
	o := &format.Output{Checkpoint: format.Checkpoint{Format: "torch"}}
	root := &pickle.Dict{}
	for i, t := range tensors {
		p, err := Placeholder(i, t)
		if err != nil {
			return nil, err
		}
		root.Add(t.Name, p)
	}
	for _, v := range values {
		p, err := PickledValue(o, v)
		if err != nil {
			return nil, fmt.Errorf("torch: value %q: %w", v.Path, err)
		}
		root.Add(v.Path, p)
		o.Values = append(o.Values, v)
	}
	at, err := LayoutRoot(o, file, root, tensors)
	if err != nil {
		return nil, err
	}
	if twice := repeatedKey(root); twice != "" {
		return nil, fmt.Errorf("torch: %q stands twice among tensors and values", twice)
	}
	for i, t := range tensors {
		o.Tensors = append(o.Tensors, format.PackedIn(file, at[i], t.Name, t.DType, t.Shape))
	}
	return o, o.Finish()
}

// LayoutRoot adds to an output a file with any value, in which Placeholder(i, tensors[i]) stands
// for a tensor, and returns where the elements of each go. at is in bytes of the file.
func LayoutRoot(o *format.Output, file string, root any, tensors []format.Tensor) (at []int64,
	err error) {
	size, at, err := LayoutAt(o, file, 0, root, tensors)
	if err != nil {
		return nil, fmt.Errorf("torch: %s: %w", file, err)
	}
	o.Files = append(o.Files, format.OutputFile{Name: file, Size: size})
	return at, nil
}

// repeatedKey returns a key that occurs twice in a dict, "" for none. Its keys are texts.
func repeatedKey(d *pickle.Dict) string {
	seen := map[any]bool{}
	for _, item := range d.Items {
		if seen[item.Key] {
			return item.Key.(string)
		}
		seen[item.Key] = true
	}
	return ""
}

// LayoutTensor adds to a file of an output, from an offset on, what torch.save writes for one
// tensor. It returns where the elements go and the size of it all. Both are in bytes, at from the
// beginning of the file on.
func LayoutTensor(o *format.Output, file string, base int64, t format.Tensor) (at, size int64,
	err error) {
	root, err := Placeholder(0, t)
	if err != nil {
		return 0, 0, err
	}
	size, places, err := LayoutAt(o, file, base, root, []format.Tensor{t})
	if err != nil {
		return 0, 0, err
	}
	return places[0], size, nil
}

// LayoutAt adds to a file of an output, from an offset on, what torch.save writes for any value,
// as LayoutRoot does. It returns the size of it all, and where the elements of each tensor go. All
// are in bytes; at counts from the beginning of the file.
func LayoutAt(o *format.Output, file string, base int64, root any,
	tensors []format.Tensor) (size int64, at []int64, err error) {
	text, err := pickle.Append(nil, root)
	if err != nil {
		return 0, nil, err
	}
	entries := []*entry{{name: "archive/data.pkl", bytes: text},
		{name: "archive/byteorder", bytes: []byte("little")}}
	for i := range tensors {
		entries = append(entries,
			&entry{name: "archive/data/" + strconv.Itoa(i), size: tensors[i].Bytes()})
	}
	entries = append(entries, &entry{name: "archive/version", bytes: []byte("3\n")})
	size = layoutZip(o, file, base, entries)
	for i := range tensors {
		at = append(at, base+entries[2+i].at)
	}
	return size, at, nil
}

// Placeholder returns the call that rebuilds a tensor from storage i of its file. Of the tensor,
// only element type and shape count.
func Placeholder(i int, t format.Tensor) (any, error) {
	n, err := t.Shape.Elements()
	if err != nil {
		return nil, fmt.Errorf("torch: tensor %q: %w", t.Name, err)
	}
	dtype, class := longestName(dtypes, t.DType), longestName(storages, t.DType)
	if dtype.Name == "" {
		return nil, fmt.Errorf("torch: tensor %q: torch has no element type %v; save it as "+
			"another type with what wrote it, or leave it out with --only", t.Name, t.DType)
	}
	shape, strides := IntTuple(t.Shape), IntTuple(t.Shape.Strides())
	hooks := &pickle.Object{Class: pickle.Global{Module: "collections", Name: "OrderedDict"}}
	function := pickle.Global{Module: "torch._utils", Name: "_rebuild_tensor_v2"}
	storage := func(class pickle.Global, n int64) pickle.Reference {
		return pickle.Reference{ID: pickle.Tuple{"storage", class, strconv.Itoa(i), "cpu", n}}
	}
	if class.Name != "" {
		return &pickle.Object{Class: function,
			Args: []any{storage(class, int64(n)), int64(0), shape, strides, false, hooks}}, nil
	}
	function.Name = "_rebuild_tensor_v3"
	class = pickle.Global{Module: "torch.storage", Name: "UntypedStorage"}
	return &pickle.Object{Class: function,
		Args: []any{storage(class, t.Bytes()), int64(0), shape, strides, false, hooks, dtype}}, nil
}

// longestName returns the longest name of an element type in a list (torch.float32, not
// torch.float); the zero value without one.
func longestName(list map[string]tensor.DType, d tensor.DType) pickle.Global {
	best := ""
	for name, x := range list {
		if x == d && (len(name) > len(best) || len(name) == len(best) && name < best) {
			best = name
		}
	}
	i := strings.LastIndexByte(best, '.')
	if i < 0 {
		return pickle.Global{}
	}
	return pickle.Global{Module: best[:i], Name: best[i+1:]}
}

// IntTuple returns a tuple of integers.
func IntTuple(list []int) pickle.Tuple {
	t := make(pickle.Tuple, len(list))
	for i, n := range list {
		t[i] = int64(n)
	}
	return t
}

// DTypeGlobal returns torch's name of an element type, the zero value if it has none.
func DTypeGlobal(d tensor.DType) pickle.Global { return longestName(dtypes, d) }

// ToPickle converts a value of a checkpoint to one of a pickle. It fails for one that could not be
// read.
func ToPickle(v any) (any, error) {
	switch v := v.(type) {
	case []any:
		list := &pickle.List{}
		for _, x := range v {
			p, err := ToPickle(x)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, p)
		}
		return list, nil
	case map[string]any:
		return &pickle.Dict{}, nil
	case format.Unread:
		return nil, v.Why
	}
	return v, nil
}
