package checkpoint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/tensor"
)

// parseConfig parses a configuration of Hugging Face; the test fails for one that is none.
func parseConfig(t *testing.T, text string) *hf.Config {
	t.Helper()
	c, err := hf.ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// TestLogicalFacts takes what is not in the tensors from people, from a configuration, and from
// Megatron's arguments.
func TestLogicalFacts(t *testing.T) {
	dir, _ := megatronSample(t, "mixed")
	for _, x := range []struct {
		name  string
		facts ModelFacts
		err   string // "" for none
	}{
		{"flags", ModelFacts{Vocabulary: 9, KVHeads: 2}, ""},
		{"arguments", ModelFacts{Vocabulary: 10}, ""},
		{"a configuration",
			ModelFacts{Config: parseConfig(t,
				`{"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 9, "tie_word_embeddings": true}`)}, ""},
		{"without type and ties", ModelFacts{Config: parseConfig(t, `{"vocab_size": 9}`)}, ""},
		{"no vocabulary", ModelFacts{}, "or the number (--vocab-size)"},
		{"another model", ModelFacts{
			Config: parseConfig(t, `{"num_attention_heads": 8, "vocab_size": 9}`)},
			"config.json says 8 where args.num_attention_heads is 4: it is of another model"},
		{"other groups", ModelFacts{
			Config: parseConfig(t, `{"num_attention_heads": 4, "vocab_size": 9}`)},
			"config.json says 4 where args.num_query_groups is 2"},
		{"a flag over that",
			ModelFacts{Config: parseConfig(t, `{"num_attention_heads": 4, "vocab_size": 9}`),
				KVHeads: 2},
			""},
		{"a wrong flag", ModelFacts{Vocabulary: 9, KVHeads: 3}, "heads of k and v (--kv-heads)"},
		{"another kind", ModelFacts{
			Config: parseConfig(t, `{"model_type": "gemma2", "vocab_size": 9}`)},
			"by its config.json the model is a gemma2, and shoal has the names of llama, "},
		{"another kind with such names",
			ModelFacts{Vocabulary: 9, Config: parseConfig(t, `{"model_type": "qwen2"}`)},
			"by config.json (model_type) a qwen2 has a model.layers.0.self_attn.q_proj.bias, " +
				"and the checkpoint has none"},
		{"norms are due", ModelFacts{Vocabulary: 9,
			Config: parseConfig(t, `{"model_type": "qwen3"}`)},
			"by config.json (model_type) a qwen3 has a model.layers.0.self_attn.q_norm.weight"},
		{"biases are due",
			ModelFacts{Vocabulary: 9,
				Config: parseConfig(t, `{"model_type": "llama", "attention_bias": true}`)},
			"by config.json (attention_bias) a llama has a model.layers.0.self_attn.q_proj.bias"},
		{"others too", ModelFacts{Vocabulary: 9,
			Config: parseConfig(t, `{"model_type": "llama", "mlp_bias": true}`)},
			"by config.json (mlp_bias) a llama has a model.layers.0.mlp.down_proj.bias"},
		{"no biases where that counts for nothing",
			ModelFacts{Vocabulary: 9,
				Config: parseConfig(t,
					`{"model_type": "mistral", "attention_bias": true, "mlp_bias": true}`)}, ""},
		{"as many layers",
			ModelFacts{Vocabulary: 9, Config: parseConfig(t, `{"num_hidden_layers": 4}`)},
			""},
		{"more layers", ModelFacts{Vocabulary: 9,
			Config: parseConfig(t, `{"num_hidden_layers": 6}`)},
			"by config.json the model has 6 layers (num_hidden_layers), and the checkpoint has " +
				"4, the last with the number 3"},
		{"fewer layers", ModelFacts{Vocabulary: 9,
			Config: parseConfig(t, `{"num_hidden_layers": 3}`)},
			"the model has 3 layers (num_hidden_layers)"},
		{"an output layer is due",
			ModelFacts{Config: parseConfig(t, `{"vocab_size": 9, "tie_word_embeddings": false}`)},
			"the model has an output layer of its own"},
	} {
		_, err := openCheckpoint(t, dir).ToHuggingFace(x.facts)
		if x.err == "" && err != nil || x.err != "" &&
			(err == nil || !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: %v; want %q", x.name, err, x.err)
		}
	}
	// One beside the tensors counts where none was given, or else one in the folder above.
	for _, x := range []struct{ file, text, err string }{
		{hf.ConfigName, `{"vocab_size": 9}`, ""}, {hf.ConfigName, `{`, "config.json: "},
		{"iter_0000012/" + hf.ConfigName, `{"vocab_size": 9}`, ""},
		{"iter_0000012/" + hf.ConfigName, `{"vocab_size": 90}`,
			"fewer than the vocabulary: 90 (config.json)"},
	} {
		if err := os.WriteFile(filepath.Join(dir, x.file), []byte(x.text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := openCheckpoint(t,
			dir).ToHuggingFace(ModelFacts{}); (err == nil) != (x.err == "") ||
			err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s in %s: %v", x.text, x.file, err)
		}
	}
	c := openCheckpoint(t, dir)
	c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
		return !strings.HasPrefix(x.Name, "model.decoder.layers.1.")
	})
	if _, err := c.ToHuggingFace(
		ModelFacts{Config: parseConfig(t,
			`{"model_type": "qwen3", "num_hidden_layers": 4}`)}); err != nil {
		t.Errorf("a part of a model: %v", err)
	}
	c = openCheckpoint(t, dir)
	c.Tensors = append(c.Tensors,
		format.Tensor{Name: "model.decoder.layers.3.self_attention.linear_proj.bias",
			DType: tensor.BF16, Shape: tensor.Shape{8}})
	if _, err := c.ToHuggingFace(
		ModelFacts{Vocabulary: 9,
			Config: parseConfig(t, `{"model_type": "mixtral"}`)}); err == nil ||
		!strings.Contains(err.Error(), "by config.json (model_type) a mixtral has no "+
			"model.layers.3.self_attn.o_proj.bias, and the checkpoint has one") {
		t.Error(err)
	}
	c = openCheckpoint(t, dir)
	c.Values = append(c.Values, format.Value{Path: "args.vocab_size", Data: int64(10)})
	slices.SortFunc(c.Values, func(a, b format.Value) int {
		return strings.Compare(a.Path, b.Path)
	})
	if _, err := c.ToHuggingFace(
		ModelFacts{Config: parseConfig(t, `{"vocab_size": 9}`)}); err == nil ||
		!strings.Contains(err.Error(), "config.json says 9 rows of the vocabulary where "+
			"args.vocab_size is 10, and some would be lost; say with --vocab-size") {
		t.Error(err)
	}
	if _, err := c.ToHuggingFace(
		ModelFacts{Vocabulary: 9, Config: parseConfig(t, `{"vocab_size": 9}`)}); err != nil {
		t.Error(err)
	}
	c = openCheckpoint(t, dir)
	for i := range c.Tensors {
		if x := &c.Tensors[i]; x.Name == "model.embedding.word_embeddings.weight" {
			y := *x
			y.Name = "model.output_layer.weight"
			c.Tensors = append(c.Tensors, y)
			break
		}
	}
	if _, err := c.ToHuggingFace(
		ModelFacts{Config: parseConfig(t,
			`{"vocab_size": 9, "tie_word_embeddings": true}`)}); err == nil ||
		!strings.Contains(err.Error(), "which would be ignored") {
		t.Error(err)
	}
}

