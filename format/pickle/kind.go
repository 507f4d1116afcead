package pickle

import (
	"math/big"
	"strings"
)

// This file names types of Python in messages of this package and of the formats.

// Kind returns what Python calls the type of a value, such as "int", "tuple" or "numpy.ndarray". A
// global goes by its name. Values of other packages have a method Kind.
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

// KindWithArticle returns Kind with its article, such as "an int"; None for None.
func KindWithArticle(v any) string {
	kind := Kind(v)
	switch {
	case v == nil:
		return kind
	case strings.ContainsRune("aeiou", rune(kind[0])):
		return "an " + kind
	}
	return "a " + kind
}
