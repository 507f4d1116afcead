package optim

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
)

// This file reads the groups of torch's own optimizers, in the forms that torch.save and torch's
// distributed checkpoint have, of a checkpoint that was read.

// statePart is the part of a path below which the state of parameters stands.
const statePart = "state."

// torchPrefix returns the prefix of the state of torch's optimizer, with a dot at the end, or ""
// when there is none.
func torchPrefix(c *format.Checkpoint) (prefix string, err error) {
	grouped := map[string]bool{}
	note := func(path string) {
		if i := strings.Index("."+path, "."+groupsKey); i >= 0 {
			grouped[path[:i]] = true
		}
	}
	for _, v := range c.Values {
		note(v.Path)
	}
	for _, t := range c.Tensors {
		note(t.Name)
	}
	var found []string
	for p := range grouped {
		if is := func(t format.Tensor) bool {
			return strings.HasPrefix(t.Name, p+statePart) && t.Coords == nil
		}; slices.ContainsFunc(c.Tensors, is) {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	if len(found) > 1 {
		return "", fmt.Errorf("there are %d optimizers (%sstate.…, %sstate.…), and the format "+
			"has place for one; choose with --only", len(found), found[0], found[1])
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0], nil
}

// A torchReader reads the state of torch's optimizer. It is for one goroutine and one call of
// FindGroups, and changes the checkpoint. It does no I/O but that of readNumber, which
// takeGroupValues calls.
type torchReader struct {
	c          *format.Checkpoint
	prefix     string                             // as torchPrefix returns it
	given      []Group                            // groups that the user gave; nil = none
	readNumber func(*format.Tensor, []byte) error // reads the elements of a tensor
	renamed    map[string]string                  // by its new name, the old name of each tensor
	// values has the values of groups, by the name of a parameter or the number of a group.
	values map[string][]format.Value
	order  []string // the keys of values, in the order in which the checkpoint has them
}

// readGroups finds the groups, takes their values out of the checkpoint, and renames the state in
// it.
func (t *torchReader) readGroups() (*Optimizer, error) {
	if err := t.takeGroupValues(); err != nil {
		return nil, err
	}
	o := &Optimizer{Ordered: true, Source: Torch,
		Where: t.prefix + strings.TrimSuffix(groupsKey, ".")}
	numbers := map[string]string{} // name of each number in the state
	if !hasParamList(t.values["0"]) {
		t.readFlattened(o)
	} else if err := t.readListed(o, numbers); err != nil {
		return nil, err
	}
	return o, t.renameState(o, numbers)
}

// takeGroupValues moves the values of groups from the checkpoint to values, by parameter or group.
func (t *torchReader) takeGroupValues() error {
	t.values = map[string][]format.Value{}
	at := t.prefix + groupsKey
	add := func(path string, v format.Value) {
		i := strings.LastIndex(path, ".")
		if i < 0 {
			return
		}
		if t.values[path[:i]] == nil {
			t.order = append(t.order, path[:i])
		}
		v.Path = path[i+1:]
		t.values[path[:i]] = append(t.values[path[:i]], v)
	}
	var err error
	t.c.Tensors = slices.DeleteFunc(slices.Clone(t.c.Tensors), func(x format.Tensor) bool {
		path, ok := strings.CutPrefix(x.Name, at)
		if ok && err == nil { // a learning rate in a tensor, for example
			var is any
			is, err = x.Number(t.readNumber)
			add(path, format.Value{Data: is})
		}
		return ok
	})
	t.c.Values = slices.DeleteFunc(slices.Clone(t.c.Values), func(v format.Value) bool {
		path, ok := strings.CutPrefix(v.Path, at)
		if ok {
			add(path, v)
		}
		return ok
	})
	for _, list := range t.values {
		slices.SortStableFunc(list, func(a, b format.Value) int {
			return strings.Compare(a.Path, b.Path)
		})
	}
	return err
}

// hasParamList reports whether these are the values of a group with a list of its parameters.
func hasParamList(values []format.Value) bool {
	return slices.ContainsFunc(values, func(v format.Value) bool {
		_, list := v.Data.([]any)
		return v.Path == "params" && list
	})
}

// readListed adds to o the groups that list their parameters: by name, or by numbers, in the order
// of param_names if the program has given names to the optimizer, or else of the groups that the
// user gave. It sets the name of each number in numbers.
func (t *torchReader) readListed(o *Optimizer, numbers map[string]string) error {
	for _, at := range t.order {
		n, err := strconv.Atoi(at)
		if err != nil || n < 0 || n >= maxGroups || !hasParamList(t.values[at]) {
			return fmt.Errorf("%s%s is no group with a list of parameters", groupsKey, at)
		}
		g, in := o.groupAt(n), []any(nil)
		for _, v := range t.values[at] {
			if v.Path == "params" {
				in, _ = v.Data.([]any)
			}
			g.addValue(v.Path, v)
		}
		if len(in) == 0 {
			return fmt.Errorf("%s%s has no parameters", groupsKey, at)
		}
		if _, byName := in[0].(string); byName {
			if g.Params = stringList(in); g.Params == nil {
				return fmt.Errorf("%s%s lists its parameters by names and by other things",
					groupsKey, at)
			}
			continue
		}
		if n < len(t.given) && len(g.Params) == 0 {
			g.Params = t.given[n].Params
		}
		if len(g.Params) != len(in) {
			if len(t.given) > 0 {
				return fmt.Errorf("%s: group %s has %d parameters, and the checkpoint's has %d, "+
					"which it numbers", fileFlag, at, len(g.Params), len(in))
			}
			return errors.New("it numbers its parameters and names none, as an optimizer does " +
				"that was given no names; say which are in which group, and in which order, " +
				"with --groups")
		}
		for i, x := range in {
			number, ok := x.(int64)
			if !ok {
				return fmt.Errorf("%s%s lists its parameters by numbers and by other things",
					groupsKey, at)
			}
			numbers[strconv.FormatInt(number, 10)] = g.Params[i]
		}
	}
	for i, g := range o.Groups {
		if len(g.Params) == 0 {
			return fmt.Errorf("of its groups number %d is missing", i)
		}
	}
	return nil
}

// readFlattened adds to o the groups that torch has flattened: each value under the name of each
// parameter. Two groups with equal values become one.
func (t *torchReader) readFlattened(o *Optimizer) {
	place, why := t.parameterOrder()
	o.Ordered, o.WhyUnordered = why == "", why
	names := slices.Clone(t.order)
	slices.SortFunc(names, func(a, b string) int {
		if place[a] != place[b] {
			return place[a] - place[b]
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		values := t.values[name]
		i := slices.IndexFunc(o.Groups, func(g Group) bool { return equalValues(g.Values, values) })
		if i < 0 {
			i = len(o.Groups)
			o.groupAt(i).Values = values
		}
		o.Groups[i].Params = append(o.Groups[i].Params, name)
	}
}

// equalValues reports whether two lists of values are equal.
func equalValues(a, b []format.Value) bool {
	return slices.EqualFunc(a, b, func(x, y format.Value) bool {
		return x.Path == y.Path && reflect.DeepEqual(x.Data, y.Data)
	})
}

// parameterOrder returns the place of each parameter in the optimizer, or why it is not known. A
// rank lists what it saves group by group and parameter by parameter. A rank that has saved
// something of each parameter tells the order by its groups, or if no rank's groups do, by its
// state, which no rank's groups may contradict. Names in alphabetical order were sorted by another
// program.
func (t *torchReader) parameterOrder() (place map[string]int, why string) {
	groups := t.listedParams(groupsKey)
	for _, lists := range [][][]string{groups, t.listedParams(statePart)} {
		i := slices.IndexFunc(lists, func(names []string) bool {
			return len(names) == len(t.values)
		})
		if i < 0 {
			continue
		}
		names := lists[i]
		if slices.IsSorted(names) && len(names) > 1 {
			return nil, "they stand in the order of their names, as in what another program " +
				"than the one that trains has written"
		}
		place = map[string]int{}
		for i, name := range names {
			place[name] = i
		}
		for _, some := range groups {
			if !slices.IsSortedFunc(some, func(a, b string) int { return place[a] - place[b] }) {
				return nil, "ranks list groups and state in different orders"
			}
		}
		return place, ""
	}
	return nil, "the groups are flattened, and no rank has written something of each parameter, " +
		"by which its order would be known"
}

// listedParams returns, for each rank, the names of parameters, each once, in the order in which it
// has listed what is below a part of the optimizer.
func (t *torchReader) listedParams(below string) (lists [][]string) {
	at := t.prefix + below
	ranks, seen := map[int][]string{}, map[format.SavedItem]bool{}
	for _, l := range t.c.SavedOrder {
		path, ok := strings.CutPrefix(l.Name, at)
		i := strings.LastIndex(path, ".")
		if !ok || i < 0 {
			continue
		}
		if l.Name = path[:i]; t.values[l.Name] != nil && !seen[l] {
			seen[l] = true
			ranks[l.Rank] = append(ranks[l.Rank], l.Name)
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(ranks)) {
		lists = append(lists, ranks[rank])
	}
	return lists
}

// renameState renames the state in the checkpoint, and fails for state of parameters that are in no
// group. numbers has the name of each number, if the state goes by numbers.
func (t *torchReader) renameState(o *Optimizer, numbers map[string]string) error {
	in := map[string]bool{}
	for _, g := range o.Groups {
		for _, name := range g.Params {
			if in[name] {
				return fmt.Errorf("parameter %q is in two groups", name)
			}
			in[name] = true
		}
	}
	called := func(path string) (string, error) {
		path = strings.TrimPrefix(path, t.prefix+statePart)
		i := strings.LastIndex(path, ".")
		if i < 0 {
			return "", fmt.Errorf("%q is no state of a parameter", path)
		}
		name := path[:i]
		if len(numbers) > 0 {
			name = numbers[name]
		}
		if !in[name] {
			return "", fmt.Errorf("there is state of parameter %q, which is in no group", path[:i])
		}
		return "optimizer." + path[i+1:] + "." + name, nil
	}
	var err error
	for i := range t.c.Tensors {
		x := &t.c.Tensors[i]
		if old := x.Name; strings.HasPrefix(old, t.prefix+statePart) {
			if x.Name, err = called(old); err != nil {
				return err
			}
			t.renamed[x.Name] = old
		}
	}
	t.c.Values = slices.Clone(t.c.Values)
	for i := range t.c.Values {
		if v := &t.c.Values[i]; strings.HasPrefix(v.Path, t.prefix+statePart) {
			if v.Path, err = called(v.Path); err != nil {
				return err
			}
		}
	}
	return t.c.Finish()
}
