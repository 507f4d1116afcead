// Package optim finds out which parameters are in which group of an optimizer, and in which order:
// formats that go by position need that, and those with names say it in ways of their own. State of
// torch's optimizers it takes under the names that all other formats have, optimizer.KIND.NAME.
package optim

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
)

// NamesKey is under which values of a group have the names of its parameters.
const NamesKey = "param_names"

// maxGroups bounds the numbers of groups.
const maxGroups = 1 << 16

const (
	groupsKey  = "param_groups."
	deepSpeeds = "optimizer_state." // what paths of DeepSpeed's optimizers begin with
)

// A Group is some parameters that an optimizer treats alike.
type Group struct {
	Params []string
	Values []format.Value // learning rate and the like, by key; of a key the first counts
}

// An Optimizer is what a checkpoint says of one.
type Optimizer struct {
	Groups []Group
	// whether groups, and the parameters in them, stand in the order of the optimizer
	Ordered bool
	Why     string // why they do not
	From    Source
	// where it is said, for people: paths of values begin so, or the flag for a file with groups
	Said string
}

// A Source is who says which groups there are.
type Source int

// Sources.
const (
	Torch Source = iota
	DeepSpeed
	Megatron
	Given
)

const fileFlag = "--groups"

// named is the path of what is of a group in the checkpoints of DeepSpeed and Megatron.
var named = regexp.MustCompile(
	`^(optimizer_state\.|optimizer\.(?:\d+\.)?(?:(?:optimizer|optimizer_state_dict)\.)?)param_groups\.(\d+)\.(.+)$`)

// Find finds the groups of the optimizer of a checkpoint whose state has names: as given says, or
// as the checkpoint does; nil when neither says which parameters are in them. It takes state of
// torch's optimizers, PREFIX.state.NAME.KIND, as optimizer.KIND.NAME, and the values of its groups
// away. read reads numbers. renamed are the tensors that have other names now, with those they had.
func Find(c *format.Checkpoint, given []Group,
	read func(*format.Tensor, []byte) error) (o *Optimizer, renamed map[string]string, err error) {
	prefix, err := torchs(c)
	if err != nil {
		return nil, nil, err
	}
	if prefix == "" {
		o = others(c)
	} else {
		t := taking{c: c, prefix: prefix, given: given, read: read, renamed: map[string]string{}}
		if o, err = t.take(); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", strings.TrimSuffix(prefix, "."), err)
		}
		renamed = t.renamed
	}
	if found := states(c); given != nil {
		o, err = o.as(given, found)
	} else if o != nil && len(found) == 0 ||
		o != nil && o.From != Torch && slices.ContainsFunc(o.Groups, func(g Group) bool {
			return len(g.Params) == 0
		}) {
		o = nil // there is none, or it names none of its parameters, or not all
	}
	return o, renamed, err
}

// stateName is that of a parameter's state: its kind, and the parameter.
var stateName = regexp.MustCompile(`^optimizer\.([^.]+)\.(.+)$`)

// states are the parameters of which there is state that has their shape, or a number of steps.
func states(c *format.Checkpoint) map[string]bool {
	found := map[string]bool{}
	for _, t := range c.Tensors {
		if m := stateName.FindStringSubmatch(t.Name); m != nil {
			found[m[2]] = true
		}
	}
	return found
}

// others finds the groups as DeepSpeed and Megatron have them, whose parameters are in param_names
// if they are known; nil without any. Of two optimizers, as Megatron has for experts until they are
// joined, none is all.
func others(c *format.Checkpoint) *Optimizer {
	o := &Optimizer{Ordered: true}
	for _, v := range c.Values {
		m := named.FindStringSubmatch(v.Path)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[2])
		if err != nil || n >= maxGroups || o.Said != "" && !strings.HasPrefix(v.Path, o.Said) {
			return nil
		}
		o.Said = m[1] + strings.TrimSuffix(groupsKey, ".")
		o.group(n).add(m[3], v)
	}
	if len(o.Groups) == 0 {
		return nil
	}
	if o.From = Megatron; strings.HasPrefix(o.Said, deepSpeeds) {
		o.From = DeepSpeed
	}
	return o
}

