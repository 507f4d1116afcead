package torchzip

import (
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// taken are the classes, beside those of tensors, of which torch.load with weights_only takes
// objects.
var taken = []pickle.Global{{Module: "builtins", Name: "complex"},
	{Module: "torch", Name: "device"}}

// told reports whether what value makes of v tells all of it, so that Plain gives it back.
func told(v any) bool {
	switch v := v.(type) {
	case pickle.Tuple, *pickle.Set, *pickle.Array, *pickle.Buffer, pickle.Global, pickle.Member,
		*pickle.Object:
		return false
	case *pickle.List:
		return !slices.ContainsFunc(v.Items, func(x any) bool { return !told(x) })
	}
	return true
}

// Pickled makes of a value what a pickle of the output has: what its own pickle had, as far as
// torch.load with weights_only takes it. What becomes something else, the output then says.
func Pickled(o *format.Output, v format.Value) (any, error) {
	if v.Python == nil {
		return Plain(v.Data)
	}
	k := keeper{walker: walker{left: maxMemory}, altered: format.Altered{Path: v.Path}}
	p, err := k.keep(v.Python)
	if k.altered.Was != "" {
		o.Altered = append(o.Altered, k.altered)
	}
	return p, err
}

// keeper makes what a pickle can have, and notes the first thing that becomes something else.
type keeper struct {
	walker
	altered format.Altered
}

func (k *keeper) keep(v any) (any, error) {
	switch v := v.(type) {
	case pickle.Tuple:
		return k.all(v)
	case *pickle.List:
		items, err := k.all(v.Items)
		return &pickle.List{Items: items}, err
	case *pickle.Set:
		if v.Frozen {
			k.becomes(v, "set")
		}
		items, err := k.all(v.Items)
		return &pickle.Object{Class: pickle.Global{Module: "builtins", Name: "set"},
			Args: []any{&pickle.List{Items: items}}}, err
	case *pickle.Object:
		if slices.Contains(taken, v.Class) && v.State == nil {
			args, err := k.all(v.Args)
			return &pickle.Object{Class: v.Class, Args: args}, err
		}
	case pickle.Global:
		if _, err := DType(v); err == nil {
			return v, nil
		}
	}
	is, err := k.value(k.altered.Path, v, 0)
	if !told(v) {
		k.becomes(v, pickle.Kind(is))
	}
	return is, err
}

// all keeps each of some items.
func (k *keeper) all(items []any) (pickle.Tuple, error) {
	list := make(pickle.Tuple, 0, len(items))
	for _, x := range items {
		p, err := k.keep(x)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func (k *keeper) becomes(v any, is string) {
	if k.altered.Was == "" {
		k.altered.Was, k.altered.Is = pickle.Kind(v), is
	}
}
