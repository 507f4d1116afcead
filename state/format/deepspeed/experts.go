package deepspeed

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/pickle"
)

var (
	expertFile = regexp.MustCompile(`^(?:layer_(\d+)_)?expert_(\d+)_mp_rank_(\d+)_model_states\.pt$`)
	expertOpt  = regexp.MustCompile(`^expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$`)
	// expertName is that of an expert's parameter: the number in it counts all experts of the layer, but in a rank's optimizer states only its own.
	expertName = regexp.MustCompile(`^(.*\bdeepspeed_moe\.experts\.deepspeed_experts\.)(\d+)(\..*)$`)
)

// unnamed is why the state of an optimizer without ZeRO stays in parts.
const unnamed = "without ZeRO an optimizer numbers its parameters and names none"

// expertAt is the layer of a mixture of experts, the expert, and the model parallel rank of a file. A layer of -1 is all: older versions have a file for an expert of all layers.
type expertAt struct{ layer, expert, mp int }

// seeExpert sorts a file of experts in; it reports whether it is one.
func (r *reader) seeExpert(name string) (bool, error) {
	into := r.experts
	m := expertFile.FindStringSubmatch(name)
	if m == nil {
		into = r.expp
		if m = expertOpt.FindStringSubmatch(name); m == nil {
			return false, nil
		}
		m = []string{m[0], "", m[1], m[2]}
	}
	var n [3]int
	for i, text := range m[1:] {
		x, err := strconv.Atoi(text)
		if text == "" {
			x, err = -1, nil
		}
		if err != nil || x > 1<<20 {
			return true, fmt.Errorf("DeepSpeed: %s: an expert of such a number", name)
		}
		n[i] = x
	}
	a := expertAt{n[0], n[1], n[2]}
	if other := into[a]; other != "" {
		return true, fmt.Errorf("DeepSpeed: %s and %s are of the same expert", other, name)
	}
	into[a] = name
	return true, nil
}

