// Package optim finds out which parameters are in which group of an optimizer, and in which order:
// formats that go by position need that, and formats with names have different ways to say it. It
// renames the state of torch's optimizers to the names that all other formats have,
// optimizer.KIND.NAME. It does no I/O but that of the function read of FindGroups.
package optim

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// NamesKey is the key of a group under which the names of its parameters stand.
const NamesKey = "param_names"

// maxGroups bounds the numbers of groups.
const maxGroups = 1 << 16

const (
	groupsKey  = "param_groups."    // the part of a path below which groups stand
	deepSpeeds = "optimizer_state." // prefix of paths in DeepSpeed's optimizers
)

// A Group is parameters that an optimizer treats alike.
type Group struct {
	Params []string // names of the parameters, in their order if it is known
	// Values are the learning rate and the like, by key. The first value of a key counts.
	Values []format.Value
}

// An Optimizer is what a checkpoint says of an optimizer. It does no I/O. Its exported methods do
// not change it, so that any goroutine may call them while nobody changes the groups.
type Optimizer struct {
	Groups []Group
	// Ordered reports whether groups, and the parameters in them, are in the order of the
	// optimizer.
	Ordered      bool
	WhyUnordered string // why the order is not known; "" = Ordered
	Source       Source // who states the groups
	// Where says where the groups are stated, for people: the prefix of the paths of values, or the
	// flag for a file with groups.
	Where string
}

// A Source says who states the groups.
type Source int

// The sources of groups.
const (
	Torch Source = iota
	DeepSpeed
	Megatron
	Given
)

// fileFlag is the flag for a file with groups.
const fileFlag = "--groups"

// groupPath matches the values of groups in checkpoints of DeepSpeed and Megatron.
var groupPath = pattern.New(
	`^(optimizer_state\.|optimizer\.(?:\d+\.)?(?:(?:optimizer|optimizer_state_dict)\.)?)param_g` +
		`roups\.(\d+)\.(.+)$`)

// FindGroups finds the groups of the optimizer of a checkpoint whose state has names: as given
// says, or as the checkpoint does; nil when neither says which parameters are in them. It changes
// the checkpoint: it renames the state of torch's optimizers from PREFIX.state.NAME.KIND to
// optimizer.KIND.NAME, and removes the values of its groups. read reads numbers. renamed is the old
// name of each renamed tensor, by the new one.
func FindGroups(c *format.Checkpoint, given []Group,
	read func(*format.Tensor, []byte) error) (o *Optimizer, renamed map[string]string, err error) {
	prefix, err := torchPrefix(c)
	if err != nil {
		return nil, nil, err
	}
	if prefix == "" {
		o = frameworkGroups(c)
	} else {
		t := torchReader{c: c, prefix: prefix, given: given, readNumber: read,
			renamed: map[string]string{}}
		if o, err = t.readGroups(); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", strings.TrimSuffix(prefix, "."), err)
		}
		renamed = t.renamed
	}
	if found := parametersWithState(c); given != nil {
		o, err = o.applyGiven(given, found)
	} else if o != nil && len(found) == 0 ||
		o != nil && o.Source != Torch && slices.ContainsFunc(o.Groups, func(g Group) bool {
			return len(g.Params) == 0
		}) {
		o = nil // no optimizer, or one that does not name all its parameters
	}
	return o, renamed, err
}

// stateName matches the state of a parameter: its kind, and the parameter.
var stateName = pattern.New(`^optimizer\.([^.]+)\.(.+)$`)

// parametersWithState returns the parameters for which there is a tensor of state, which is named
// optimizer.KIND.NAME by now.
func parametersWithState(c *format.Checkpoint) map[string]bool {
	found := map[string]bool{}
	for _, t := range c.Tensors {
		if m := stateName.FindStringSubmatch(t.Name); m != nil {
			found[m[2]] = true
		}
	}
	return found
}

// frameworkGroups finds the groups as DeepSpeed and Megatron state them, whose parameters are in
// param_names if they are known; nil without any. With two optimizers, as Megatron has for experts
// until they are joined, neither is complete, so the result is nil.
func frameworkGroups(c *format.Checkpoint) *Optimizer {
	o := &Optimizer{Ordered: true}
	for _, v := range c.Values {
		m := groupPath.FindStringSubmatch(v.Path)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[2])
		if err != nil || n >= maxGroups || o.Where != "" && !strings.HasPrefix(v.Path, o.Where) {
			return nil
		}
		o.Where = m[1] + strings.TrimSuffix(groupsKey, ".")
		o.groupAt(n).addValue(m[3], v)
	}
	if len(o.Groups) == 0 {
		return nil
	}
	if o.Source = Megatron; strings.HasPrefix(o.Where, deepSpeeds) {
		o.Source = DeepSpeed
	}
	return o
}

// groupAt returns the group of a number, which it adds if necessary. n is not negative; the caller
// alone has o.
func (o *Optimizer) groupAt(n int) *Group {
	for len(o.Groups) <= n {
		o.Groups = append(o.Groups, Group{})
	}
	return &o.Groups[n]
}

