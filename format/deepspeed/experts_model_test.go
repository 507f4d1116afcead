package deepspeed_test

// This file makes checkpoints with experts as DeepSpeed would save them, in memory, for tests.
import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

const inLayer = ".deepspeed_moe.experts.deepspeed_experts."

// mixed is a model with layers of experts, in the order in which a program has its parameters.
// Groups are of these; those after the first are of experts.
type mixed struct {
	params []evenParam
	groups []int    // group of each parameter, from 0
	layers []string // names of the layers of experts
	counts []int    // how many each layer has
	named  bool     // whether patterns name experts
	robin  bool     // whether round_robin_gradients is set
	first  bool     // use_data_before_expert_parallelism
}

// mixedOver is a mesh over which a mixed model was trained.
type mixedOver struct {
	stage, dp, tp, ep int   // stage of ZeRO, and numbers of ranks
	parts             bool  // whether tensor parallel ranks have parts of experts
	names             bool  // whether model states have param_shapes
	starts            []int // the blocks with which stages of a pipeline begin; nil for none
}

// byStage returns what each stage has of the model; without a pipeline there is one. They share the
// arrays of m.
func (m *mixed) byStage(o mixedOver) (all []*mixed) {
	of := func(name string) int {
		block, _, _ := strings.Cut(name, ".")
		n, _ := strconv.Atoi(block)
		for s := len(o.starts) - 1; s > 0; s-- {
			if n >= o.starts[s] {
				return s
			}
		}
		return 0
	}
	for s := range max(len(o.starts), 1) {
		own := &mixed{named: m.named, robin: m.robin, first: m.first}
		for i, p := range m.params {
			if of(p.name) == s {
				own.params, own.groups = append(own.params, p), append(own.groups, m.groups[i])
			}
		}
		for i, l := range m.layers {
			if of(l) == s {
				own.layers, own.counts = append(own.layers, l), append(own.counts, m.counts[i])
			}
		}
		all = append(all, own)
	}
	return all
}

// expertOf returns the layer and the number of an expert's parameter; -1 for others. rest is what
// follows in its name, and the whole name for others.
func (m *mixed) expertOf(name string) (layer, expert int, rest string) {
	for i, l := range m.layers {
		if below, ok := strings.CutPrefix(name, l+inLayer); ok {
			number, rest, _ := strings.Cut(below, ".")
			n, _ := strconv.Atoi(number)
			return i, n, rest
		}
	}
	return -1, -1, name
}

// expertRank returns which expert parallel rank a rank is, its index among those with the same
// experts, and their number. dp and tp are the rank.
func (m *mixed) expertRank(o mixedOver, dp, tp int) (e, index, count int) {
	rank, ranks := dp, o.dp
	if !o.parts {
		rank, ranks = dp*o.tp+tp, o.dp*o.tp
	}
	count = ranks / o.ep
	if m.first {
		return rank / count, rank % count, count
	}
	return rank % o.ep, rank / o.ep, count
}

// localParams returns the parameters of a group on an expert parallel rank, with the names and
// parts that the rank has. e is that rank, and tp the tensor parallel one.
func (m *mixed) localParams(o mixedOver, group, e, tp int) (all []evenParam) {
	for i, p := range m.params {
		layer, expert, rest := m.expertOf(p.name)
		switch {
		case m.groups[i] != group:
			continue
		case layer >= 0:
			own := m.counts[layer] / o.ep
			if expert/own != e {
				continue
			}
			p.name = m.layers[layer] + inLayer + strconv.Itoa(expert%own) + "." + rest
			if o.parts {
				p.whole = p.partOf(tp, o.tp)
			}
		default:
			p.whole = p.partOf(tp, o.tp)
		}
		all = append(all, p)
	}
	return all
}

