package layout

import (
	"regexp"
	"slices"
)

// The names of tensors in decoders of Hugging Face, and how they become those of Megatron Core. The
// functions are pure.

// An ExpertNaming is how decoders of Hugging Face name their experts, identified by type of model.
// "" is a decoder without experts.
type ExpertNaming string

// expertNamings lists the known namings: the module of the experts, and the names of gate, up and
// down there.
var expertNamings = map[ExpertNaming]struct{ at, gate, up, down string }{
	"qwen3_moe": {"mlp", "gate_proj", "up_proj", "down_proj"},
	"mixtral":   {"block_sparse_moe", "w1", "w3", "w2"},
}

// IsKnown reports whether MegatronCoreStores has rules for the naming.
func (m ExpertNaming) IsKnown() bool { return expertNamings[m].at != "" }

// expertName matches in the name of an expert's tensor the module of the experts.
var expertName = regexp.MustCompile(`\.(mlp|block_sparse_moe)\.experts\.\d+\.`)

// ExpertNamingOf returns the naming of experts that the names of tensors show, "" if there are
// none.
func ExpertNamingOf(names []string) ExpertNaming {
	for _, name := range names {
		switch m := expertName.FindStringSubmatch(name); {
		case m == nil:
		case m[1] == "mlp":
			return "qwen3_moe"
		default:
			return "mixtral"
		}
	}
	return ""
}

// denseName matches the name of a tensor that each layer without experts has, and its number.
var denseName = regexp.MustCompile(`(?:^|\.)model\.layers\.(\d+)\.mlp\.down_proj\.weight$`)

// DenseLayers returns the numbers, as they stand in names, of the layers whose feed-forward module
// has no experts, each once.
func DenseLayers(names []string) (numbers []string) {
	for _, name := range names {
		if m := denseName.FindStringSubmatch(name); m != nil {
			numbers = append(numbers, m[1])
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// MegatronCoreStores returns stores that say how the tensors of decoders, under the names of
// Hugging Face, lie under those of Megatron Core: which are joined, and which are renamed. units
// are the rows of q, k and v in a group of heads; the vocabulary has rows in multiples of pad.
// dense are the layers without experts, which matters if other layers have some: Megatron has the
// norm before experts as a module of its own. Parts reads the stores in the other direction.
func MegatronCoreStores(units []int, experts ExpertNaming, dense []string, pad int) (list []Store) {
	const from, to = "**model.layers.#.", "**decoder.layers.#."
	join := func(name string, units []int, parts ...string) {
		for i := range parts {
			parts[i] = from + parts[i]
		}
		list = append(list, Store{Name: to + name, Parts: parts, Units: units})
	}
	for _, kind := range []string{"weight", "bias"} {
		join("self_attention.linear_qkv."+kind, units, "self_attn.q_proj."+kind,
			"self_attn.k_proj."+kind, "self_attn.v_proj."+kind)
		join("self_attention.linear_proj."+kind, nil, "self_attn.o_proj."+kind)
		join("mlp.linear_fc1."+kind, nil, "mlp.gate_proj."+kind, "mlp.up_proj."+kind)
		join("mlp.linear_fc2."+kind, nil, "mlp.down_proj."+kind)
	}
	norm := "mlp.linear_fc1.layer_norm_weight"
	if m := expertNamings[experts]; experts.IsKnown() {
		for _, n := range dense { // before the rule for all layers, because the first rule counts
			list = append(list,
				Store{Name: "**decoder.layers." + n + "." + norm,
					Parts: []string{"**model.layers." + n + ".post_attention_layernorm.weight"}})
		}
		norm = "pre_mlp_layernorm.weight"
		each := m.at + ".experts.#."
		join("mlp.experts.#.linear_fc1.weight", nil, each+m.gate+".weight", each+m.up+".weight")
		join("mlp.experts.#.linear_fc2.weight", nil, each+m.down+".weight")
		join("mlp.router.weight", nil, m.at+".gate.weight")
	}
	for _, r := range [][2]string{
		{"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"},
		{norm, "post_attention_layernorm.weight"},
		{"self_attention.q_layernorm.weight", "self_attn.q_norm.weight"},
		{"self_attention.k_layernorm.weight", "self_attn.k_norm.weight"},
	} {
		join(r[0], nil, r[1])
	}
	list = append(list,
		Store{Name: "**decoder.final_layernorm.weight", Parts: []string{"**model.norm.weight"}})
	for _, r := range [][2]string{
		{"**embedding.word_embeddings.weight", "**model.embed_tokens.weight"},
		{"**output_layer.weight", "**lm_head.weight"}} {
		list = append(list, Store{Name: r[0], Parts: []string{r[1]}, Pad: &Pad{Multiple: pad}})
	}
	return list
}
