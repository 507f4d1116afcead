package layout

// MegatronCore says how the tensors of decoders, under the names of Hugging Face, lie under those of Megatron Core: what is joined, and what is called
// otherwise. units are the rows of q, k and v in a group of heads; moe says that there are experts; the vocabulary has rows in multiples of pad. Parts reads
// it the other way.
func MegatronCore(units []int, moe bool, pad int) (list []Store) {
	const from, to = "**model.layers.#.", "**decoder.layers.#."
	join := func(name string, units []int, parts ...string) {
		for i := range parts {
			parts[i] = from + parts[i]
		}
		list = append(list, Store{Name: to + name, Parts: parts, Units: units})
	}
	for _, kind := range []string{"weight", "bias"} {
		join("self_attention.linear_qkv."+kind, units, "self_attn.q_proj."+kind, "self_attn.k_proj."+kind, "self_attn.v_proj."+kind)
		join("self_attention.linear_proj."+kind, nil, "self_attn.o_proj."+kind)
		join("mlp.linear_fc1."+kind, nil, "mlp.gate_proj."+kind, "mlp.up_proj."+kind)
		join("mlp.linear_fc2."+kind, nil, "mlp.down_proj."+kind)
	}
	norm := "mlp.linear_fc1.layer_norm_weight"
	if moe {
		norm = "pre_mlp_layernorm.weight"
		join("mlp.experts.#.linear_fc1.weight", nil, "mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight")
		join("mlp.experts.#.linear_fc2.weight", nil, "mlp.experts.#.down_proj.weight")
	}
	for _, r := range [][2]string{
		{"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"}, {norm, "post_attention_layernorm.weight"},
		{"self_attention.q_layernorm.weight", "self_attn.q_norm.weight"}, {"self_attention.k_layernorm.weight", "self_attn.k_norm.weight"},
		{"mlp.router.weight", "mlp.gate.weight"},
	} {
		join(r[0], nil, r[1])
	}
	list = append(list, Store{Name: "**decoder.final_layernorm.weight", Parts: []string{"**model.norm.weight"}})
	for _, r := range [][2]string{{"**embedding.word_embeddings.weight", "**model.embed_tokens.weight"}, {"**output_layer.weight", "**lm_head.weight"}} {
		list = append(list, Store{Name: r[0], Parts: []string{r[1]}, Pad: &Pad{Multiple: pad}})
	}
	return list
}
