package pickle

import (
	"fmt"
	"strings"
)

// This file takes values that Load has made apart. Look-ups in dicts and objects are for one
// goroutine at a time, as Dict.Get is.

// Get follows keys of dicts and attributes of objects, and returns the value, which must be a T.
// For T = any, None counts as missing.
func Get[T any](v any, path ...string) (T, error) {
	var none T
	for i, key := range path {
		var next any
		var ok bool
		switch v := v.(type) {
		case *Dict:
			next, ok = v.Get(key)
		case *Object:
			next, ok = v.Attr(key)
		default:
			return none, fmt.Errorf("%s is due in a dict or an object, not in %s",
				strings.Join(path[:i+1], "."), KindWithArticle(v))
		}
		if !ok {
			return none, fmt.Errorf("%s is missing", strings.Join(path[:i+1], "."))
		}
		v = next
	}
	t, ok := v.(T)
	switch {
	case ok:
		return t, nil
	case any(none) == nil: // T is any, and v None
		return none, fmt.Errorf("%s is None", strings.Join(path, "."))
	}
	return none, fmt.Errorf("%s is %s, not %s", strings.Join(path, "."), KindWithArticle(v),
		KindWithArticle(none))
}

// ParseSizes reads a tuple or list of numbers that are not negative, as shapes are.
func ParseSizes(v any) ([]int, error) {
	var items []any
	switch v := v.(type) {
	case Tuple:
		items = v
	case *List:
		items = v.Items
	default:
		return nil, fmt.Errorf("%s instead of sizes", KindWithArticle(v))
	}
	list := make([]int, len(items))
	for i, x := range items {
		n, ok := x.(int64)
		if !ok || n < 0 || int64(int(n)) != n {
			return nil, fmt.Errorf("%v is no size", x)
		}
		list[i] = int(n)
	}
	return list, nil
}
