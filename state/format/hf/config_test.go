package hf_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/hf"
)

func TestKVHeads(t *testing.T) {
	for _, c := range []struct {
		config string
		heads  int
		err    string
	}{
		{`{"num_attention_heads": 32, "num_key_value_heads": 8, "rope_scaling": null}`, 8, ""},
		{`{"num_attention_heads": 32}`, 32, ""},
		{`{"num_attention_heads": 16, "text_config": {"num_attention_heads": 32, "num_key_value_heads": 4}}`, 4, ""},
		{`{"hidden_size": 64}`, 0, ""},
		{`{"num_key_value_heads": -1}`, 0, "-1 heads"},
		{`{"num_key_value_heads": 1e30}`, 0, "config.json"},
		{`{"num_key_value_heads": "8"}`, 0, "config.json"},
		{`[`, 0, "config.json"},
		{strings.Repeat(" ", 5<<20), 0, "the limit"},
	} {
		heads, err := hf.KVHeads(format.NewFiles(fstest.MapFS{"config.json": {Data: []byte(c.config)}}))
		if heads != c.heads || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.80s: %d heads and the error %v, want %d and %q", c.config, heads, err, c.heads, c.err)
		}
	}
	if heads, err := hf.KVHeads(format.NewFiles(fstest.MapFS{})); heads != 0 || err != nil {
		t.Errorf("without config.json: %d heads, %v", heads, err)
	}
}
