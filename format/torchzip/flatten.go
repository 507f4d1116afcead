package torchzip

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// This file makes the tensors and values of a checkpoint of what a pickle holds.

// Bounds on a walk over a pickle: lists can contain themselves, and each other many times over.
const (
	maxDepth  = 64
	maxPath   = 4096      // bytes of a name
	maxMemory = 512 << 20 // bytes of names and values
	costStep  = 64        // bytes that each step counts for, besides what it copies
)

// Read opens a file as a checkpoint of its own, and reads no elements. Names are the keys of
// nested dicts, joined by dots. It blocks on the file, and is for the goroutine of files.
func Read(files *format.Files, name string) (*format.Checkpoint, error) {
	f, err := Open(files, name, nil)
	if err != nil {
		return nil, err
	}
	c := &format.Checkpoint{Format: "torch"}
	if err := f.FlattenRoot(c, ""); err != nil {
		return nil, err
	}
	if err := c.Finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// Flatten adds the tensors and values below v, which is the root or a part of it, to a checkpoint,
// under names that start with prefix. Dicts and objects are split; lists and tuples only when they
// contain a dict or a tensor. A dict without a key vanishes. It does no I/O, and is for the
// goroutine that has both f and c.
func (f *File) Flatten(c *format.Checkpoint, prefix string, v any) error {
	return f.flatten(&walker{c: c, memoryLeft: maxMemory}, prefix, v)
}

// FlattenRoot is Flatten of all that was saved, which keeps dicts without a key as values.
func (f *File) FlattenRoot(c *format.Checkpoint, prefix string) error {
	return f.flatten(&walker{c: c, memoryLeft: maxMemory, empty: true}, prefix, f.Root)
}

// flatten walks over v with w; its errors name the file.
func (f *File) flatten(w *walker, prefix string, v any) error {
	if err := w.walk(prefix, v, 0); err != nil {
		return fmt.Errorf("torch: %s: %w", f.Name, err)
	}
	return nil
}

// A walker adds what is in a pickle to a checkpoint, within bounds on depth and memory. It does no
// I/O, and is for one goroutine and one walk.
type walker struct {
	c          *format.Checkpoint
	memoryLeft int  // bytes of memory that the walk may still use
	empty      bool // whether a dict without a key becomes a value; else it vanishes
}

// countStep counts a step and the bytes that it copies, and fails when the walk goes too deep or
// takes too much memory.
func (w *walker) countStep(path string, depth, bytes int) error {
	switch {
	case depth > maxDepth:
		return fmt.Errorf("%.200q: nested more than %d deep, or in itself", path, maxDepth)
	case len(path) > maxPath:
		return fmt.Errorf("%.200q…: a name of more than %d bytes", path, maxPath)
	}
	if w.memoryLeft -= bytes + costStep; w.memoryLeft < 0 {
		return fmt.Errorf("%.200q: what is saved comes apart into more than %d bytes of names "+
			"and values; save long lists of numbers as tensors or arrays", path, maxMemory)
	}
	return nil
}

// walk adds the tensors and values below v, which is nested depth deep, to the checkpoint.
func (w *walker) walk(path string, v any, depth int) error {
	if err := w.countStep(path, depth, len(path)); err != nil {
		return err
	}
	switch v := v.(type) {
	case *Tensor:
		w.c.Tensors = append(w.c.Tensors, v.AsTensor(path))
		return nil
	case *pickle.Dict:
		if w.empty && len(v.Items) == 0 && path != "" {
			w.c.Values = append(w.c.Values, format.Value{Path: path, Data: map[string]any{}})
			return nil
		}
		return w.walkItems(path, v.Items, depth)
	case *pickle.Object:
		if state, ok := v.State.(*pickle.Dict); ok {
			return w.walkItems(path, state.Items, depth)
		}
	case *pickle.List:
		return w.walkList(path, v, v.Items, depth)
	case pickle.Tuple:
		return w.walkList(path, v, v, depth)
	}
	return w.addValue(path, v, depth)
}

// addValue adds v, which contains no tensor, to the checkpoint as one value.
func (w *walker) addValue(path string, v any, depth int) error {
	is, err := w.plainValue(path, v, depth)
	value := format.Value{Path: path, Data: is}
	if err == nil && !isComplete(v) {
		value.Python = v
	}
	w.c.Values = append(w.c.Values, value)
	return err
}

// walkItems adds what is below the items of a dict or of an object's state, and notes in the
// checkpoint that its names are nested.
func (w *walker) walkItems(path string, items []pickle.Item, depth int) error {
	w.c.Nested = w.c.Nested || path != "" && len(items) > 0
	for _, item := range items {
		key, err := w.keyText(path, item.Key, depth)
		if err != nil {
			return err
		}
		if err := w.walk(JoinPath(path, key), item.Value, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// JoinPath joins a name to the path above it.
func JoinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// keyText returns the key of a dict as a text. It counts as a step of the walk.
func (w *walker) keyText(path string, k any, depth int) (string, error) {
	if s, ok := k.(string); ok {
		return s, w.countStep(path, depth, len(s))
	}
	v, err := w.plainValue(path, k, depth+1)
	return strings.ReplaceAll(fmt.Sprint(v), " ", ","), err
}

// walkList adds a list or tuple v, whose items are given: item by item if containsTensors, and then
// it notes in the checkpoint that its names are nested; else as one value.
func (w *walker) walkList(path string, v any, items []any, depth int) error {
	deep, err := w.containsTensors(path, items, depth)
	if err != nil {
		return err
	}
	if !deep {
		return w.addValue(path, v, depth)
	}
	w.c.Nested = true
	for i, x := range items {
		if err := w.walk(JoinPath(path, strconv.Itoa(i)), x, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// containsTensors reports whether a tensor or a dict is among the items, or in the lists and the
// states of objects among them. Each counts as a step of the walk.
func (w *walker) containsTensors(path string, items []any, depth int) (bool, error) {
	for _, x := range items {
		if err := w.countStep(path, depth, 0); err != nil {
			return false, err
		}
		var in []any
		switch x := x.(type) {
		case *Tensor, *pickle.Dict:
			return true, nil
		case *pickle.List:
			in = x.Items
		case pickle.Tuple:
			in = x
		case *pickle.Object:
			if state, ok := x.State.(*pickle.Dict); ok {
				for _, item := range state.Items {
					in = append(in, item.Value)
				}
			}
		}
		if deep, err := w.containsTensors(path, in, depth+1); deep || err != nil {
			return deep, err
		}
	}
	return false, nil
}

// plainValue returns what a checkpoint has for a value that contains no tensor. It counts as a step
// of the walk.
func (w *walker) plainValue(path string, v any, depth int) (any, error) {
	text, _ := v.(string)
	if err := w.countStep(path, depth, len(text)); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil, bool, int64, *big.Int, float64, string, []byte:
		return v, nil
	case pickle.Tuple:
		return w.plainValues(path, v, depth)
	case *pickle.List:
		return w.plainValues(path, v.Items, depth)
	case *pickle.Set:
		return w.plainValues(path, v.Items, depth)
	case *pickle.Array:
		return v.Data, nil
	case *pickle.Buffer:
		return v.Data, nil
	case *pickle.NumpyType:
		return "numpy.dtype[" + v.Code + "]", nil
	case pickle.Global:
		return v.String(), nil
	case pickle.Member:
		return v.String(), nil
	case *pickle.Object:
		args, err := w.plainValues(path, v.Args, depth)
		return v.Class.String() + strings.ReplaceAll(fmt.Sprint(args), " ", ","), err
	}
	return nil, fmt.Errorf("%q: %s is no value of a checkpoint", path, pickle.KindWithArticle(v))
}

// plainValues returns what a checkpoint has for each of some items.
func (w *walker) plainValues(path string, items []any, depth int) ([]any, error) {
	list := make([]any, 0, len(items))
	for _, x := range items {
		v, err := w.plainValue(path, x, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