// write returns a folder with what DeepSpeed saves of the model. The folder is in memory; it stops
// the test t if that cannot be laid out.
func (m *mixed) write(t testing.TB, o mixedOver) fstest.MapFS {
	s := &saver{t: t, out: &format.Output{}, from: &format.Checkpoint{}}
	info := m.sharingInfo()
	for i, own := range m.byStage(o) {
		own.saveStage(s, o, i*o.tp, info)
	}
	dir := formattest.WriteOutput(t, s.out, s.from,
		format.NewFiles(fstest.MapFS{"blob": {Data: s.blob}}))
	dir[deepspeed.LatestName] = &fstest.MapFile{Data: []byte("global_step7")}
	return dir
}

// saveStage adds to a saver what the ranks of a stage save; mp is the first of its model parallel
// ranks, and info what model states say of how parameters are shared.
func (m *mixed) saveStage(s *saver, o mixedOver, mp int, info *pickle.Dict) {
	for tp := range o.tp {
		mp := mp + tp
		s.writeFile(fmt.Sprintf("global_step7/mp_rank_%02d_model_states.pt", mp),
			func(f *store) any {
				module, shapes, counts := newDict(), newList(), newList()
				for i, p := range m.params {
					if layer, _, _ := m.expertOf(p.name); layer < 0 {
						module.Add(m.params[i].name, f.addArray(p.partOf(tp, o.tp)))
					}
				}
				e, _, _ := m.expertRank(o, 0, tp)
				for g := range slices.Max(m.groups) + 1 {
					d := newDict()
					for _, p := range m.dealtParams(o, g, e, tp) {
						d.Add(p.name, torchzip.IntTuple(p.whole.shape))
					}
					shapes.Items = append(shapes.Items, d)
				}
				for _, n := range m.counts {
					counts.Items = append(counts.Items, int64(n))
				}
				root := newDict("module", module, "num_experts", counts, "global_steps", int64(7),
					"dp_world_size", int64(o.dp), "mp_world_size",
					int64(o.tp*max(len(o.starts), 1)),
					"universal_checkpoint_info", info)
				if o.names {
					root.Add("param_shapes", shapes)
				}
				return root
			})
		written := map[int]bool{}
		for dp := range o.dp {
			e, index, _ := m.expertRank(o, dp, tp)
			if index > 0 || written[e] {
				continue
			}
			written[e] = true
			for layer := range m.layers {
				for expert := range m.counts[layer] {
					if expert/(m.counts[layer]/o.ep) == e {
						s.writeFile(fmt.Sprintf(
							"global_step7/layer_%d_expert_%d_mp_rank_%02d_model_states.pt", layer,
							expert, mp), func(f *store) any {
							d := newDict()
							for _, p := range m.params {
								if l, x, _ := m.expertOf(p.name); l == layer && x == expert {
									if o.parts {
										p.whole = p.partOf(tp, o.tp)
									}
									d.Add(p.name, f.addArray(p.whole))
								}
							}
							return d
						})
					}
				}
			}
			s.writeFile(fmt.Sprintf("global_step7/expp_rank_%d_mp_rank_%02d_optim_states.pt", e,
				mp),
				func(f *store) any {
					return newDict("optimizer", nil)
				})
		}
		for dp := range o.dp {
			s.writeFile(fmt.Sprintf("global_step7/zero_pp_rank_%d_mp_rank_%02d_optim_states.pt", dp,
				mp),
				func(f *store) any {
					return m.optimStates(f, o, dp, tp)
				})
		}
	}
}

// dealtParams returns the local parameters of a group in the order in which they lie. It is the
// order of localParams, unless robin is set.
func (m *mixed) dealtParams(o mixedOver, group, e, tp int) []evenParam {
	all := m.localParams(o, group, e, tp)
	_, _, count := m.expertRank(o, 0, tp)
	if group == 0 {
		count = o.dp
	}
	if !m.robin {
		return all
	}
	var turns []evenParam
	for first := range count {
		for i := first; i < len(all); i += count {
			turns = append(turns, all[i])
		}
	}
	return turns
}

