package megatron

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// named collects the tensors of all ranks' optimizers under their names.
type named struct {
	format.Checkpoint
	shared map[string]int // tensors that ranks have alike: where they are
	values map[string]any

	members map[string][]string // the names of the parameters of groups, by the paths of these
	listed  map[string]bool     // path and name
	paths   map[string]string   // of groups, by their keys
}

// slot adds what an optimizer has for a parameter: optimizer.KIND.NAME, where the kind of its copy
// in f32 is fp32.
func (n *named) slot(s *slot) error {
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
				return apartf("one rank has %.200q as the %.200q of %q, another %.200q",
					fmt.Sprint(old), k.name, s.param.Name, fmt.Sprint(k.is))
			}
			n.values[path] = k.is
		case t.Shape.Equal(s.param.Shape):
			whole := *t
			whole.Name, whole.Coords, whole.Proofs = path, s.param.Coords, proofs
			n.Tensors = append(n.Tensors, whole)
		case t.Shape.Box().Elements() == 1: // such as a step
			if err := n.share(path, *t, proofs); err != nil {
				return err
			}
		default:
			return apartf("the optimizer keeps %.200q of shape %v for %q of shape %v, and "+
				"nobody knows how ranks cut that", k.name, t.Shape, s.param.Name, s.param.Shape)
		}
	}
	return nil
}

// share adds a tensor that all ranks have alike: what others have are replicas.
func (n *named) share(name string, t format.Tensor, proofs []*format.Proof) error {
	i, ok := n.shared[name]
	if !ok {
		t.Name, t.Proofs = name, proofs
		n.shared[name] = len(n.Tensors)
		n.Tensors = append(n.Tensors, t)
		return nil
	}
	first := &n.Tensors[i]
	if first.DType != t.DType || !first.Shape.Equal(t.Shape) {
		return apartf("one rank has %q as %v %v, another as %v %v", name, first.DType, first.Shape,
			t.DType, t.Shape)
	}
	first.Replicas = append(first.Replicas, t.Pieces...)
	first.Proofs = append(first.Proofs, proofs...)
	return nil
}

// align gives the groups of a rank the paths that they have on other ranks. Versions of Megatron
// number them in the order in which a rank meets them, and leave out those of which it has no
// parameter; the values of a group are those of the first rank that has it. Groups that cannot be
// told apart go by their numbers.
func (n *named) align(groups []*group, p *part) error {
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
			without(g.raw)); err != nil {
			return err
		}
		n.Values = append(n.Values, rest.Values...)
	}
	return nil
}

// list notes which parameters are in which groups. Those of a distributed optimizer do not say it:
// there it is what Megatron puts into them, if each parameter fits into one.
func (n *named) list(groups []*group, p *part, slots []*slot, size degrees) {
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
			if g.regular && g.takes(q, size) {
				into = append(into, g)
			}
		}
		if trained[q] && len(into) == 1 {
			add(into[0], q)
		}
	}
}

// names are values with the parameters of each group, in the order of the model.
func (n *named) names() (values []format.Value) {
	for path, names := range n.members {
		values = append(values, namesAt(path, modelOrder(names)))
	}
	return values
}

// rest adds what is of an optimizer and of no parameter, such as learning rates and the scale of
// gradients, which all ranks have alike. As with all that is no tensor, the first rank's values
// count.
func (n *named) rest(p *part, root any) error {
	rest := format.Checkpoint{}
	if err := p.file.Flatten(&rest, optimizerKey, unnamed(root)); err != nil {
		return err
	}
	for _, t := range rest.Tensors {
		if err := n.share(t.Name, t, nil); err != nil {
			return err
		}
	}
	if p.tp+p.pp+p.ep == 0 {
		n.Values = append(n.Values, rest.Values...)
	}
	return nil
}

// unnamed leaves of an optimizer what goes by no position.
func unnamed(v any) any {
	switch v := v.(type) {
	case *pickle.List:
		list := &pickle.List{}
		for _, x := range v.Items {
			list.Items = append(list.Items, unnamed(x))
		}
		return list
	case *pickle.Dict:
		return without(v)
	}
	return v
}

// without leaves out state, copies, and the numbers of parameters, or what a framework calls them.
func without(d *pickle.Dict) *pickle.Dict {
	rest := &pickle.Dict{}
	for _, item := range d.Items {
		switch key, _ := item.Key.(string); key {
		case "state", "params", namesKey, mainKeys[0], mainKeys[1]:
			continue
		case innerKeys[0], innerKeys[1], "param_groups":
			item.Value = unnamed(item.Value)
		}
		rest.Items = append(rest.Items, item)
	}
	return rest
}