// TestLogicalOfSealed: fingerprints of a seal are of tensors that are joined. What was damaged
// since is noticed all the same, in what comes apart and in what has another name.
func TestLogicalOfSealed(t *testing.T) {
	dir, _ := megatronSample(t, "mixed")
	for _, name := range []string{"", "model.decoder.layers.1.self_attention.linear_qkv.weight",
		"model.decoder.final_layernorm.weight"} {
		sealed := filepath.Join(t.TempDir(), "sealed")
		// which has no checksums of its own
		convert(t, dir, sealed, TargetFormat{Format: "hf"}, Options{Workers: 2, Seal: true})
		src := openCheckpoint(t, sealed)
		for _, x := range src.Tensors {
			if x.Name == name {
				changeFile(t, filepath.Join(sealed, x.Pieces[0].File), func(b []byte) []byte {
					b[x.Pieces[0].Offset] ^= 1
					return b
				})
			}
		}
		src = openCheckpoint(t, sealed)
		if _, err := src.ToHuggingFace(ModelFacts{Vocabulary: 9, KVHeads: 2}); err != nil {
			t.Fatal(err)
		}
		out, _, err := src.Output(TargetFormat{Format: "hf"})
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(t.TempDir(), "dst")
		if _, err = Move(t.Context(), src, out, dst,
			Options{Workers: 2}); (err == nil) != (name == "") ||
			err != nil && !strings.Contains(err.Error(), "not what was sealed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTensorWithoutAName has a tensor of the name "" alone, and among others: the advice renames it
// only where that renames no other.
func TestTensorWithoutAName(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"", "w"}, "leave it out with --only"},
		{[]string{""}, "--rename =weight"},
	} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		var list []safetensors.Tensor
		for _, name := range c.names {
			list = append(list, safetensors.Tensor{Name: name, DType: tensor.U8})
		}
		writeRandom(t, path, 1, list)
		if err := openCheckpoint(t, path).CheckNames(); err == nil ||
			!strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.names, err, c.want)
		}
	}
}
