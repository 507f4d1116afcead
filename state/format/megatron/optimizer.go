package megatron

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/pickle"
	"github.com/shoal-ml/shoal/state/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

const (
	optimizerKey    = "optimizer"
	distributedKey  = optimizerKey + ".distributed"
	distributedName = "distrib_optim.pt"
)

// mainKeys and innerKeys are what Megatron has called the copies of the parameters in f32, and the optimizer that it wraps.
var (
	mainKeys  = []string{"fp32_from_fp16_params", "fp32_from_fp16"}
	innerKeys = []string{"optimizer", "optimizer_state_dict"}
)

// errApart says why the tensors of an optimizer stay as they go in the files, by position.
type errApart struct{ why string }

func (e *errApart) Error() string { return e.why }

func apartf(text string, args ...any) error { return &errApart{fmt.Sprintf(text, args...)} }

// A slot is a parameter of an optimizer, which knows it by a number only.
type slot struct {
	main  *format.Tensor // its copy in f32; nil when the parameter itself is of f32
	kinds []kind         // what the optimizer keeps for it
	param *param         // once it is known
}

// A kind is one kind of state, such as exp_avg.
type kind struct {
	name string
	is   any // *format.Tensor, or a value of a checkpoint
}

// A group is some parameters that an optimizer treats alike.
type group struct {
	slots []*slot
	mains []*torchzip.Tensor // of those parameters that have one, in the same order

	decays  bool // whether there is weight decay
	expert  bool // whether it is of what expert parallel ranks do not share
	regular bool // whether that decides which parameters are in it
}

// optimizers names the tensors of the optimizers of all ranks after their parameters. Where it cannot, for one rank or
// several, it says why, and adds nothing.
func optimizers(c *format.Checkpoint, files *format.Files, parts []*part, size degrees) (apart string, err error) {
	n := &named{shared: map[string]int{}, values: map[string]any{}}
	for _, p := range parts {
		if err = p.openDistributed(files, parts[0]); err != nil {
			return "", err
		}
	}
	for _, p := range parts {
		if err = n.part(files, p, size); err != nil {
			err = fmt.Errorf("%s: %w", path.Base(path.Dir(p.file.Name)), err)
			break
		}
	}
	var why *errApart
	if errors.As(err, &why) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	c.Tensors, c.Values = append(c.Tensors, n.Tensors...), append(c.Values, n.Values...)
	for path, v := range n.values {
		c.Values = append(c.Values, format.Value{Path: path, Is: v})
	}
	return "", nil
}

