package torchzip

import (
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// This file keeps the Python types of values, as far as torch.load allows, when a checkpoint is
// written again. It does no I/O.

// loadable lists the classes, besides those of tensors, whose objects torch.load accepts with
// weights_only.
var loadable = []pickle.Global{{Module: "builtins", Name: "complex"},
	{Module: "torch", Name: "device"}}

// isComplete reports whether the plain value of v is complete, so that ToPickle restores v.
func isComplete(v any) bool {
	switch v := v.(type) {
	case pickle.Tuple, *pickle.Set, *pickle.Array, *pickle.NumpyType, *pickle.Buffer,
		pickle.Global, pickle.Member, *pickle.Object:
		return false
	case *pickle.List:
		return !slices.ContainsFunc(v.Items, func(x any) bool { return !isComplete(x) })
	}
	return true
}

// PickledValue returns a value as the output's pickle has it: like its own pickle, as far as
// torch.load accepts it with weights_only. It adds a value that changes to the output's Altered.
func PickledValue(o *format.Output, v format.Value) (any, error) {
	if v.Python == nil {
		return ToPickle(v.Data)
	}
	k := converter{walker: walker{memoryLeft: maxMemory}, altered: format.Altered{Path: v.Path}}
	p, err := k.toLoadable(v.Python)
	if k.altered.Was != "" {
		o.Altered = append(o.Altered, k.altered)
	}
	return p, err
}

// A converter makes what a pickle can hold, and records the first thing that changes. It does no
// I/O, and is for one goroutine and one call of PickledValue.
type converter struct {
	walker
	altered format.Altered // first thing that changed; Was is "" while nothing has
}

// toLoadable returns what a pickle for torch.load can hold of v.
func (k *converter) toLoadable(v any) (any, error) {
	switch v := v.(type) {
	case pickle.Tuple:
		return k.convertAll(v)
	case *pickle.List:
		items, err := k.convertAll(v.Items)
		return &pickle.List{Items: items}, err
	case *pickle.Set:
		if v.Frozen {
			k.recordAltered(v, "set")
		}
		items, err := k.convertAll(v.Items)
		return &pickle.Object{Class: pickle.Global{Module: "builtins", Name: "set"},
			Args: []any{&pickle.List{Items: items}}}, err
	case *pickle.Object:
		if slices.Contains(loadable, v.Class) && v.State == nil {
			args, err := k.convertAll(v.Args)
			return &pickle.Object{Class: v.Class, Args: args}, err
		}
	case pickle.Global:
		if _, err := ParseDType(v); err == nil {
			return v, nil
		}
	}
	is, err := k.plainValue(k.altered.Path, v, 0)
	if !isComplete(v) {
		k.recordAltered(v, pickle.Kind(is))
	}
	return is, err
}

// convertAll converts each of some items.
func (k *converter) convertAll(items []any) (pickle.Tuple, error) {
	list := make(pickle.Tuple, 0, len(items))
	for _, x := range items {
		p, err := k.toLoadable(x)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// recordAltered records that v becomes something else, if it is the first that does.
func (k *converter) recordAltered(v any, is string) {
	if k.altered.Was == "" {
		k.altered.Was, k.altered.Is = pickle.Kind(v), is
	}
}
