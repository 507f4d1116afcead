package megatron

// This file knows the names of torch_dist, for its writer. It does no I/O.
import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/tensor"
)

// groupedExperts matches parameters of experts that are computed together: the number is at the
// end.
var groupedExperts = pattern.New(`^(.*\.)experts\.(linear_fc[12]\.(?:weight|bias))(\d+)$`)

// norms are the beginnings of norms that are modules, and what they are called as parts of the next
// product: so torch_dist has all of them, in models whose attention has linear_qkv.
var norms = [][2]string{{"input_layernorm.", "self_attention.linear_qkv.layer_norm_"},
	{"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"}}

// A keys finds the names of a model's parameters in torch_dist. No method changes it; no I/O.
type keys struct {
	stacked bool           // whether all layers are alike, so that one tensor holds them all
	layers  int            // number of layers
	norms   bool           // whether norms get other names
	experts map[string]int // number of experts, by their prefix
}

// A key is the key of a tensor, and which part of it is meant. Its methods do not change it.
type key struct {
	name   string
	at, of []int // indices on the leading dimensions, and the sizes of these
}

// newKeys finds out the keys that torch_dist has for a model, or for an optimizer without a model.
func newKeys(s *rankFiles, values []format.Value) *keys {
	k := &keys{stacked: true, experts: map[string]int{}}
	all := s.model
	if len(all) == 0 {
		for _, param := range slices.Sorted(maps.Keys(s.states)) {
			all = append(all, s.states[param][0])
		}
	}
	layers := map[string]map[string]string{} // what each has
	for _, l := range all {
		m := layer.FindStringSubmatch(l.param)
		if m == nil || strings.HasSuffix(l.param, extraState) {
			continue
		}
		if layers[m[0]] == nil {
			layers[m[0]] = map[string]string{}
		}
		layers[m[0]][l.param[len(m[0]):]] = fmt.Sprint(l.DType, l.Shape)
		if prefix, n, is := expertOf(l.param); is {
			k.experts[prefix] = max(k.experts[prefix], n+1)
		}
	}
	k.layers = len(layers)
	for _, has := range layers {
		k.stacked = k.stacked && maps.Equal(has, layers["decoder.layers.0."])
		k.norms = k.norms || has["input_layernorm.weight"] != "" &&
			has["self_attention.linear_qkv.weight"] != ""
	}
	k.stacked = k.stacked && !slices.ContainsFunc(values, separatesLayers)
	return k
}

// separatesLayers reports whether an argument makes Megatron keep each layer separately.
func separatesLayers(v format.Value) bool {
	switch v.Path {
	case "args.moe_layer_freq", "args.linear_attention_freq":
		n, isNumber := v.Data.(int64)
		return isNumber && n > 1 || !isNumber && v.Data != nil
	case "args.hetereogenous_dist_checkpoint":
		return v.Data == true
	case "args.heterogeneous_layers_config_path", "args.heterogeneous_layers_config_encoded_json":
		return v.Data != nil
	}
	return false
}

// keyOf returns the key of a parameter.
func (k *keys) keyOf(param string) key {
	x := key{name: param}
	if m := layer.FindStringSubmatch(param); m != nil {
		rest := param[len(m[0]):]
		for _, n := range norms {
			if after, ok := strings.CutPrefix(rest, n[0]); ok && k.norms {
				rest = n[1] + after
			}
		}
		x.name = m[0] + rest
		if k.stacked {
			n, _ := strconv.Atoi(m[2])
			x = key{m[1] + "layers." + rest, []int{n}, []int{k.layers}}
		}
	}
	expert := func(m, own []string, name string) {
		n, _ := strconv.Atoi(m[len(m)-1])
		x = key{m[1] + "experts.experts." + name, append(x.at, n), append(x.of, k.experts[own[1]])}
	}
	if m := numbered.FindStringSubmatch(x.name); m != nil {
		expert(m, numbered.FindStringSubmatch(param), x.name[len(m[0]):])
	} else if m := groupedExperts.FindStringSubmatch(x.name); m != nil {
		expert(m, groupedExperts.FindStringSubmatch(param), m[2])
	}
	return x
}

// stateName returns the name of a kind of state of a parameter; kind "" is the parameter itself.
func (k key) stateName(kind string) string {
	switch kind {
	case "":
		return k.name
	case "fp32":
		kind = mainKind
	}
	return optimizerKey + ".state." + kind + "." + k.name
}

// shardOf returns a tensor as a shard of the tensor of its key.
func (k key) shardOf(l *local) format.Shard {
	s := format.Shard{Name: k.stateName(l.kind), DType: l.DType,
		Shape: append(slices.Clone(tensor.Shape(k.of)), l.Shape...)}
	for _, n := range k.at {
		s.Box = append(s.Box, tensor.Span{From: n, To: n + 1})
	}
	s.Box = append(s.Box, l.Shape.Box()...)
	return s
}

// objectName returns the name of a module's extra state. k is its key, or that of a parameter of
// it.
func (k key) objectName(module string) string {
	at, of := k.at, k.of
	if len(at) == 0 {
		at, of = []int{0}, []int{1}
	}
	dots := func(list []int) string {
		return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ".")
	}
	return module + extraState + "/shard_" + dots(at) + "_" + dots(of)
}

// extraObjects returns what modules keep besides parameters: the tensors extra, and nothing for the
// modules of all, as most have nothing: Megatron asks every module, and does not load without it.
func (k *keys) extraObjects(extra, all []*local) (list []dcp.Object) {
	seen := map[string]bool{}
	add := func(o dcp.Object) {
		if !seen[o.Name] {
			list = append(list, o)
		}
		seen[o.Name] = true
	}
	for _, l := range extra {
		x := k.keyOf(l.param)
		if p, err := torchzip.Placeholder(0, l.Tensor); err == nil { // of u8
			add(dcp.Object{Name: x.objectName(strings.TrimSuffix(x.name, extraState)),
				Root: &pickle.List{Items: []any{p}}, Tensors: []format.Tensor{l.Tensor}})
		}
	}
	none := &pickle.List{Items: []any{nil}}
	for _, l := range all {
		if l.kind != "" || !strings.HasPrefix(l.param, "decoder.") {
			continue
		}
		x := k.keyOf(l.param)
		module := x.name[:strings.LastIndexByte(x.name, '.')]
		add(dcp.Object{Name: x.objectName(module), Root: none})
		if before, ok := strings.CutSuffix(module, "self_attention.linear_proj"); ok {
			add(dcp.Object{Name: x.objectName(before + "self_attention.core_attention"),
				Root: none})
		}
	}
	return list
}
