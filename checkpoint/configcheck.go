package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// How the tensors of a model are compared with the Hugging Face configuration that is to lie beside
// them. Nothing here does I/O, or changes the checkpoint.

// inLayer matches the name of a tensor in a decoder layer: the layer's number, and the rest.
var inLayer = pattern.New(`^model\.layers\.(\d+)\.(.+)$`)

// checkConfig fails when a configuration describes another model than the tensors, which have their
// Hugging Face names. The transformers library at most warns about tensors that it does not expect,
// and initializes missing ones at random. Missing tensors are an error only when the checkpoint
// holds a whole model.
func (c *Checkpoint) checkConfig(config *hf.Config) error {
	top, layers := map[string]bool{}, map[int]map[string]bool{}
	for _, t := range c.Tensors {
		m := inLayer.FindStringSubmatch(t.Name)
		if m == nil {
			top[t.Name] = true
		} else if n, err := strconv.Atoi(m[1]); err == nil {
			if layers[n] == nil {
				layers[n] = map[string]bool{}
			}
			layers[n][m[2]] = true
		}
	}
	whole := top["model.embed_tokens.weight"] && top["model.norm.weight"]
	switch output := top["lm_head.weight"]; {
	case config.Tied == nil:
	case *config.Tied && output:
		return fmt.Errorf("by %s the output layer has the weights of the embedding "+
			"(tie_word_embeddings), and the checkpoint has an output layer of its own, which "+
			"would be ignored", hf.ConfigName)
	case !*config.Tied && !output && whole:
		return fmt.Errorf("by %s the model has an output layer of its own (tie_word_embeddings "+
			"is false), and the checkpoint has none", hf.ConfigName)
	}
	numbers := slices.Sorted(maps.Keys(layers))
	if n := len(numbers); n > 0 && config.Layers > 0 &&
		(numbers[n-1] >= config.Layers || whole && n < config.Layers) {
		return fmt.Errorf("by %s the model has %d layers (num_hidden_layers), and the "+
			"checkpoint has %d, the last with the number %d", hf.ConfigName, config.Layers, n,
			numbers[n-1])
	}
	if config.Type == "" {
		return nil
	}
	for _, n := range numbers {
		for _, x := range optionalTensors(config) {
			name := fmt.Sprintf("model.layers.%d.%s", n, x.name)
			switch has := layers[n][x.name]; {
			case has && !x.expected:
				return fmt.Errorf("by %s (%s) a %s has no %s, and the checkpoint has one, which "+
					"would be ignored", hf.ConfigName, x.source, config.Type, name)
			case !has && x.expected && whole && layers[n][x.sibling]:
				return fmt.Errorf("by %s (%s) a %s has a %s, and the checkpoint has none",
					hf.ConfigName, x.source, config.Type, name)
			}
		}
	}
	return nil
}

// An optionalTensor is a tensor that layers of some models have next to another.
type optionalTensor struct {
	sibling  string // name, inside the layer, of the tensor next to which it stands
	name     string // its own name inside the layer
	expected bool   // whether the configuration expects the tensor
	source   string // field of the configuration that decides it
}

// optionalTensors returns the tensors that a configuration expects in a layer, or excludes. Each
// stands for its kin too: the bias of q for those of k and v.
func optionalTensors(config *hf.Config) []optionalTensor {
	const typed = "model_type"
	qkv, out, mlp := optionalTensor{source: typed}, optionalTensor{source: typed},
		optionalTensor{source: typed}
	switch config.Type {
	case "llama", "qwen3", "qwen3_moe":
		qkv = optionalTensor{expected: config.AttentionBias, source: "attention_bias"}
		out = qkv
	case "qwen2":
		qkv.expected = true
	}
	if config.Type == "llama" {
		mlp = optionalTensor{expected: config.MLPBias, source: "mlp_bias"}
	}
	return []optionalTensor{
		{"self_attn.q_proj.weight", "self_attn.q_proj.bias", qkv.expected, qkv.source},
		{"self_attn.o_proj.weight", "self_attn.o_proj.bias", out.expected, out.source},
		{"mlp.down_proj.weight", "mlp.down_proj.bias", mlp.expected, mlp.source},
		{"self_attn.q_proj.weight", "self_attn.q_norm.weight",
			strings.HasPrefix(config.Type, "qwen3"), typed},
	}
}
