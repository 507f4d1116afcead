package hf_test

// This file tests configurations of models.
import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/hf"
)

// TestKVHeads reads how many heads k and v have, from each form of a configuration.
func TestKVHeads(t *testing.T) {
	for _, c := range []struct {
		config string
		heads  int
		err    string
	}{
		{`{"num_attention_heads": 32, "num_key_value_heads": 8, "rope_scaling": null}`, 8, ""},
		{`{"num_attention_heads": 32}`, 32, ""},
		{
			`{"num_attention_heads": 16, "text_config": {"num_attention_heads": 32, "num_key_value_heads": 4}}`, 4, ""},
		{`{"hidden_size": 64}`, 0, ""},
		{`{"num_key_value_heads": -1}`, 0, "-1 heads"},
		{`{"num_key_value_heads": 1e30}`, 0, "config.json"},
		{`{"num_key_value_heads": "8"}`, 0, "config.json"},
		{`[`, 0, "config.json"},
		{strings.Repeat(" ", 5<<20), 0, "the limit"},
	} {
		read, err := hf.ReadConfig(
			format.NewFiles(fstest.MapFS{"config.json": {Data: []byte(c.config)}}))
		heads := read.KVHeads
		if heads != c.heads || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.80s: %d heads and the error %v, want %d and %q", c.config, heads, err,
				c.heads, c.err)
		}
	}
	if c, err := hf.ReadConfig(format.NewFiles(fstest.MapFS{})); c != (hf.Config{}) || err != nil {
		t.Errorf("without config.json: %+v, %v", c, err)
	}
}

// TestParseConfig reads configurations, and refuses numbers that no model has.
func TestParseConfig(t *testing.T) {
	c, err := hf.ParseConfig(
		[]byte(
			`{"model_type": "qwen3", "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36, "attention_bias": true, "mlp_bias": null, "vocab_size": 151936, "tie_word_embeddings": true, "layer_types": null}`))
	if err != nil || c.Tied == nil || !*c.Tied {
		t.Fatalf("%+v, %v", c, err)
	}
	c.Tied = nil
	if c != (hf.Config{Type: "qwen3", Heads: 32, KVHeads: 8, HeadSize: 128, Vocabulary: 151936,
		Layers: 36, AttentionBias: true}) {
		t.Errorf("%+v", c)
	}
	if c, err = hf.ParseConfig(
		[]byte(
			`{"model_type": "x", "vocab_size": 1, "text_config": {"vocab_size": 5, "head_dim": 4, "tie_word_embeddings": false}}`)); err != nil || c.Vocabulary != 5 || c.HeadSize != 4 || c.Tied == nil || *c.Tied {
		t.Errorf("%+v, %v", c, err)
	}
	for text, want := range map[string]hf.Config{
		`{"text_config": {"attention_bias": true}}`:                    {AttentionBias: true},
		`{"text_config": {"mlp_bias": true}, "attention_bias": false}`: {MLPBias: true},
		`{"mlp_bias": true}`: {MLPBias: true},
	} {
		if c, err := hf.ParseConfig([]byte(text)); err != nil || c != want {
			t.Errorf("%s: %+v, %v; want %+v", text, c, err, want)
		}
	}
	for _, text := range []string{`{"vocab_size": -1}`, `{"num_hidden_layers": -1}`,
		`{"text_config": {"num_hidden_layers": 2000000}}`,
		`{"text_config": {"head_dim": 2000000000}}`, `{"head_dim": 1.5}`, `{"head_dim": -1}`,
		`{"num_attention_heads": 2000000}`, `{"vocab_size": 2000000000}`,
		`{"tie_word_embeddings": "no"}`} {
		if _, err := hf.ParseConfig([]byte(text)); err == nil {
			t.Errorf("%s is none", text)
		}
	}
}
