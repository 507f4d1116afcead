package megatron

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Megatron Core registers the parameters of a model module by module, and so an optimizer numbers
// them, and buffers have them from the last to the first. Of the modules of a layer these are what
// follows its number; a module's own parameters come before those of modules in it, and leaves is
// the order of what Transformer Engine has in one.
var (
	modules = []string{"input_layernorm", "self_attention.linear_proj", "self_attention.linear_qkv",
		"self_attention.q_layernorm", "self_attention.k_layernorm", "pre_mlp_layernorm",
		"mlp.router", "mlp.experts", "mlp.shared_experts", "mlp.shared_experts.linear_fc1",
		"mlp.shared_experts.linear_fc2", "mlp.linear_fc1", "mlp.linear_fc2"}
	tops = []string{"embedding.word_embeddings.weight", "embedding.position_embeddings.weight",
		"decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight",
		"output_layer.bias"}
	leaves    = []string{"gate_weight", "layer_norm_weight", "layer_norm_bias", "weight", "bias"}
	expertFor = regexp.MustCompile(
		`^mlp\.experts\.(?:local_experts\.(\d+)\.linear_fc([12])\.(weight|bias)|linear_fc([12])\.(weight|bias)(\d+))$`)
)

// registrationOrder returns the position at which Megatron Core registers a parameter; known is
// false where shoal does not know it. Experts are registered one after the other; where their
// products are computed together, each has its weight and bias in the one module, and then in the
// other.
func registrationOrder(name string) (at []int, known bool) {
	m := layer.FindStringSubmatch(name)
	if m == nil {
		i := slices.Index(tops, name)
		return []int{depth(name), i}, i >= 0
	}
	inner := name[len(m[0]):]
	if e := expertFor.FindStringSubmatch(inner); e != nil {
		number := func(text string) int { n, _ := strconv.Atoi(text); return n }
		if e[1] != "" {
			at = []int{number(e[1]), number(e[2]), slices.Index(leaves, e[3])}
		} else {
			at = []int{number(e[4]), number(e[6]), slices.Index(leaves, e[5])}
		}
		return append([]int{depth(name), slices.Index(modules, "mlp.experts")}, at...), true
	}
	dot := max(strings.LastIndexByte(inner, '.'), 0)
	i, leaf := slices.Index(modules, inner[:dot]),
		slices.Index(leaves, strings.TrimPrefix(inner[dot:], "."))
	return []int{depth(name), i, leaf}, i >= 0 && leaf >= 0 && inner[:dot] != "mlp.experts"
}

// registrationKey returns the position at which something is registered; what is not a parameter,
// such as the bias of a router, comes last.
func registrationKey(name string) []int {
	at, known := registrationOrder(name)
	if !known {
		return []int{depth(name), len(modules)}
	}
	return at
}
