package megatron

// This file numbers parameters in the optimizers that a writer (layout.go) lays out; no I/O.
import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// namesKey is the key under which the values of a group have the names of its parameters, in the
// order of the model. The files have numbers.
const namesKey = "param_names"

// groupPath matches what an optimizer has for a group; of several optimizers one is of experts.
var groupPath = pattern.New(
	`^(optimizer\.(?:\d+\.)?)(?:(optimizer|optimizer_state_dict)\.)?param_groups\.(\d+)\.(.+)$`)

// An optimizerPlan is what is known of an optimizer besides tensors. One goroutine; no I/O.
type optimizerPlan struct {
	prefix string // prefix of its paths
	// the key under which there is torch's optimizer, "" where there is no other around it
	inner  string
	groups map[int]*groupPlan // by number, from 0 without a gap
	params map[string]bool    // parameters in any of its groups
}

// A groupPlan is what is known of a group of parameters. Its methods never change it; no I/O.
type groupPlan struct {
	names  []string       // parameters
	values []format.Value // by key
}

// planOptimizers finds the optimizers among the values, and sets them in the writer, with the order
// of parameters and the numbers of steps. When no tensor is of a parameter's state there are none.
func (w *writer) planOptimizers() (err error) {
	w.order, w.steps = map[string]int{}, map[string][]format.Value{}
	if !slices.ContainsFunc(w.ranks, func(s *rankFiles) bool { return len(s.states) > 0 }) {
		return nil
	}
	for _, v := range w.values {
		if m := knownTensor.FindStringSubmatch(v.Path); m != nil && m[1] != "" {
			w.steps[m[2]] = append(w.steps[m[2]], format.Value{Path: m[1], Data: v.Data})
		}
	}
	if w.optimizers, err = readPlans(w.values); err != nil {
		return err
	}
	for _, o := range w.optimizers {
		for i := range len(o.groups) {
			for _, name := range o.groups[i].names {
				w.order[name] = len(w.order) + 1
			}
		}
	}
	return nil
}

// readPlans returns the optimizers that values describe, in their order.
func readPlans(values []format.Value) (plans, error) {
	var list plans
	for _, v := range values {
		m := groupPath.FindStringSubmatch(v.Path)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[3])
		if err != nil || n > 1<<20 {
			return nil, fmt.Errorf("value %q: a group of such a number", v.Path)
		}
		if err := list.planOf(m[1], m[2]).addValue(n, m[4], v); err != nil {
			return nil, fmt.Errorf("value %q: %w", v.Path, err)
		}
	}
	for _, o := range list {
		for i := range len(o.groups) {
			if o.groups[i] == nil {
				return nil, fmt.Errorf("of the groups of %s (param_groups), %d of %d is missing",
					strings.TrimSuffix(o.prefix, "."), i, len(o.groups))
			}
			o.groups[i].names = inModelOrder(o.groups[i].names)
		}
	}
	slices.SortStableFunc(list, func(a, b *optimizerPlan) int {
		return cmp.Compare(a.number(), b.number())
	})
	return list, nil
}

// A plans is all optimizers of a checkpoint, in their order.
type plans []*optimizerPlan

// planOf returns the plan of an optimizer, which it adds if necessary.
func (p *plans) planOf(prefix, inner string) *optimizerPlan {
	i := slices.IndexFunc(*p, func(o *optimizerPlan) bool {
		return o.prefix == prefix && o.inner == inner
	})
	if i < 0 {
		i = len(*p)
		*p = append(*p, &optimizerPlan{prefix: prefix, inner: inner, groups: map[int]*groupPlan{}})
	}
	return (*p)[i]
}

// number returns which of several optimizers it is, 0 for the only one.
func (o *optimizerPlan) number() int {
	n, _ := strconv.Atoi(strings.Trim(strings.TrimPrefix(o.prefix, optimizerKey), "."))
	return n
}

// addValue adds to a group what the value v has of it under a key.
func (o *optimizerPlan) addValue(group int, key string, v format.Value) error {
	g := o.groups[group]
	if g == nil {
		g = &groupPlan{}
		o.groups[group] = g
	}
	if key != namesKey {
		g.values = append(g.values, format.Value{Path: key, Data: v.Data, Python: v.Python})
		return nil
	}
	names, _ := v.Data.([]any)
	for _, x := range names {
		name, ok := x.(string)
		if !ok {
			return fmt.Errorf("%s as a name", pickle.KindWithArticle(x))
		}
		g.names = append(g.names, name)
	}
	return nil
}

