package megatron

// This file gives another framework's optimizer Megatron's groups. It does no I/O.
import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron/order"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/layout"
)

// RegroupOptimizer gives the optimizer of another framework, in a checkpoint, the groups that
// Megatron has, which decides them itself: vectors and biases have no weight decay, all else has.
// groupValues are the values of the group of each parameter, by its name in the checkpoint, which
// is one of Megatron Core or of Hugging Face; those of a group of Megatron must be the same, but
// for the weight decay. ordered is whether the format goes by the order of parameters, as mp_rank
// folders do; then groups must tell it, and else they do where it is known. note tells people what
// has changed. FoldOptimizer comes before.
func RegroupOptimizer(c *format.Checkpoint, groupValues map[string][]format.Value,
	ordered bool) (note string, err error) {
	var names []string
	for _, t := range c.Tensors {
		names = append(names, t.Name)
	}
	parts, err := layout.NewParts(
		layout.MegatronCoreStores(nil, layout.ExpertNamingOf(names), layout.DenseLayers(names), 1))
	if err != nil {
		return "", err
	}
	r := regrouping{folding: folding{parts: parts}, groupValues: groupValues,
		members: map[string][]string{}, vector: map[string]bool{}}
	for i := range c.Tensors {
		r.recordState(&c.Tensors[i])
	}
	if note, err = r.addGroups(c, ordered); err != nil {
		return "", fmt.Errorf("Megatron: %w", err)
	}
	return note, c.Finish()
}

// A regrouping is one call of RegroupOptimizer, on its goroutine.
type regrouping struct {
	folding
	groupValues map[string][]format.Value // by the parameter's name in the checkpoint
	members     map[string][]string       // names in the checkpoint of each parameter of Megatron
	vector      map[string]bool           // whether each parameter of Megatron is a vector
	copies      bool                      // whether there are copies in f32
}

// recordState records which parameter a tensor belongs to, if it is state of one.
func (r *regrouping) recordState(t *format.Tensor) {
	kind, name, param := "", "", ""
	if m := huggingFaceState.FindStringSubmatch(t.Name); m != nil {
		kind, name = m[1], m[2]
		param, _ = r.joinedName(name)
	}
	if m := knownTensor.FindStringSubmatch(t.Name); param == "" && m != nil {
		kind, name, param = m[1], m[2], m[2]
	}
	if param == "" || kind == "" || kind == "step" {
		return
	}
	r.copies = r.copies || kind == "fp32"
	r.vector[param] = r.vector[param] || len(t.Shape) == 1 // and there can be numbers beside
	if !slices.Contains(r.members[param], name) {
		r.members[param] = append(r.members[param], name)
	}
}

// addGroups adds the values of both groups to a checkpoint, and returns a note for people.
func (r *regrouping) addGroups(c *format.Checkpoint, ordered bool) (note string, err error) {
	var in [2][]string
	unplaced := ""
	for _, param := range slices.Sorted(maps.Keys(r.members)) {
		g := 0
		if r.vector[param] || strings.HasSuffix(param, ".bias") {
			g = 1
		}
		in[g] = append(in[g], param)
		if _, ok := order.Position(param); !ok && unplaced == "" {
			unplaced = param
		}
	}
	if unplaced != "" && ordered {
		return "", fmt.Errorf("it goes by the order of parameters, and where %q stands in it "+
			"shoal does not know; choose torch_dist, which goes by names", unplaced)
	}
	at := optimizerKey + "."
	if r.copies || !ordered { // what is around torch's optimizer
		at += optimizerKey + "."
	}
	n, other := 0, ""
	for g, params := range in {
		if len(params) == 0 {
			continue
		}
		values, otherwise, err := r.mergedValues(params, g == 1)
		if err != nil {
			return "", err
		}
		if other = cmp.Or(other, otherwise); unplaced == "" {
			values = append(values, format.Value{Path: namesKey, Data: sortByRegistration(params)})
		}
		for _, v := range values {
			v.Path = at + "param_groups." + strconv.Itoa(n) + "." + v.Path
			c.Values = append(c.Values, v)
		}
		n++
	}
	note = fmt.Sprintf("Megatron decides itself which parameters have weight decay: %s, and %d, "+
		"vectors and biases, none", plural.Of(len(in[0]), "parameter")+" "+
		plural.Verb(len(in[0]), "has", "have")+" some", len(in[1]))
	if other != "" {
		note += fmt.Sprintf("; that was otherwise here, as for %q", other)
	}
	return note, nil
}

// mergedValues returns the values that the parameters of a group share, with those that distinguish
// groups for Megatron. otherwise is a parameter that had another weight decay than it gets.
func (r *regrouping) mergedValues(params []string, vectors bool) (all []format.Value,
	otherwise string,
	err error) {
	decay, found := 0.0, map[string]format.Value{}
	first := ""
	for _, param := range params {
		for _, name := range r.members[param] {
			of, known := r.groupValues[name]
			if !known {
				return nil, "", fmt.Errorf(
					"nothing says in which group of the optimizer the parameter %q is", name)
			}
			own := map[string]format.Value{}
			for _, v := range of {
				own[v.Path] = v
			}
			d, _ := floatOf(own["weight_decay"].Data)
			decay = max(decay, d)
			if (d != 0) == vectors {
				otherwise = cmp.Or(otherwise, name)
			}
			delete(own, "weight_decay")
			if first == "" {
				first, found = name, own
			}
			for _, key := range slices.Concat(slices.Sorted(maps.Keys(own)),
				slices.Sorted(maps.Keys(found))) {
				if a, b := own[key].Data, found[key].Data; !reflect.DeepEqual(a, b) {
					return nil, "", fmt.Errorf("%s of the optimizer is %v for %q and %v for %q, "+
						"and Megatron has both in one group", key, a, name, b, first)
				}
			}
		}
	}
	mult := 1.0
	if vectors {
		decay, mult = 0, 0
	}
	for _, d := range []format.Value{
		{Path: "weight_decay", Data: decay}, {Path: "wd_mult", Data: mult},
		{Path: "lr_mult", Data: 1.0},
		{Path: "is_expert_parallel", Data: false}, {Path: "is_decoupled_lr", Data: false},
	} {
		found[d.Path] = d
	}
	if _, said := found["bias_correction"]; !said {
		// as torch's Adam always has, and that of Apex only then
		found["bias_correction"] = format.Value{Path: "bias_correction", Data: true}
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[key])
	}
	return all, otherwise, nil
}

// sortByRegistration sorts the names of parameters in the order in which Megatron registers them,
// and returns them as the data of a value.
func sortByRegistration(params []string) (names []any) {
	slices.SortFunc(params, func(a, b string) int {
		return cmp.Or(slices.Compare(order.SortKey(a), order.SortKey(b)), strings.Compare(a, b))
	})
	for _, p := range params {
		names = append(names, p)
	}
	return names
}
