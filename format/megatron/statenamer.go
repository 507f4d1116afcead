package megatron

// This file names the optimizer state of all ranks, for addOptimizers, on Read's goroutine.
import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// A stateNamer names the tensors of all ranks' optimizers, on one goroutine. addPart reads files.
type stateNamer struct {
	format.Checkpoint
	shared map[string]int // index of each tensor that ranks have alike
	values map[string]any // values of state that are no tensors, by path

	// names of the parameters of each group, by the path of the group.
	members map[string][]string
	listed  map[string]bool   // path and name of each listed parameter
	paths   map[string]string // path of each group, by its key
}

// addState adds a parameter's state as optimizer.KIND.NAME; the kind of its copy in f32 is fp32.
func (n *stateNamer) addState(s *slot) error {
	if s.param.copied {
		return nil
	}
	name := strings.TrimPrefix(s.param.Name, "model.")
	var proofs []*format.Proof
	if s.main != nil {
		main := *s.main
		main.Name, main.Coords = optimizerKey+".fp32."+name, s.param.Coords
		proofs = []*format.Proof{{Main: main, Model: s.param.Tensor}}
		main.Proofs = proofs
		n.Tensors = append(n.Tensors, main)
	}
	for _, k := range s.kinds {
		path := optimizerKey + "." + k.name + "." + name
		t, ok := k.is.(*format.Tensor)
		switch {
		case !ok:
			if old, twice := n.values[path]; twice && old != k.is {
				return unnamedErrorf("one rank has %.200q as the %.200q of %q, another %.200q",
					fmt.Sprint(old), k.name, s.param.Name, fmt.Sprint(k.is))
			}
			n.values[path] = k.is
		case t.Shape.Equal(s.param.Shape):
			whole := *t
			whole.Name, whole.Coords, whole.Proofs = path, s.param.Coords, proofs
			n.Tensors = append(n.Tensors, whole)
		case t.Shape.Box().Elements() == 1: // such as a step
			if err := n.addShared(path, *t, proofs); err != nil {
				return err
			}
		default:
			return unnamedErrorf("the optimizer keeps %.200q of shape %v for %q of shape %v, and "+
				"nobody knows how ranks cut that", k.name, t.Shape, s.param.Name, s.param.Shape)
		}
	}
	return nil
}

// addShared adds a tensor that all ranks have alike; those of other ranks are replicas.
func (n *stateNamer) addShared(name string, t format.Tensor, proofs []*format.Proof) error {
	i, ok := n.shared[name]
	if !ok {
		t.Name, t.Proofs = name, proofs
		n.shared[name] = len(n.Tensors)
		n.Tensors = append(n.Tensors, t)
		return nil
	}
	first := &n.Tensors[i]
	if first.DType != t.DType || !first.Shape.Equal(t.Shape) {
		return unnamedErrorf("one rank has %q as %v %v, another as %v %v", name, first.DType,
			first.Shape, t.DType, t.Shape)
	}
	first.Replicas = append(first.Replicas, t.Pieces...)
	first.Proofs = append(first.Proofs, proofs...)
	return nil
}

// alignGroups sets the paths of the groups of a rank to those that they have on other ranks.
// Versions of Megatron number them in the order in which a rank meets them, and leave out those of
// which it has no parameter; the values of a group are those of the first rank that has it. Groups
// that cannot be distinguished go by their numbers.
func (n *stateNamer) alignGroups(groups []*group, p *part) error {
	keys, taken := map[string]bool{}, map[string]bool{}
	for _, g := range groups {
		if g.raw == nil || keys[g.key()] {
			return nil
		}
		keys[g.key()] = true
	}
	first := len(n.paths) == 0
	for _, path := range n.paths {
		taken[path] = true
	}
	for _, g := range groups {
		if path, there := n.paths[g.key()]; there {
			g.path = path
			continue
		}
		base := g.path[:strings.LastIndex(strings.TrimSuffix(g.path, "."), ".")+1]
		for k := 0; !first && taken[g.path]; k++ {
			g.path = base + strconv.Itoa(k) + "."
		}
		n.paths[g.key()], taken[g.path] = g.path, true
		if first {
			continue // with all that the rank has
		}
		rest := format.Checkpoint{}
		if err := p.file.Flatten(&rest, strings.TrimSuffix(g.path, "."),
			stripParams(g.raw)); err != nil {
			return err
		}
		n.Values = append(n.Values, rest.Values...)
	}
	return nil
}

// listMembers records which parameters are in which groups. Groups of a distributed optimizer do
// not say it: for them it is what Megatron puts into them, if each parameter fits into one.
func (n *stateNamer) listMembers(groups []*group, p *part, slots []*slot, size degrees) {
	add := func(g *group, p *param) {
		name := strings.TrimPrefix(p.Name, "model.")
		if !n.listed[g.path+name] {
			n.listed[g.path+name] = true
			n.members[g.path] = append(n.members[g.path], name)
		}
	}
	var bare []*group
	for _, g := range groups {
		for _, s := range g.slots {
			add(g, s.param)
		}
		if g.elsewhere {
			bare = append(bare, g)
		}
	}
	trained := map[*param]bool{}
	for _, s := range slots {
		trained[s.param] = true
	}
	for _, q := range p.params {
		var into []*group
		for _, g := range bare {
			if g.decided && g.accepts(q, size) {
				into = append(into, g)
			}
		}
		if trained[q] && len(into) == 1 {
			add(into[0], q)
		}
	}
}

// memberNames returns values with the parameters of each group, in the order of the model.
func (n *stateNamer) memberNames() (values []format.Value) {
	for path, names := range n.members {
		values = append(values, namesValue(path, inModelOrder(names)))
	}
	return values
}

// addCommonState adds what belongs to an optimizer and to no parameter, such as learning rates and
// the scale of gradients, which all ranks have alike. The first rank's values count.
func (n *stateNamer) addCommonState(p *part, root any) error {
	rest := format.Checkpoint{}
	if err := p.file.Flatten(&rest, optimizerKey, stripPositions(root)); err != nil {
		return err
	}
	for _, t := range rest.Tensors {
		if err := n.addShared(t.Name, t, nil); err != nil {
			return err
		}
	}
	if p.tp+p.pp+p.ep == 0 {
		n.Values = append(n.Values, rest.Values...)
	}
	return nil
}

// stripPositions returns what an optimizer, or a list of some, has besides what goes by position.
func stripPositions(v any) any {
	switch v := v.(type) {
	case *pickle.List:
		list := &pickle.List{}
		for _, x := range v.Items {
			list.Items = append(list.Items, stripPositions(x))
		}
		return list
	case *pickle.Dict:
		return stripParams(v)
	}
	return v
}

// stripParams returns a dict without state, copies, and the numbers or names of parameters.
func stripParams(d *pickle.Dict) *pickle.Dict {
	rest := &pickle.Dict{}
	for _, item := range d.Items {
		switch key, _ := item.Key.(string); key {
		case "state", "params", namesKey, mainKeys[0], mainKeys[1]:
			continue
		case innerKeys[0], innerKeys[1], "param_groups":
			item.Value = stripPositions(item.Value)
		}
		rest.Items = append(rest.Items, item)
	}
	return rest
}