// optimizersOf returns a rank's state of all optimizers, as its file has it; nil without any.
func (w *writer) optimizersOf(s *rankFiles) (any, error) {
	var all []any
	for _, o := range w.optimizers {
		one := w.optimizerState
		if w.flat {
			one = w.distributedState
		}
		d, err := one(s, o)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	switch {
	case len(all) == 0:
		return nil, nil
	case w.optimizers[0].prefix == optimizerKey+".":
		if len(all) > 1 {
			return nil, fmt.Errorf("there are %d optimizers, and the first is not one of several",
				len(all))
		}
		return all[0], nil
	}
	return &pickle.List{Items: all}, nil
}

// optimizerState returns a rank's part of an optimizer: state by number, groups with the numbers of
// their parameters, copies in f32 by group, and the rest.
func (w *writer) optimizerState(s *rankFiles, o *optimizerPlan) (*pickle.Dict, error) {
	state, groups, mains := &pickle.Dict{}, &pickle.List{}, &pickle.List{}
	number := int64(0)
	for i := range len(o.groups) {
		numbers, main, group := &pickle.List{}, &pickle.List{}, &pickle.Dict{}
		for _, name := range w.paramsOnRank(s, o.groups[i].names) {
			kinds, copied, err := w.paramState(s, name)
			if err != nil {
				return nil, err
			}
			if copied != nil {
				main.Items = append(main.Items, copied)
			}
			if len(kinds.Items) > 0 {
				state.Items = append(state.Items, pickle.Item{Key: number, Value: kinds})
			}
			numbers.Items = append(numbers.Items, number)
			number++
		}
		if err := torchzip.NestValues(group, o.groups[i].values, torchzip.ToPickle); err != nil {
			return nil, err
		}
		group.Add("params", numbers)
		groups.Items, mains.Items = append(groups.Items, group), append(mains.Items, main)
	}
	inner := &pickle.Dict{}
	inner.Add("state", state)
	inner.Add("param_groups", groups)
	d := inner
	if o.inner != "" {
		d = &pickle.Dict{}
		d.Add(o.inner, inner)
		d.Add(mainKeys[0], mains)
	}
	return d, w.addCommonState(s, o, d)
}

// paramsOnRank returns those that a rank has, in its order: an embedding as output layer comes
// last.
func (w *writer) paramsOnRank(s *rankFiles, names []string) (list []string) {
	var last []string
	for _, name := range names {
		if _, here := w.nameOnRank(s, name); s.has[name] && name != outputLayer &&
			here == outputLayer {
			last = append(last, name)
		} else if s.has[name] {
			list = append(list, name)
		}
	}
	return append(list, last...)
}

// paramState puts what an optimizer keeps for a parameter into the rank's file, and returns what
// stands for it in the pickle: the kinds of state, and the copy in f32, if there is one.
func (w *writer) paramState(s *rankFiles, param string) (kinds *pickle.Dict, main any, err error) {
	kinds = &pickle.Dict{}
	for _, l := range s.states[param] {
		p, err := s.addStored(l)
		if err != nil {
			return nil, nil, err
		}
		if l.kind == "fp32" {
			main = p
		} else {
			kinds.Add(l.kind, p)
		}
	}
	for _, v := range w.steps[param] {
		p, err := torchzip.ToPickle(v.Data)
		if err != nil {
			return nil, nil, err
		}
		kinds.Add(v.Path, p)
	}
	return kinds, main, nil
}

// addCommonState adds to d what belongs to an optimizer and to no parameter.
func (w *writer) addCommonState(s *rankFiles, o *optimizerPlan, d *pickle.Dict) error {
	var rest []format.Value
	for _, v := range w.values {
		path, ok := strings.CutPrefix(v.Path, o.prefix)
		if ok && groupPath.FindStringSubmatch(v.Path) == nil &&
			knownTensor.FindStringSubmatch(v.Path) == nil {
			rest = append(rest, format.Value{Path: path, Data: v.Data})
		}
	}
	for _, l := range s.others {
		path, ok := strings.CutPrefix(l.Name, o.prefix)
		if !ok {
			continue
		}
		p, err := s.addStored(l)
		if err == nil {
			err = d.Put(path, p)
		}
		if err != nil {
			return err
		}
	}
	return torchzip.NestValues(d, rest, torchzip.ToPickle)
}
