package megatron

// This file reads groups of an optimizer out of a file that is in memory: no I/O, one goroutine.
import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// readGroups finds the groups of all optimizers of a rank. A distributed optimizer has its state
// elsewhere, and says no numbers of parameters.
func readGroups(root any) (list []*group, err error) {
	all, path := []any{root}, func(int) string { return optimizerKey + "." }
	if chained, ok := root.(*pickle.List); ok {
		all, path = chained.Items, func(i int) string {
			return optimizerKey + "." + strconv.Itoa(i) + "."
		}
	}
	for i, o := range all {
		if o == nil {
			continue
		}
		inner, at := o, path(i)
		for _, key := range innerKeys {
			if d, err := pickle.Get[*pickle.Dict](o, key); err == nil {
				inner, at = d, path(i)+key+"."
			}
		}
		var mains *pickle.List
		for _, key := range mainKeys {
			if l, err := pickle.Get[*pickle.List](o, key); err == nil {
				mains = l
			}
		}
		groups, err := pickle.Get[*pickle.List](inner, "param_groups")
		if err != nil {
			return nil, unnamedErrorf("the optimizer is none that shoal knows: %v", err)
		}
		state, _ := pickle.Get[*pickle.Dict](inner, "state")
		var own []*group
		if mains == nil && (state == nil || len(state.Items) == 0) {
			own = bareGroups(groups)
		} else if own, err = innerGroups(groups, state, mains); err != nil {
			return nil, err
		}
		for k, g := range own {
			g.path = at + "param_groups." + strconv.Itoa(k) + "."
		}
		list = append(list, own...)
	}
	return list, nil
}

// bareGroups reads groups whose state is elsewhere.
func bareGroups(groups *pickle.List) (list []*group) {
	for _, v := range groups.Items {
		g := &group{}
		g.readProperties(v)
		_, err := pickle.Get[*pickle.List](v, "params")
		g.elsewhere = err != nil
		list = append(list, g)
	}
	return list
}

// innerGroups reads torch's part of an optimizer: groups with numbers of parameters, state by
// number; and mains, Megatron's copies of the parameters by group. state and mains can be nil.
func innerGroups(groups *pickle.List, state *pickle.Dict, mains *pickle.List) (list []*group,
	err error) {
	states := map[int64]*pickle.Dict{}
	if state != nil {
		for _, item := range state.Items {
			number, isNumber := item.Key.(int64)
			kinds, isDict := item.Value.(*pickle.Dict)
			if !isNumber || !isDict {
				return nil, unnamedErrorf(
					"the optimizer has %s under %s, not the state of a parameter under its number",
					pickle.KindWithArticle(item.Value), pickle.KindWithArticle(item.Key))
			}
			states[number] = kinds
		}
	}
	if mains != nil && len(mains.Items) != len(groups.Items) {
		return nil, unnamedErrorf(
			"the optimizer has %d groups of parameters, and %d of their copies",
			len(groups.Items), len(mains.Items))
	}
	for i, v := range groups.Items {
		g, err := readGroup(v, states)
		if err != nil {
			return nil, err
		}
		if mains != nil {
			if g.mains, err = readMains(mains.Items[i]); err != nil {
				return nil, err
			}
		}
		if len(g.mains) > len(g.slots) {
			return nil, unnamedErrorf(
				"group %d of the optimizer has %d parameters, and %d copies of them",
				i, len(g.slots), len(g.mains))
		}
		list = append(list, g)
	}
	if len(states) > 0 {
		return nil, unnamedErrorf(
			"the optimizer has the state of %d parameters that are in none of its groups",
			len(states))
	}
	return list, nil
}

// readGroup reads one of param_groups, and removes the state of its parameters from states.
func readGroup(v any, states map[int64]*pickle.Dict) (*group, error) {
	numbers, err := pickle.Get[*pickle.List](v, "params")
	if err != nil {
		return nil, unnamedErrorf(
			"a group of the optimizer does not say which parameters are in it: %v", err)
	}
	g := &group{}
	for _, x := range numbers.Items {
		number, ok := x.(int64)
		if !ok {
			return nil, unnamedErrorf(
				"a group of the optimizer has %s as the number of a parameter",
				pickle.KindWithArticle(x))
		}
		s := &slot{}
		if state := states[number]; state != nil {
			if s.kinds, err = readKinds(state); err != nil {
				return nil, err
			}
		}
		g.slots = append(g.slots, s)
		delete(states, number)
	}
	g.readProperties(v)
	return g, nil
}

// readProperties sets the fields of the group that say which parameters are in it.
func (g *group) readProperties(v any) {
	g.raw, _ = v.(*pickle.Dict)
	decay, err := pickle.Get[float64](v, "wd_mult")
	if err != nil {
		decay, err = pickle.Get[float64](v, "weight_decay")
	}
	g.decays, g.decided = decay != 0, err == nil
	if scale, err := pickle.Get[float64](v, "lr_mult"); err == nil && scale != 1 {
		g.decided = false
	}
	if other, err := pickle.Get[bool](v, "is_decoupled_lr"); err == nil && other {
		g.decided = false
	}
	g.expert, _ = pickle.Get[bool](v, "is_expert_parallel")
}

// key returns a text that is the same for groups that Megatron takes for the same.
func (g *group) key() string {
	decay, said := g.raw.Get("wd_mult")
	if !said {
		decay, _ = g.raw.Get("weight_decay")
	}
	rate, _ := g.raw.Get("lr_mult")
	decoupled, _ := g.raw.Get("is_decoupled_lr")
	return fmt.Sprint(decay, rate, decoupled, g.expert)
}

// accepts reports whether Megatron puts a parameter into the group: vectors have no weight decay.
func (g *group) accepts(p *param, size degrees) bool {
	decays := len(p.Shape) != 1 && !strings.HasSuffix(p.Name, ".bias")
	return decays == g.decays && (p.expert && size.ep > 1) == g.expert
}

// readMains reads the copies in f32 of the parameters of a group.
func readMains(v any) (list []*torchzip.Tensor, err error) {
	l, ok := v.(*pickle.List)
	if !ok {
		return nil, unnamedErrorf("the copies of the parameters are %s, not a list",
			pickle.KindWithArticle(v))
	}
	for _, x := range l.Items {
		t, ok := x.(*torchzip.Tensor)
		if !ok || t.DType != tensor.F32 {
			return nil, unnamedErrorf(
				"among the copies of the parameters is %s that is no tensor of f32",
				pickle.KindWithArticle(x))
		}
		list = append(list, t)
	}
	return list, nil
}

// readKinds reads the kinds of state that an optimizer keeps for a parameter.
func readKinds(state *pickle.Dict) (list []kind, err error) {
	for _, item := range state.Items {
		name, ok := item.Key.(string)
		if !ok || strings.Contains(name, ".") || name == "fp32" {
			return nil, unnamedErrorf(
				"the optimizer keeps something for a parameter under %s, %.200q, "+
					"which shoal does not know", pickle.KindWithArticle(item.Key), name)
		}
		switch v := item.Value.(type) {
		case *torchzip.Tensor:
			t := v.AsTensor("")
			list = append(list, kind{name, &t})
		case nil, bool, int64, float64, string:
			list = append(list, kind{name, v})
		default:
			return nil, unnamedErrorf("the optimizer keeps %s as the %.200q of a parameter",
				pickle.KindWithArticle(v), name)
		}
	}
	return list, nil
}