// addValue adds a value of a group under its key. The names of parameters become Params, and their
// numbers are left out.
func (g *Group) addValue(key string, v format.Value) {
	if list, ok := v.Data.([]any); key == NamesKey && ok {
		g.Params = stringList(list)
		return
	}
	if key != "params" && key != NamesKey {
		v.Path = key
		g.Values = append(g.Values, v)
	}
}

// stringList returns the texts in a list; nil when anything else is in it.
func stringList(list []any) (names []string) {
	for _, x := range list {
		name, ok := x.(string)
		if !ok {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// applyGiven returns the given groups. A value that a given group lacks comes from the checkpoint:
// from the group of the same number, or from the groups of its parameters if those are named, which
// must then agree. states are the parameters with state; it is used up when this fails.
func (o *Optimizer) applyGiven(given []Group, states map[string]bool) (*Optimizer, error) {
	of := map[string]*Group{}
	if o != nil {
		for i := range o.Groups {
			for _, name := range o.Groups[i].Params {
				of[name] = &o.Groups[i]
			}
		}
	}
	all, n := &Optimizer{Ordered: true, Source: Given, Where: fileFlag}, 0
	for i, g := range given {
		if len(g.Params) == 0 {
			return nil, fmt.Errorf("%s: group %d has no parameters", fileFlag, i)
		}
		values := slices.Clone(g.Values)
		for _, name := range g.Params {
			if !states[name] {
				return nil, fmt.Errorf(
					"%s: group %d has the parameter %q, of which there is no state", fileFlag, i,
					name)
			}
			n++
			own, first := of[name], of[g.Params[0]]
			if own == first {
				continue
			}
			if key := conflictingKey(own, first, g.Values); key != "" {
				return nil, fmt.Errorf("%s: group %d has %q and %q, of which the checkpoint "+
					"says another %s each; say which is meant", fileFlag, i, g.Params[0], name, key)
			}
		}
		from := of[g.Params[0]]
		if len(of) == 0 && o != nil && len(o.Groups) == len(given) {
			from = &o.Groups[i]
		}
		if from != nil {
			values = append(values, from.Values...)
		}
		all.Groups = append(all.Groups, Group{g.Params, firstOfEachKey(values)})
	}
	if n < len(states) {
		for _, g := range given {
			for _, name := range g.Params {
				delete(states, name)
			}
		}
		return nil, fmt.Errorf(
			"%s: there is state of %d parameters that are in none of its groups, such as %q",
			fileFlag, len(states), slices.Min(slices.Collect(maps.Keys(states))))
	}
	return all, nil
}

// firstOfEachKey returns the first value of each key.
func firstOfEachKey(values []format.Value) (list []format.Value) {
	seen := map[string]bool{}
	for _, v := range values {
		if !seen[v.Path] {
			seen[v.Path] = true
			list = append(list, v)
		}
	}
	return list
}

// conflictingKey returns a key in which two groups differ and that anew does not set, "" for none;
// "group" where one of them is nil.
func conflictingKey(a, b *Group, anew []format.Value) string {
	if a == nil || b == nil {
		return "group"
	}
	for _, x := range [][2]*Group{{a, b}, {b, a}} {
		for _, v := range x[0].Values {
			if is, there := x[1].value(v.Path); (!there || !reflect.DeepEqual(is, v.Data)) &&
				!slices.ContainsFunc(anew, func(w format.Value) bool {
					return w.Path == v.Path
				}) {
				return v.Path
			}
		}
	}
	return ""
}

// ValuesByParam returns the values of the group of each parameter, which parameters of a group
// share. They are the groups' own lists, not copies.
func (o *Optimizer) ValuesByParam() map[string][]format.Value {
	of := map[string][]format.Value{}
	for _, g := range o.Groups {
		for _, name := range g.Params {
			of[name] = g.Values
		}
	}
	return of
}

// DropGroups removes the values of groups from a checkpoint. It gives it a new list of values.
func DropGroups(c *format.Checkpoint) {
	c.Values = slices.DeleteFunc(slices.Clone(c.Values), func(v format.Value) bool {
		return groupPath.MatchString(v.Path)
	})
}

// value returns the value of a key. It returns false if there is none.
func (g *Group) value(key string) (any, bool) {
	for _, v := range g.Values {
		if v.Path == key {
			return v.Data, true
		}
	}
	return nil, false
}

// ReplaceIn changes the values of a checkpoint, which the caller alone has, so that they state
// these groups as DeepSpeed does; or no groups, if their order is not known.
func (o *Optimizer) ReplaceIn(c *format.Checkpoint) error {
	DropGroups(c)
	for i, g := range o.Groups {
		if !o.Ordered {
			break // nobody knows which group is the first
		}
		at := deepSpeeds + groupsKey + strconv.Itoa(i) + "."
		for _, v := range g.Values {
			v.Path = at + v.Path
			c.Values = append(c.Values, v)
		}
		var names []any
		for _, name := range g.Params {
			names = append(names, name)
		}
		c.Values = append(c.Values, format.Value{Path: at + NamesKey, Data: names})
	}
	return c.Finish()
}
