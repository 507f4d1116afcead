package pickle

import (
	"fmt"
	"maps"
	"slices"
)

// Builtins are the names from Python's standard library that every pickle may mention.
var Builtins = join(
	Globals{
		{"collections", "OrderedDict"}: dict,
		{"collections", "defaultdict"}: func(args []any) (any, error) {
			return dict(args[min(1, len(args)):])
		},
		{"collections", "Counter"}: dict,
		{"builtins", "dict"}:       dict,
		{"builtins", "list"}: func(args []any) (any, error) {
			items, err := itemsOf(args)
			return &List{items}, err
		},
		{"builtins", "tuple"}: func(args []any) (any, error) {
			items, err := itemsOf(args)
			return Tuple(items), err
		},
		{"builtins", "set"}: func(args []any) (any, error) {
			items, err := itemsOf(args)
			return &Set{Items: items}, err
		},
		{"builtins", "frozenset"}: func(args []any) (any, error) {
			items, err := itemsOf(args)
			return &Set{items, true}, err
		},
		{"builtins", "bytearray"}: bytearray,
		{"builtins", "bytes"}:     bytearray,
		{"_io", "BytesIO"}: func([]any) (any, error) {
			return &Buffer{}, nil
		},
		{"builtins", "getattr"}:                    member,
		{"_codecs", "encode"}:                      encode,
		{"numpy", "dtype"}:                         newNumpyType,
		{"numpy.core.multiarray", "_reconstruct"}:  newArray,
		{"numpy._core.multiarray", "_reconstruct"}: newArray,
		{"numpy.core.multiarray", "scalar"}:        numpyScalar,
		{"numpy._core.multiarray", "scalar"}:       numpyScalar,
	},
	Names("numpy.ndarray", "builtins.int", "builtins.long", "builtins.float", "builtins.unicode",
		"builtins.str", "builtins.bool", "builtins.object"),
	Inert("argparse.Namespace", "types.SimpleNamespace", "builtins.complex", "builtins.slice",
		"datetime.datetime", "datetime.timedelta",
		"pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath"),
)

// join puts lists of globals together.
func join(lists ...Globals) Globals {
	all := Globals{}
	for _, l := range lists {
		maps.Copy(all, l)
	}
	return all
}

// With returns the globals of both lists.
func (g Globals) With(more ...Globals) Globals { return join(append(more, g)...) }

// dict makes a dict, which the pickle fills afterwards; or from another one, as Python does for
// Counter, or from a list of pairs, as Python 2 did for OrderedDict.
func dict(args []any) (any, error) {
	d := &Dict{}
	if len(args) == 1 {
		if from, is := args[0].(*Dict); is {
			d.Items = slices.Clone(from.Items)
			return d, nil
		}
	}
	items, err := itemsOf(args)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		var pair []any
		switch item := item.(type) {
		case Tuple:
			pair = item
		case *List:
			pair = item.Items
		}
		if len(pair) != 2 {
			return nil, fmt.Errorf("%s where a key and a value are due", KindWithArticle(item))
		}
		d.Items = append(d.Items, Item{pair[0], pair[1]})
	}
	return d, nil
}

// itemsOf returns the items of the one argument from which a container is made; without an
// argument, nothing.
func itemsOf(args []any) ([]any, error) {
	switch len(args) {
	case 0:
		return nil, nil
	case 1:
		switch from := args[0].(type) {
		case *List:
			return slices.Clone(from.Items), nil
		case Tuple:
			return slices.Clone(from), nil
		case *Set:
			return slices.Clone(from.Items), nil
		}
	}
	return nil, fmt.Errorf("it takes a list, not %d arguments", len(args))
}

// member makes a member of an enumeration, as Python 3.11 pickles it.
func member(args []any) (any, error) {
	if len(args) == 2 {
		class, isGlobal := args[0].(Global)
		if name, isText := args[1].(string); isGlobal && isText {
			return Member{class, name}, nil
		}
	}
	return nil, fmt.Errorf("it is known for members of classes only")
}

// encode makes bytes, which protocol 2 writes as a text in Latin-1.
func encode(args []any) (any, error) {
	if len(args) != 2 || args[1] != "latin1" && args[1] != "latin-1" {
		return nil, fmt.Errorf("%d arguments where a text and latin1 are due", len(args))
	}
	return latin1(args[0])
}

// latin1 encodes a text in Latin-1.
func latin1(v any) ([]byte, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("%s, which is no text", KindWithArticle(v))
	}
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return nil, fmt.Errorf("character %q is not in Latin-1", r)
		}
		b = append(b, byte(r))
	}
	return b, nil
}

// bytearray makes bytes or a bytearray, which both become []byte.
func bytearray(args []any) (any, error) {
	switch len(args) {
	case 0:
		return []byte{}, nil
	case 1:
		if b, ok := args[0].([]byte); ok {
			return slices.Clone(b), nil
		}
	case 2:
		return encode(args)
	}
	return nil, fmt.Errorf("%d arguments where bytes are due", len(args))
}