// optimStates returns what the optimizer states of a rank hold. Their arrays go to the file f.
func (m *mixed) optimStates(f *store, o mixedOver, dp, tp int) any {
	weights, states, counts, paddings, mappings, groups := newList(), newDict(), newList(),
		newList(), newList(),
		newList()
	for g := range slices.Max(m.groups) + 1 {
		e, index, count := m.expertRank(o, dp, tp)
		if g == 0 {
			index, count = dp, o.dp
		}
		var flat []float32
		mapping := newDict()
		all := m.dealtParams(o, g, e, tp)
		n := 0
		for _, p := range all {
			n += len(p.whole.data)
		}
		size := (n + 2*count - 1) / (2 * count) * 2
		start := 0
		// DeepSpeed says where they would lie in the model's order
		for _, p := range m.localParams(o, g, e, tp) {
			from, to := max(start, index*size), min(start+len(p.whole.data), (index+1)*size)
			if from < to {
				mapping.Add(p.name,
					pickle.New{Class: pickle.Global{Module: "deepspeed.utils.tensor_fragment",
						Name: "fragment_address"},
						State: newDict("numel", int64(to-from), "start", int64(from-index*size))})
			}
			start += len(p.whole.data)
		}
		for _, p := range all {
			flat = append(flat, p.whole.data...)
		}
		flat = append(flat, make([]float32, size*count-n)...)
		lean := array{data: flat[min(index*size, n):min((index+1)*size, n)]}
		lean.shape = tensor.Shape{len(lean.data)}
		full := array{tensor.Shape{size}, flat[index*size : (index+1)*size]}
		moments := full.scaled(-1)
		clear(moments.data[len(lean.data):]) // what is filled up is no -0
		weights.Items = append(weights.Items, f.addArray(lean))
		states.Items = append(states.Items,
			pickle.Item{Key: int64(g),
				Value: newDict("step", f.addArray(array{tensor.Shape{}, []float32{float32(g + 3)}}),
					"exp_avg", f.addArray(moments))})
		counts.Items, paddings.Items, mappings.Items = append(counts.Items, int64(count)),
			append(paddings.Items, int64(size-len(lean.data))), append(mappings.Items, mapping)
		group := newDict("lr", float64(g), "params", newList(int64(g)))
		if g > 0 {
			group.Add("name", fmt.Sprintf("ep_size_%d", o.ep))
			group.Add("moe", true)
		}
		groups.Items = append(groups.Items, group)
	}
	state := newDict("zero_stage", int64(o.stage), "single_partition_of_fp32_groups", weights,
		"base_optimizer_state", newDict("state", states, "param_groups", groups),
		"partition_count", counts, "group_paddings", paddings, "param_slice_mappings", mappings,
		"ds_version", "0.19.0")
	config := newDict("use_data_before_expert_parallelism", m.first, "zero_optimization",
		newDict("round_robin_gradients", m.robin, "stage", int64(o.stage)))
	return newDict("optimizer_state_dict", state, "ds_config", config, "ds_version", "0.19.0")
}

// sharingInfo returns how tensor parallel ranks share parameters, as model states say it.
func (m *mixed) sharingInfo() *pickle.Dict {
	by := map[string]map[string]bool{"alike": {}, "columns": {}}
	for _, p := range m.params {
		layer, _, rest := m.expertOf(p.name)
		if by[p.rule] == nil || layer >= 0 && !m.named {
			continue
		}
		pattern := regexp.QuoteMeta(p.name) + "$"
		if layer >= 0 {
			pattern = regexp.QuoteMeta(m.layers[layer]+inLayer) + `\d+\.` + rest
		}
		by[p.rule][pattern] = true
	}
	d := newDict("universal_checkpoint_version", 0.2, "parameter_with_2_sub_params_cat_dim_0",
		newList())
	for _, x := range [][2]string{{"alike", "tp_replicated_parameter_patterns"},
		{"columns", "parameter_with_row_parallelism_patterns"}} {
		l := newList()
		for _, pattern := range slices.Sorted(maps.Keys(by[x[0]])) {
			l.Items = append(l.Items, pattern)
		}
		d.Add(x[1], l)
	}
	return d
}

