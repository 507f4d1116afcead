package checkpoint

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format/hf"
)

var inLayer = regexp.MustCompile(`^model\.layers\.(\d+)\.(.+)$`)

// agrees fails when a configuration is not of the model that the tensors are, which are under the
// names of Hugging Face: transformers warn at most where they leave out what they do not expect,
// and draw at random what they miss. What is missing is said of whole models only.
func (c *Checkpoint) agrees(config *hf.Config) error {
	outside, layers := map[string]bool{}, map[int]map[string]bool{}
	for _, t := range c.Tensors {
		m := inLayer.FindStringSubmatch(t.Name)
		if m == nil {
			outside[t.Name] = true
		} else if n, err := strconv.Atoi(m[1]); err == nil {
			if layers[n] == nil {
				layers[n] = map[string]bool{}
			}
			layers[n][m[2]] = true
		}
	}
	whole := outside["model.embed_tokens.weight"] && outside["model.norm.weight"]
	switch output := outside["lm_head.weight"]; {
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
		for _, x := range expected(config) {
			name := fmt.Sprintf("model.layers.%d.%s", n, x.name)
			switch has := layers[n][x.name]; {
			case has && !x.due:
				return fmt.Errorf("by %s (%s) a %s has no %s, and the checkpoint has one, which "+
					"would be ignored", hf.ConfigName, x.by, config.Type, name)
			case !has && x.due && whole && layers[n][x.beside]:
				return fmt.Errorf("by %s (%s) a %s has a %s, and the checkpoint has none",
					hf.ConfigName, x.by, config.Type, name)
			}
		}
	}
	return nil
}

// An extra is a tensor that layers of some models have beside another.
type extra struct {
	beside, name string
	due          bool
	by           string // what of the configuration says so
}

// expected are those that a layer has, or has not, by a configuration. Each stands for others too:
// that of q for those of k and v.
func expected(config *hf.Config) []extra {
	const typed = "model_type"
	qkv, out, mlp := extra{by: typed}, extra{by: typed}, extra{by: typed}
	switch config.Type {
	case "llama", "qwen3", "qwen3_moe":
		qkv = extra{due: config.AttentionBias, by: "attention_bias"}
		out = qkv
	case "qwen2":
		qkv.due = true
	}
	if config.Type == "llama" {
		mlp = extra{due: config.MLPBias, by: "mlp_bias"}
	}
	return []extra{
		{"self_attn.q_proj.weight", "self_attn.q_proj.bias", qkv.due, qkv.by},
		{"self_attn.o_proj.weight", "self_attn.o_proj.bias", out.due, out.by},
		{"mlp.down_proj.weight", "mlp.down_proj.bias", mlp.due, mlp.by},
		{"self_attn.q_proj.weight", "self_attn.q_norm.weight",
			strings.HasPrefix(config.Type, "qwen3"), typed},
	}
}
