package pickle

import (
	"math/big"
	"strings"
)

// Kind is what Python calls the type of a value, as in "int", "tuple" and "numpy.ndarray". A global
// goes by its name. What a constructor has made that is no type of this package says it by a method
// Kind of its own.
func Kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []byte:
		return "bytes"
	case Tuple:
		return "tuple"
	case *List, []any:
		return "list"
	case *Dict:
		return "dict"
	case *Set:
		if v != nil && v.Frozen {
			return "frozenset"
		}
		return "set"
	case *Array:
		return "numpy.ndarray"
	case *NumpyType:
		return "numpy.dtype"
	case *Buffer:
		return "io.BytesIO"
	case Global:
		return v.String()
	case Member:
		return v.Class.String()
	case *Object:
		if v != nil {
			return strings.TrimPrefix(v.Class.String(), "builtins.")
		}
	case interface{ Kind() string }:
		return v.Kind()
	}
	return "object"
}

// A is Kind with its article, as in "an int"; of None it is None.
func A(v any) string {
	kind := Kind(v)
	switch {
	case v == nil:
		return kind
	case strings.ContainsRune("aeiou", rune(kind[0])):
		return "an " + kind
	}
	return "a " + kind
}
