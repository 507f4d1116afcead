package torchzip

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// Bounds on a walk over a pickle: lists can contain themselves, and each other many times over.
const (
	maxDepth  = 64
	maxPath   = 4096      // bytes of a name
	maxMemory = 512 << 20 // bytes of names and values
	costStep  = 64        // bytes that each step counts for, besides what it copies
)

// Read opens a file as a checkpoint of its own. Names are the keys of nested dicts, joined by dots.
func Read(files *format.Files, name string) (*format.Checkpoint, error) {
	f, err := Open(files, name, nil)
	if err != nil {
		return nil, err
	}
	c := &format.Checkpoint{Format: "torch"}
	w := &walker{c: c, memoryLeft: maxMemory, empty: true}
	if err := f.flatten(w, "", f.Root); err != nil {
		return nil, err
	}
	if err := c.Finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// Flatten adds the tensors and values below v, which is the root or a part of it, under names that
// start with prefix. Dicts and objects are split; lists and tuples only when they contain a dict or
// a tensor.
func (f *File) Flatten(c *format.Checkpoint, prefix string, v any) error {
	return f.flatten(&walker{c: c, memoryLeft: maxMemory}, prefix, v)
}

func (f *File) flatten(w *walker, prefix string, v any) error {
	if err := w.walk(prefix, v, 0); err != nil {
		return fmt.Errorf("torch: %s: %w", f.Name, err)
	}
	return nil
}

// A walker adds what is in a pickle to a checkpoint, within bounds on depth and memory.
type walker struct {
	c          *format.Checkpoint
	memoryLeft int  // bytes of memory that the walk may still use
	empty      bool // whether a dict without a key becomes a value; else it vanishes
}

// enter counts a step, and the bytes that it copies.
func (w *walker) enter(path string, depth, bytes int) error {
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

func (w *walker) walk(path string, v any, depth int) error {
	if err := w.enter(path, depth, len(path)); err != nil {
		return err
	}
	switch v := v.(type) {
	case *Tensor:
		w.c.Tensors = append(w.c.Tensors, v.As(path))
		return nil
	case *pickle.Dict:
		if w.empty && len(v.Items) == 0 && path != "" {
			w.c.Values = append(w.c.Values, format.Value{Path: path, Data: map[string]any{}})
			return nil
		}
		return w.items(path, v.Items, depth)
	case *pickle.Object:
		if state, ok := v.State.(*pickle.Dict); ok {
			return w.items(path, state.Items, depth)
		}
	case *pickle.List:
		return w.list(path, v, v.Items, depth)
	case pickle.Tuple:
		return w.list(path, v, v, depth)
	}
	return w.add(path, v, depth)
}

// add adds a value.
func (w *walker) add(path string, v any, depth int) error {
	is, err := w.value(path, v, depth)
	value := format.Value{Path: path, Data: is}
	if err == nil && !isComplete(v) {
		value.Python = v
	}
	w.c.Values = append(w.c.Values, value)
	return err
}

func (w *walker) items(path string, items []pickle.Item, depth int) error {
	w.c.Nested = w.c.Nested || path != "" && len(items) > 0
	for _, item := range items {
		key, err := w.key(path, item.Key, depth)
		if err != nil {
			return err
		}
		if err := w.walk(Join(path, key), item.Value, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// Join joins a name to the path above it.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (w *walker) key(path string, k any, depth int) (string, error) {
	if s, ok := k.(string); ok {
		return s, w.enter(path, depth, len(s))
	}
	v, err := w.value(path, k, depth+1)
	return strings.ReplaceAll(fmt.Sprint(v), " ", ","), err
}

// list adds a list or tuple v.
func (w *walker) list(path string, v any, items []any, depth int) error {
	deep, err := w.containsTensors(path, items, depth)
	if err != nil {
		return err
	}
	if !deep {
		return w.add(path, v, depth)
	}
	for i, x := range items {
		if err := w.walk(Join(path, strconv.Itoa(i)), x, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// containsTensors reports whether a tensor or a dict is among the items, or in lists among them.
func (w *walker) containsTensors(path string, items []any, depth int) (bool, error) {
	for _, x := range items {
		if err := w.enter(path, depth, 0); err != nil {
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
		}
		if deep, err := w.containsTensors(path, in, depth+1); deep || err != nil {
			return deep, err
		}
	}
	return false, nil
}

// value makes a plain value of one that contains no tensor.
func (w *walker) value(path string, v any, depth int) (any, error) {
	text, _ := v.(string)
	if err := w.enter(path, depth, len(text)); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil, bool, int64, *big.Int, float64, string, []byte:
		return v, nil
	case pickle.Tuple:
		return w.values(path, v, depth)
	case *pickle.List:
		return w.values(path, v.Items, depth)
	case *pickle.Set:
		return w.values(path, v.Items, depth)
	case *pickle.Array:
		return v.Data, nil
	case *pickle.Buffer:
		return v.Data, nil
	case pickle.Global:
		return v.String(), nil
	case pickle.Member:
		return v.String(), nil
	case *pickle.Object:
		args, err := w.values(path, v.Args, depth)
		return v.Class.String() + strings.ReplaceAll(fmt.Sprint(args), " ", ","), err
	}
	return nil, fmt.Errorf("%q: %s is no value of a checkpoint", path, pickle.KindWithArticle(v))
}

func (w *walker) values(path string, items []any, depth int) ([]any, error) {
	list := make([]any, 0, len(items))
	for _, x := range items {
		v, err := w.value(path, x, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