// openDistributed opens the distributed optimizer's file beside that of the model: all ranks have one, or none.
func (p *part) openDistributed(files *format.Files, first *part) error {
	name := path.Join(path.Dir(p.file.Name), distributedName)
	f, err := torchzip.Open(files, name, globals)
	if errors.Is(err, fs.ErrNotExist) {
		if p != first && first.distributed != nil {
			return fmt.Errorf("%s is missing, and %s is there: a rank did not finish its save, or the file was not copied", name, first.distributed.Name)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if p != first && first.distributed == nil {
		return fmt.Errorf("%s is there, and the first rank has none: a rank did not finish its save, or the file was not copied", name)
	}
	p.distributed = f
	return nil
}

// part names what the optimizer of a rank has.
func (n *named) part(files *format.Files, p *part, size degrees) error {
	root, ok := p.root.Get(optimizerKey)
	if !ok && p.distributed == nil {
		return nil // saved without
	}
	groups, elsewhere, err := readGroups(root)
	if err != nil {
		return err
	}
	if elsewhere && p.distributed == nil && p.tp+p.pp+p.ep == 0 {
		n.Values = append(n.Values, format.Value{Path: distributedKey, Is: format.Unread{Why: fmt.Errorf(
			"%s keeps the optimizer's state in %s beside it, and that is not there", p.file.Name, distributedName)}})
	}
	slots, err := pair(files, p, groups, size)
	if err == nil && p.distributed != nil {
		var more []*slot
		more, err = unpack(files, p)
		slots = append(slots, more...)
	}
	if err != nil {
		return err
	}
	for _, s := range slots {
		if err := n.slot(s); err != nil {
			return err
		}
	}
	if !ok {
		return nil
	}
	return n.rest(p, root)
}

// readGroups finds the groups of all optimizers of a rank. A distributed optimizer has its state elsewhere, and says no numbers of parameters.
func readGroups(root any) (list []*group, elsewhere bool, err error) {
	all := []any{root}
	if chained, ok := root.(*pickle.List); ok {
		all = chained.Items
	}
	for _, o := range all {
		if o == nil {
			continue
		}
		inner := o
		for _, key := range innerKeys {
			if d, err := pickle.Get[*pickle.Dict](o, key); err == nil {
				inner = d
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
			return nil, false, apartf("the optimizer is none that shoal knows: %v", err)
		}
		state, _ := pickle.Get[*pickle.Dict](inner, "state")
		if mains == nil && (state == nil || len(state.Items) == 0) {
			for _, g := range groups.Items {
				_, err := pickle.Get[*pickle.List](g, "params")
				elsewhere = elsewhere || err != nil
			}
			continue
		}
		own, err := innerGroups(groups, state, mains)
		if err != nil {
			return nil, false, err
		}
		list = append(list, own...)
	}
	return list, elsewhere, nil
}

// innerGroups reads torch's state of an optimizer: groups, with the numbers of their parameters, and state by number; and Megatron's
// copies of the parameters, by group. state and mains can be nil.
func innerGroups(groups *pickle.List, state *pickle.Dict, mains *pickle.List) (list []*group, err error) {
	states := map[int64]*pickle.Dict{}
	if state != nil {
		for _, item := range state.Items {
			number, isNumber := item.Key.(int64)
			kinds, isDict := item.Value.(*pickle.Dict)
			if !isNumber || !isDict {
				return nil, apartf("the optimizer has a %T under a %T, not the state of a parameter under its number", item.Value, item.Key)
			}
			states[number] = kinds
		}
	}
	if mains != nil && len(mains.Items) != len(groups.Items) {
		return nil, apartf("the optimizer has %d groups of parameters, and %d of their copies", len(groups.Items), len(mains.Items))
	}
	for i, v := range groups.Items {
		g, err := readGroup(v, states)
		if err != nil {
			return nil, err
		}
		if mains != nil {
			if g.mains, err = mainTensors(mains.Items[i]); err != nil {
				return nil, err
			}
		}
		if len(g.mains) > len(g.slots) {
			return nil, apartf("group %d of the optimizer has %d parameters, and %d copies of them", i, len(g.slots), len(g.mains))
		}
		list = append(list, g)
	}
	if len(states) > 0 {
		return nil, apartf("the optimizer has the state of %d parameters that are in none of its groups", len(states))
	}
	return list, nil
}

// group reads one of param_groups, and takes the state of its parameters.
func readGroup(v any, states map[int64]*pickle.Dict) (*group, error) {
	numbers, err := pickle.Get[*pickle.List](v, "params")
	if err != nil {
		return nil, apartf("a group of the optimizer does not say which parameters are in it: %v", err)
	}
	g := &group{regular: true}
	for _, x := range numbers.Items {
		number, ok := x.(int64)
		if !ok {
			return nil, apartf("a group of the optimizer has a %T as the number of a parameter", x)
		}
		s := &slot{}
		if state := states[number]; state != nil {
			if s.kinds, err = kinds(state); err != nil {
				return nil, err
			}
		}
		g.slots = append(g.slots, s)
		delete(states, number)
	}
	decay, err := pickle.Get[float64](v, "wd_mult")
	if err != nil {
		decay, err = pickle.Get[float64](v, "weight_decay")
	}
	g.decays, g.regular = decay != 0, err == nil
	if scale, err := pickle.Get[float64](v, "lr_mult"); err == nil && scale != 1 {
		g.regular = false
	}
	if other, err := pickle.Get[bool](v, "is_decoupled_lr"); err == nil && other {
		g.regular = false
	}
	g.expert, _ = pickle.Get[bool](v, "is_expert_parallel")
	return g, nil
}

// takes reports whether Megatron puts a parameter into a group: biases and vectors have no weight decay.
func (g *group) takes(p *param, size degrees) bool {
	decays := len(p.Shape) != 1 && !strings.HasSuffix(p.Name, ".bias")
	return decays == g.decays && (p.expert && size.ep > 1) == g.expert
}

// mainTensors reads the copies of the parameters of a group.
func mainTensors(v any) (list []*torchzip.Tensor, err error) {
	l, ok := v.(*pickle.List)
	if !ok {
		return nil, apartf("the copies of the parameters are a %T, not a list", v)
	}
	for _, x := range l.Items {
		t, ok := x.(*torchzip.Tensor)
		if !ok || t.DType != tensor.F32 {
			return nil, apartf("among the copies of the parameters is a %T that is no tensor of f32", x)
		}
		list = append(list, t)
	}
	return list, nil
}

// kinds reads what an optimizer keeps for a parameter.
func kinds(state *pickle.Dict) (list []kind, err error) {
	for _, item := range state.Items {
		name, ok := item.Key.(string)
		if !ok || strings.Contains(name, ".") || name == "fp32" {
			return nil, apartf("the optimizer keeps something for a parameter under a %T, %.200q, which shoal does not know", item.Key, name)
		}
		switch v := item.Value.(type) {
		case *torchzip.Tensor:
			t := v.As("")
			list = append(list, kind{name, &t})
		case nil, bool, int64, float64, string:
			list = append(list, kind{name, v})
		default:
			return nil, apartf("the optimizer keeps a %T as the %.200q of a parameter", v, name)
		}
	}
	return list, nil
}