// drawMixed draws a model. Numbers of rows come out even over each of the tensor parallel ranks
// that are drawn.
func drawMixed(r *rapid.T) *mixed {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
	m := &mixed{named: rapid.Bool().Draw(r, "patterns name experts"),
		robin: rapid.Bool().Draw(r, "round robin"),
		first: rapid.Bool().Draw(r, "data before experts")}
	first := 1
	add := func(name, rule string, group int, shape ...int) {
		if strings.Contains(name, inLayer) && !m.named {
			rule = "rest"
		}
		p := evenParam{name: name, rule: rule, whole: numberedArray(first, shape...)}
		first += len(p.whole.data)
		m.params, m.groups = append(m.params, p), append(m.groups, group)
	}
	biases, bias := n("group of biases", 1, 2), rapid.Bool().Draw(r, "biases")
	for b := range n("blocks", 1, 4) {
		for i := range n("parameters", 0, 2) {
			add(fmt.Sprintf("%d.p%d", b, i),
				rapid.SampledFrom([]string{"rest", "columns", "alike"}).Draw(r, "rule"), 0,
				12*n("rows", 1, 2), 12)
		}
		if b > 0 && rapid.Bool().Draw(r, "no experts") {
			continue
		}
		layer := fmt.Sprintf("%d.moe", b)
		m.layers, m.counts = append(m.layers, layer),
			append(m.counts, rapid.SampledFrom([]int{4, 8, 12}).Draw(r, "experts"))
		add(layer+".deepspeed_moe.gate.wg.weight", "alike", 0, m.counts[len(m.counts)-1], 3)
		rows := 12 * n("rows of experts", 1, 2)
		for e := range m.counts[len(m.counts)-1] {
			add(fmt.Sprintf("%s%s%d.up.weight", layer, inLayer, e), "rest", 1, rows, 2)
			if bias {
				add(fmt.Sprintf("%s%s%d.up.bias", layer, inLayer, e), "alike", biases, 12)
			}
			add(fmt.Sprintf("%s%s%d.down.weight", layer, inLayer, e), "columns", 1, 2, 12)
		}
	}
	return m
}

// drawMesh draws a mesh on which the model can lie. name begins the labels of what is drawn.
func (m *mixed) drawMesh(r *rapid.T, name string) (o mixedOver) {
	n := func(what string, of ...int) int { return rapid.SampledFrom(of).Draw(r, name+what) }
	o = mixedOver{stage: n("stage", 1, 2), tp: n("tp", 1, 2, 3), ep: n("ep", 1, 2, 4),
		parts: m.named, names: rapid.Bool().Draw(r, name+"param_shapes")}
	o.dp = o.ep * n("sharers", 1, 2, 3)
	if o.tp == 1 {
		o.parts = true
	}
	if !o.parts { // as DeepSpeed loads it
		o.tp = min(o.ep, 2)
		o.dp /= o.tp
	}
	if rapid.Bool().Draw(r, name+"pipeline") {
		o.stage, o.starts = 1, []int{0} // with another DeepSpeed trains none
		for i, l := range m.layers[1:] {
			before, _, _ := strings.Cut(m.layers[i], ".")
			block, _, _ := strings.Cut(l, ".")
			from, _ := strconv.Atoi(before)
			to, _ := strconv.Atoi(block)
			if rapid.Bool().Draw(r, name+"cut") {
				o.starts = append(o.starts, rapid.IntRange(from+1, to).Draw(r, name+"start"))
			}
		}
	}
	return o
}

// wholeContents returns everything that is in the model, as the reader has it. It is in the form of
// formattest.Contents.
func (m *mixed) wholeContents() map[string]string {
	all := map[string]string{}
	for i, p := range m.params {
		all["module."+p.name], all["optimizer.fp32."+p.name],
			all["optimizer.exp_avg."+p.name] = p.whole.String(), p.whole.String(),
			p.whole.scaled(-1).String()
		all["optimizer.step."+p.name] = array{tensor.Shape{},
			[]float32{float32(m.groups[i] + 3)}}.String()
	}
	return all
}
