package torchzip

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// This file reverses Flatten for values: it makes nested dicts of paths. It does no I/O.

// NestValues adds values to a dict, as nested dicts by the dots in their paths, which reverses
// Flatten. convert makes values of a pickle, as ToPickle does.
func NestValues(d *pickle.Dict, values []format.Value, convert func(any) (any, error)) error {
	for _, v := range values {
		p, err := convert(v.Data)
		if err == nil {
			err = d.Put(v.Path, p)
		}
		if err != nil {
			return fmt.Errorf("torch: value %q: %w (or leave out what is no tensor: --no-values)",
				v.Path, err)
		}
	}
	return nil
}

// enumText matches the text that Flatten makes of an enumeration: MODULE.CLASS.NAME of a member,
// MODULE.CLASS[VALUE] of a call with a value.
var enumText = pattern.New(`^([\w.]+)\.(\w+)(?:\.(\w+)|\[([^\]]*)\])$`)

// ObjectsToPickle returns a function that is ToPickle for values among which there can be objects:
// element types, and enumerations of known classes, come from the texts that Flatten has made of
// them. A text that was one before and reads like these becomes an object too.
func ObjectsToPickle(known pickle.Globals) func(any) (any, error) {
	return func(v any) (any, error) {
		text, ok := v.(string)
		if !ok {
			return ToPickle(v)
		}
		if module, name, ok := strings.Cut(text, "."); ok {
			g := pickle.Global{Module: module, Name: name}
			if _, err := ParseDType(g); err == nil {
				return g, nil
			}
		}
		m := enumText.FindStringSubmatch(text)
		if m == nil || known[pickle.Global{Module: m[1], Name: m[2]}] == nil {
			return text, nil
		}
		class := pickle.Global{Module: m[1], Name: m[2]}
		if m[3] != "" {
			return pickle.Member{Class: class, Name: m[3]}, nil
		}
		if n, err := strconv.ParseInt(m[4], 10, 64); err == nil {
			return &pickle.Object{Class: class, Args: []any{n}}, nil
		}
		return &pickle.Object{Class: class, Args: []any{m[4]}}, nil
	}
}