// mixture reads the experts of the model, each from a file of its own, and counts those of each layer.
func (r *reader) mixture() error {
	if len(r.experts) == 0 {
		return nil
	}
	layers, old := map[int]int{}, false
	for a := range r.experts {
		layers[a.layer] = max(layers[a.layer], a.expert+1)
		old = old || a.layer < 0
		if a.mp >= r.mp {
			return fmt.Errorf("%s is of a model parallel rank of which there are no model states", r.experts[a])
		}
	}
	if err := r.counted(layers, old); err != nil {
		return err
	}
	for _, layer := range slices.Sorted(maps.Keys(layers)) {
		for expert := range layers[layer] {
			for mp := range r.mp {
				file := r.experts[expertAt{layer, expert, mp}]
				if file == "" {
					return fmt.Errorf("there is no file of expert %d of layer %d of the mixture, mp rank %d (layer_%d_expert_%d_mp_rank_%02d_model_states.pt); a rank did not finish its save, or it was not copied", expert, layer, mp, layer, expert, mp)
				}
				if err := r.expert(file, expert, mp); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// counted compares how many experts there are with what the model states say.
func (r *reader) counted(layers map[int]int, old bool) error {
	first, err := r.open(r.models[at{0, 0}])
	if err != nil {
		return err
	}
	said, err := pickle.Get[*pickle.List](first.Root, "num_experts")
	if err != nil || old {
		return nil // older versions do not say
	}
	for layer, n := range said.Items {
		if n, ok := n.(int64); ok && int64(layers[layer]) != n {
			return fmt.Errorf("%s says that layer %d of the mixture has %d experts, and there are the files of %d; a rank did not finish its save, or a file was not copied", first.Name, layer, n, layers[layer])
		}
	}
	if len(layers) != len(said.Items) {
		return fmt.Errorf("%s says that there are %d layers of experts, and there are the files of %d", first.Name, len(said.Items), len(layers))
	}
	return nil
}

// expert reads the file of an expert.
func (r *reader) expert(file string, expert, mp int) error {
	f, err := r.open(file)
	if err != nil {
		return err
	}
	part := format.Checkpoint{}
	if err := f.Flatten(&part, "", f.Root); err != nil {
		return err
	}
	for _, t := range part.Tensors {
		m := expertName.FindStringSubmatch(t.Name)
		if m == nil || m[2] != strconv.Itoa(expert) {
			return fmt.Errorf("%s has %q, which is no parameter of expert %d by DeepSpeed's own layer (deepspeed_moe); convert the checkpoint with ds_to_universal", f.Name, t.Name, expert)
		}
		r.numbers[m[1]] = max(r.numbers[m[1]], expert+1)
		t.Name, t.At = "module."+t.Name, r.place(mp)
		r.Tensors = append(r.Tensors, t)
	}
	return nil
}

// cut is how the flat buffer of a group lies over the ranks: whole over them all, or for experts over some of them for each expert parallel rank.
type cut struct {
	ranks  []*rank
	shapes params
	called params // what the parameters of shapes are called in the whole model
	robin  bool   // whether parameters lie as round_robin_gradients has them
}

// cuts finds out how a group is cut. Experts have fewer data parallel ranks: each of those that share one expert parallel rank has a part of its experts.
func (r *reader) cuts(g int, m *model, ranks []*rank) ([]cut, error) {
	count := len(ranks)
	for _, one := range ranks {
		n, err := one.count(g, len(ranks))
		if err != nil {
			return nil, err
		}
		if one != ranks[0] && n != count || len(ranks)%n != 0 {
			return nil, fmt.Errorf("%s says that group %d is cut over %d ranks, and there are the files of %d", one.file.Name, g, n, len(ranks))
		}
		count = n
	}
	robin := roundRobin(m, ranks[0]) || shuffled(g, m.shapes[g], ranks)
	if robin && aligned(ranks[0]) {
		return nil, fmt.Errorf("%s: round_robin_gradients and parameter_alignment together, with which shoal does not know where parameters lie", ranks[0].file.Name)
	}
	if count == len(ranks) {
		return []cut{{ranks, m.shapes[g], m.shapes[g], robin}}, nil
	}
	degree := len(ranks) / count // of expert parallelism
	if data, _ := pickle.Get[bool](m.file.Root, "ds_config", "use_data_before_expert_parallelism"); data {
		return nil, fmt.Errorf("%s: use_data_before_expert_parallelism, with which experts lie on other ranks than shoal knows", m.file.Name)
	}
	all := make([]cut, degree)
	for i, one := range ranks {
		all[i%degree].ranks = append(all[i%degree].ranks, one)
	}
	for e := range all {
		all[e].shapes, all[e].robin = m.shapes[g], robin
		for _, p := range m.shapes[g] {
			name := expertName.FindStringSubmatch(p.name)
			if name == nil {
				return nil, fmt.Errorf("parameter %q was cut over %d ranks, and there are the files of %d; only experts of DeepSpeed's own layer (deepspeed_moe) are cut so", p.name, count, len(ranks))
			}
			local, err := strconv.Atoi(name[2])
			own := r.numbers[name[1]] / degree
			if err != nil || local >= own || r.numbers[name[1]]%degree != 0 {
				return nil, fmt.Errorf("parameter %q is of an expert of a rank, and there are the files of %d experts for %d ranks", p.name, r.numbers[name[1]], degree)
			}
			all[e].called = append(all[e].called, param{name[1] + strconv.Itoa(e*own+local) + name[3], p.shape})
		}
	}
	return all, nil
}

// count is over how many ranks a group is cut.
func (one *rank) count(g, files int) (int, error) {
	state, _ := pickle.Get[*pickle.Dict](one.file.Root, "optimizer_state_dict")
	v, _ := state.Get("partition_count")
	if l, ok := v.(*pickle.List); ok {
		if g >= len(l.Items) {
			return 0, fmt.Errorf("%s does not say over how many ranks group %d is cut (partition_count)", one.file.Name, g)
		}
		v = l.Items[g]
	}
	n, ok := v.(int64)
	if !ok || n < 1 || n > int64(files) {
		return 0, fmt.Errorf("%s: the state was cut over %v ranks, and there are the files of %d", one.file.Name, v, files)
	}
	return int(n), nil
}

// numberedExperts adds the state of experts that an optimizer without ZeRO keeps, by number: each expert parallel rank has its own.
func (r *reader) numberedExperts() error {
	degree := 0
	for a := range r.expp {
		degree = max(degree, a.expert+1)
	}
	for e := range degree {
		for mp := range r.mp {
			name := r.expp[expertAt{-1, e, mp}]
			if name == "" {
				return fmt.Errorf("there is no file expp_rank_%d_mp_rank_%02d_optim_states.pt; a rank did not finish its save, or it was not copied", e, mp)
			}
			f, err := r.open(name)
			if err != nil {
				return err
			}
			state, err := pickle.Get[*pickle.Dict](f.Root, "optimizer")
			if err != nil {
				continue // ZeRO has it elsewhere
			}
			part := format.Checkpoint{}
			if err := f.Flatten(&part, "optimizer", state); err != nil {
				return err
			}
			for _, t := range part.Tensors {
				t.At, t.Apart = append(format.Place{{Axis: "ep", Index: e, Of: degree}}, r.place(mp)...), unnamed
				r.Tensors = append(r.Tensors, t)
			}
			r.apart = true
			if e == 0 && mp == 0 {
				r.Values = append(r.Values, part.Values...)
			}
		}
	}
	return nil
}
