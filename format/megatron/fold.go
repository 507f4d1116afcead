package megatron

// This file renames an optimizer from Hugging Face's parameters to Megatron's. It does no I/O.
import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/state/layout"
)

// huggingFaceState matches an optimizer's state under Hugging Face's names: kind, and parameter.
var huggingFaceState = pattern.New(`^optimizer\.([^.]+)\.((?:model|lm_head)\..+)$`)

// FoldOptimizer changes an optimizer under the names of Hugging Face for Megatron, in which q, k
// and v are one parameter, and gate and up another: each has one step count, and one name in the
// groups. Of step counts that are tensors one stays, and the others become its replicas, which are
// compared when it is moved. Tensors that a layout can join stay as they are. renamed is the old
// name of each renamed tensor, by the new one.
func FoldOptimizer(c *format.Checkpoint) (renamed map[string]string, err error) {
	var names []string
	for _, t := range c.Tensors {
		names = append(names, t.Name)
	}
	parts, err := layout.NewParts(
		layout.MegatronCoreStores(nil, layout.ExpertNamingOf(names), layout.DenseLayers(names), 1))
	if err != nil {
		return nil, err
	}
	f := folding{parts: parts, renamed: map[string]string{}}
	_, f.ordered = c.Value("args.tensor_model_parallel_size")
	if c.Tensors, err = f.foldTensors(c.Tensors); err == nil {
		c.Values, err = f.foldValues(c.Values)
	}
	if err != nil {
		return nil, fmt.Errorf("Megatron: %w", err)
	}
	return f.renamed, c.Finish()
}

// A folding folds an optimizer as FoldOptimizer says. It is for one goroutine, and does no I/O.
type folding struct {
	parts   *layout.Parts
	renamed map[string]string // by the new name, the old name of each renamed tensor
	ordered bool              // whether groups have Megatron's order: its arguments are there
}

// joinedName returns the parameter of Megatron that a parameter of Hugging Face is part of, and the
// number of its parts; "" when there is none.
func (f *folding) joinedName(param string) (string, int) {
	name, n := f.parts.StoredName(param)
	return plainExpert.ReplaceAllString(name, "${1}experts.local_experts.$2."), n
}

// A partCounts counts the parts of parameters, by their names.
type partCounts map[string][]string

// checkWhole fails when a parameter lacks a part; what says in the error what the parts are of.
func (t partCounts) checkWhole(f *folding, what string) error {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		parts := t[name]
		if _, n := f.joinedName(parts[0]); len(parts) != n {
			return fmt.Errorf("%s: of %s, which has %d parts, there is %s only", what, name, n,
				strings.Join(parts, ", "))
		}
	}
	return nil
}

// foldTensors returns the tensors with one step count for each of Megatron's parameters, and
// records in renamed which had another name.
func (f *folding) foldTensors(tensors []format.Tensor) (all []format.Tensor, err error) {
	first, kinds := map[string]int{}, map[string]partCounts{}
	for _, t := range tensors {
		m := huggingFaceState.FindStringSubmatch(t.Name)
		if m == nil || len(t.Shape) > 0 {
			all = append(all, t)
			continue
		}
		param, _ := f.joinedName(m[2])
		if param == "" {
			all = append(all, t)
			continue
		}
		name := stateName(m[1], param)
		if kinds[m[1]] == nil {
			kinds[m[1]] = partCounts{}
		}
		kinds[m[1]][param] = append(kinds[m[1]][param], m[2])
		i, there := first[name]
		if !there {
			first[name], f.renamed[name] = len(all), t.Name
			t.Name = name
			all = append(all, t)
			continue
		}
		if all[i].DType != t.DType {
			return nil, fmt.Errorf("tensor %q is of %v, and %q of %v; Megatron has one for both",
				f.renamed[name], all[i].DType, t.Name, t.DType)
		}
		all[i].Replicas = slices.Concat(all[i].Replicas, t.Pieces, t.Replicas)
		all[i].Proofs = slices.Concat(all[i].Proofs, t.Proofs)
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if err := kinds[kind].checkWhole(f, optimizerKey+"."+kind); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// foldValues returns the values with one step count and one name in the groups for a parameter.
func (f *folding) foldValues(values []format.Value) (all []format.Value, err error) {
	type one struct {
		path string // it had
		is   any
	}
	first, groups := map[string]one{}, map[string]string{}
	for _, v := range values {
		if m := huggingFaceState.FindStringSubmatch(v.Path); m != nil {
			if param, _ := f.joinedName(m[2]); param != "" {
				name := stateName(m[1], param)
				if other, there := first[name]; !there {
					first[name] = one{v.Path, v.Data}
					all = append(all, format.Value{Path: name, Data: v.Data})
				} else if !reflect.DeepEqual(other.is, v.Data) {
					return nil, fmt.Errorf(
						"value %q is %v, and %q is %v; Megatron has one for both", other.path,
						other.is, v.Path, v.Data)
				}
				continue
			}
		}
		if list, ok := v.Data.([]any); ok && groupPath.MatchString(v.Path) &&
			strings.HasSuffix(v.Path, "."+namesKey) {
			is, err := f.foldGroup(v.Path, list, groups)
			if err != nil {
				return nil, err
			}
			v = format.Value{Path: v.Path, Data: is}
		}
		all = append(all, v)
	}
	return all, nil
}

// foldGroup returns Megatron's names of the parameters of a group, each once. It records in groups,
// by parameter, the path of the group that has it, and fails where another one has it too.
func (f *folding) foldGroup(path string, list []any, groups map[string]string) (names []any,
	err error) {
	found := partCounts{}
	for _, x := range list {
		param, _ := x.(string)
		name, _ := f.joinedName(param)
		if name == "" {
			names = append(names, x)
			continue
		}
		if !f.ordered {
			return nil, fmt.Errorf("value %q: Megatron goes by the order of parameters, and "+
				"nobody says that this is the one that Megatron has, because its arguments "+
				"(args) are not there; leave the optimizer out with --only 'model.**' --only "+
				"'lm_head.**'", path)
		}
		if other := groups[name]; other != "" && other != path {
			return nil, fmt.Errorf(
				"values %q and %q both have parts of %s; Megatron has it in one group", other, path,
				name)
		}
		if groups[name] = path; found[name] == nil {
			names = append(names, name)
		}
		found[name] = append(found[name], param)
	}
	return names, found.checkWhole(f, "value "+path)
}