// group is that of a number.
func (o *Optimizer) group(n int) *Group {
	for len(o.Groups) <= n {
		o.Groups = append(o.Groups, Group{})
	}
	return &o.Groups[n]
}

// add adds a value of a group under its key.
func (g *Group) add(key string, v format.Value) {
	if list, ok := v.Is.([]any); key == NamesKey && ok {
		g.Params = texts(list)
		return
	}
	if key != "params" && key != NamesKey {
		v.Path = key
		g.Values = append(g.Values, v)
	}
}

// texts are the names in a list; nil when something else is in it.
func texts(list []any) (names []string) {
	for _, x := range list {
		name, ok := x.(string)
		if !ok {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// as are the groups that were given. What they say of no value the checkpoint does: of the group of
// the same number, or if it names parameters, of these, which must then agree.
func (o *Optimizer) as(given []Group, states map[string]bool) (*Optimizer, error) {
	of := map[string]*Group{}
	if o != nil {
		for i := range o.Groups {
			for _, name := range o.Groups[i].Params {
				of[name] = &o.Groups[i]
			}
		}
	}
	all, n := &Optimizer{Ordered: true, From: Given, Said: fileFlag}, 0
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
			if key := differ(own, first, g.Values); key != "" {
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
		all.Groups = append(all.Groups, Group{g.Params, firsts(values)})
	}
	if n < len(states) {
		for _, g := range given {
			for _, name := range g.Params {
				delete(states, name)
			}
		}
		return nil, fmt.Errorf(
			"%s: there is state of %d parameters that are in none of its groups, such as %q",
			fileFlag, len(states), slices.Min(keys(states)))
	}
	return all, nil
}

func keys(set map[string]bool) (list []string) {
	for k := range set {
		list = append(list, k)
	}
	return list
}

// firsts leaves of each key the first value.
func firsts(values []format.Value) (list []format.Value) {
	seen := map[string]bool{}
	for _, v := range values {
		if !seen[v.Path] {
			seen[v.Path] = true
			list = append(list, v)
		}
	}
	return list
}

// differ is a key of which two groups have another value, and which is not said anew; "" for none.
func differ(a, b *Group, anew []format.Value) string {
	if a == nil || b == nil {
		return "group"
	}
	for _, x := range [][2]*Group{{a, b}, {b, a}} {
		for _, v := range x[0].Values {
			if is, there := x[1].value(v.Path); (!there || !reflect.DeepEqual(is, v.Is)) &&
				!slices.ContainsFunc(anew, func(w format.Value) bool {
					return w.Path == v.Path
				}) {
				return v.Path
			}
		}
	}
	return ""
}

// Values are those of the group of each parameter.
func (o *Optimizer) Values() map[string][]format.Value {
	of := map[string][]format.Value{}
	for _, g := range o.Groups {
		for _, name := range g.Params {
			of[name] = g.Values
		}
	}
	return of
}

// Drop takes away the values of groups.
func Drop(c *format.Checkpoint) {
	c.Values = slices.DeleteFunc(slices.Clone(c.Values), func(v format.Value) bool {
		return named.MatchString(v.Path)
	})
}

// value is that of a key.
func (g *Group) value(key string) (any, bool) {
	for _, v := range g.Values {
		if v.Path == key {
			return v.Is, true
		}
	}
	return nil, false
}

// Replace has the values of a checkpoint say what is said here as DeepSpeed's do, with the names in
// order if there is one.
func (o *Optimizer) Replace(c *format.Checkpoint) error {
	Drop(c)
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
		c.Values = append(c.Values, format.Value{Path: at + NamesKey, Is: names})
	}
	return c.Finish()
}
