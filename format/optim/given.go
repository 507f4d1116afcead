package optim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
)

// This file reads the groups that a user gives where a checkpoint does not state them. It does no
// I/O.

// MaxGroupsBytes bounds a text of groups, in bytes.
const MaxGroupsBytes = 64 << 20

// ParseGroups reads groups: a JSON list of objects, each with the names of its parameters in order
// under "params", and with values such as "lr". Values of a group are in the order of their keys.
func ParseGroups(text []byte) ([]Group, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var list []map[string]any
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf(
			`groups are a list of objects, such as [{"params": ["a.weight", "b.weight"], `+
				`"weight_decay": 0.1}]: %w`, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something stands after the groups")
	}
	if len(list) == 0 {
		return nil, errors.New("there are no groups")
	}
	seen := map[string]int{}
	var groups []Group
	for i, object := range list {
		in, _ := object["params"].([]any)
		g := Group{Params: stringList(in)}
		if len(g.Params) == 0 {
			return nil, fmt.Errorf(`group %d has no list of names under "params"`, i)
		}
		for _, name := range g.Params {
			if other, twice := seen[name]; twice {
				return nil, fmt.Errorf("parameter %q is in group %d and in group %d", name, other,
					i)
			}
			seen[name] = i
		}
		for key, x := range object {
			if key == "params" {
				continue
			}
			if key == "" || key == NamesKey || strings.Contains(key, ".") {
				return nil, fmt.Errorf(
					"group %d has something under %q, which is no name of a value", i, key)
			}
			is, err := plainJSON(x)
			if err != nil {
				return nil, fmt.Errorf("group %d, %s: %w", i, key, err)
			}
			g.Values = append(g.Values, format.Value{Path: key, Data: is})
		}
		slices.SortFunc(g.Values, func(a, b format.Value) int {
			return strings.Compare(a.Path, b.Path)
		})
		groups = append(groups, g)
	}
	return groups, nil
}

// plainJSON converts a JSON value to a value of a checkpoint.
func plainJSON(x any) (any, error) {
	switch x := x.(type) {
	case nil, bool, string:
		return x, nil
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n, nil
		}
		return x.Float64()
	case []any:
		list := make([]any, len(x))
		for i := range x {
			var err error
			if list[i], err = plainJSON(x[i]); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, errors.New("an object, where a number, a text or a list of these is due")
}
