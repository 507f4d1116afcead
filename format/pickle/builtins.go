package pickle

import (
	"fmt"
	"maps"
	"slices"
)

// This file is what a pickle may call without the format's leave. A constructor gets the arguments
// of a call, which it may keep, and makes the value in Go; it does no I/O, and runs on the
// goroutine that loads the pickle.

// Builtins are the names from Python's standard library that every pickle may mention.
var Builtins = joinGlobals(
	Globals{
		{"collections", "OrderedDict"}: newDict,
		{"collections", "defaultdict"}: func(args []any) (any, error) {
			return newDict(args[min(1, len(args)):])
		},
		{"collections", "Counter"}: newDict,
		{"builtins", "dict"}:       newDict,
		{"builtins", "list"}: func(args []any) (any, error) {
			items, err := containerItems(args)
			return &List{items}, err
		},
		{"builtins", "tuple"}: func(args []any) (any, error) {
			items, err := containerItems(args)
			return Tuple(items), err
		},
		{"builtins", "set"}: func(args []any) (any, error) {
			items, err := containerItems(args)
			return &Set{Items: items}, err
		},
		{"builtins", "frozenset"}: func(args []any) (any, error) {
			items, err := containerItems(args)
			return &Set{items, true}, err
		},
		{"builtins", "bytearray"}: newBytes,
		{"builtins", "bytes"}:     newBytes,
		{"_io", "BytesIO"}: func([]any) (any, error) {
			return &Buffer{}, nil
		},
		{"builtins", "getattr"}:                    newMember,
		{"_codecs", "encode"}:                      newEncodedText,
		{"numpy", "dtype"}:                         newNumpyType,
		{"numpy.core.multiarray", "_reconstruct"}:  newArray,
		{"numpy._core.multiarray", "_reconstruct"}: newArray,
		{"numpy.core.numeric", "_frombuffer"}:      newFilledArray,
		{"numpy._core.numeric", "_frombuffer"}:     newFilledArray,
		{"numpy.core.multiarray", "scalar"}:        newNumpyScalar,
		{"numpy._core.multiarray", "scalar"}:       newNumpyScalar,
	},
	NameGlobals("numpy.ndarray", "builtins.int", "builtins.long", "builtins.float",
		"builtins.unicode",
		"builtins.str", "builtins.bool", "builtins.object"),
	InertGlobals("argparse.Namespace", "types.SimpleNamespace", "builtins.complex",
		"builtins.slice",
		"datetime.datetime", "datetime.timedelta",
		"pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath"),
)

// joinGlobals returns the globals of all lists. Of a global that is in several lists the last
// counts.
func joinGlobals(lists ...Globals) Globals {
	all := Globals{}
	for _, l := range lists {
		maps.Copy(all, l)
	}
	return all
}

// With returns a new list with the globals of g and of the other lists; where two lists have the
// same, g counts.
func (g Globals) With(more ...Globals) Globals { return joinGlobals(append(more, g)...) }

// newDict makes a dict, which the pickle fills afterwards; or from another one, as Python does for
// Counter, or from a list of pairs, as Python 2 did for OrderedDict.
func newDict(args []any) (any, error) {
	d := &Dict{}
	if len(args) == 1 {
		if from, is := args[0].(*Dict); is {
			d.Items = slices.Clone(from.Items)
			return d, nil
		}
	}
	items, err := containerItems(args)
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

// containerItems returns a copy of the items of the one argument from which a container is made;
// without an argument, nothing.
func containerItems(args []any) ([]any, error) {
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

// newMember makes a member of an enumeration, as Python 3.11 pickles it.
func newMember(args []any) (any, error) {
	if len(args) == 2 {
		class, isGlobal := args[0].(Global)
		if name, isText := args[1].(string); isGlobal && isText {
			return Member{class, name}, nil
		}
	}
	return nil, fmt.Errorf("it is known for members of classes only")
}

// newEncodedText makes bytes, which protocol 2 writes as a text in Latin-1.
func newEncodedText(args []any) (any, error) {
	if len(args) != 2 || args[1] != "latin1" && args[1] != "latin-1" {
		return nil, fmt.Errorf("%d arguments where a text and latin1 are due", len(args))
	}
	return encodeLatin1(args[0])
}

// encodeLatin1 encodes a text in Latin-1.
func encodeLatin1(v any) ([]byte, error) {
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

// newBytes makes bytes or a bytearray, which both become []byte.
func newBytes(args []any) (any, error) {
	switch len(args) {
	case 0:
		return []byte{}, nil
	case 1:
		if b, ok := args[0].([]byte); ok {
			return slices.Clone(b), nil
		}
	case 2:
		return newEncodedText(args)
	}
	return nil, fmt.Errorf("%d arguments where bytes are due", len(args))
}
