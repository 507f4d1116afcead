// Package order knows the order in which Megatron Core registers the parameters of a model, which
// is the order of their numbers in an optimizer.
package order

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/pattern"
)

// Megatron Core registers parameters module by module. modules are the names of a layer's modules
// after its number; a module's own parameters come before those of the modules in it, and leaves is
// the order of the parameters in one module of Transformer Engine. tops are the parameters outside
// layers.
var (
	layer   = pattern.New(`^(|.*\.)layers\.(\d+)\.`)
	modules = []string{"input_layernorm", "self_attention.linear_proj", "self_attention.linear_qkv",
		"self_attention.q_layernorm", "self_attention.k_layernorm", "pre_mlp_layernorm",
		"mlp.router", "mlp.experts", "mlp.shared_experts", "mlp.shared_experts.linear_fc1",
		"mlp.shared_experts.linear_fc2", "mlp.linear_fc1", "mlp.linear_fc2"}
	tops = []string{"embedding.word_embeddings.weight", "embedding.position_embeddings.weight",
		"decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight",
		"output_layer.bias"}
	leaves    = []string{"gate_weight", "layer_norm_weight", "layer_norm_bias", "weight", "bias"}
	expertFor = pattern.New(
		`^mlp\.experts\.(?:local_experts\.(\d+)\.linear_fc([12])\.(weight|bias)|linear_fc([12])` +
			`\.(weight|bias)(\d+))$`)
)

// Depth returns a number by which the tensors of a model are ordered: that of their layer; -1 for
// an embedding, and the largest for the rest.
func Depth(name string) int {
	if m := layer.FindStringSubmatch(name); m != nil {
		n, _ := strconv.Atoi(m[2])
		return n
	}
	if strings.Contains(name, "embedding") {
		return -1
	}
	return 1 << 30
}

// Position returns the position at which Megatron Core registers a parameter, to be compared
// element by element; known is false where shoal does not know it. Experts are registered one after
// the other; where their products are computed together, each has its weight and bias in the one
// module, and then in the other.
func Position(name string) (at []int, known bool) {
	m := layer.FindStringSubmatch(name)
	if m == nil {
		i := slices.Index(tops, name)
		return []int{Depth(name), i}, i >= 0
	}
	inner := name[len(m[0]):]
	if e := expertFor.FindStringSubmatch(inner); e != nil {
		number := func(text string) int { n, _ := strconv.Atoi(text); return n }
		if e[1] != "" {
			at = []int{number(e[1]), number(e[2]), slices.Index(leaves, e[3])}
		} else {
			at = []int{number(e[4]), number(e[6]), slices.Index(leaves, e[5])}
		}
		return append([]int{Depth(name), slices.Index(modules, "mlp.experts")}, at...), true
	}
	dot := max(strings.LastIndexByte(inner, '.'), 0)
	i, leaf := slices.Index(modules, inner[:dot]),
		slices.Index(leaves, strings.TrimPrefix(inner[dot:], "."))
	return []int{Depth(name), i, leaf}, i >= 0 && leaf >= 0 && inner[:dot] != "mlp.experts"
}

// SortKey returns the position at which something is registered; what is not a parameter, such as
// the bias of a router, comes last. Positions are compared element by element.
func SortKey(name string) []int {
	at, known := Position(name)
	if !known {
		return []int{Depth(name), len(modules)}
	}
	return at
}
