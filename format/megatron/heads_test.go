package megatron_test

// This file tests what Megatron's arguments tell of a model.
import (
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron"
)

// TestKVHeads finds how many heads k and v have.
func TestKVHeads(t *testing.T) {
	number := func(path string, is any) format.Value { return format.Value{Path: path, Data: is} }
	for _, c := range []struct {
		values []format.Value
		want   int
	}{
		{nil, 0},
		{[]format.Value{number("args.num_attention_heads", int64(16))}, 16},
		{[]format.Value{number("args.group_query_attention", false),
			number("args.num_attention_heads", int64(16)),
			number("args.num_query_groups", int64(1))}, 16},
		{[]format.Value{number("args.group_query_attention", true),
			number("args.num_attention_heads", int64(16)),
			number("args.num_query_groups", int64(4))}, 4},
		{[]format.Value{number("args.num_attention_heads", int64(-1))}, 0},
	} {
		if got := megatron.KVHeads(&format.Checkpoint{Values: c.values}); got != c.want {
			t.Errorf("%v: %d, want %d", c.values, got, c.want)
		}
	}
}

// TestModelOf finds what else arguments say of a model.
func TestModelOf(t *testing.T) {
	c := &format.Checkpoint{}
	for path, is := range map[string]any{"args.num_attention_heads": int64(8),
		"args.kv_channels": int64(64), "args.vocab_size": int64(50257),
		"args.tokenizer_type": "GPT2BPETokenizer"} {
		setValue(c, path, is)
	}
	want := megatron.Model{Heads: megatron.Fact{N: 8, By: "args.num_attention_heads"},
		HeadSize:   megatron.Fact{N: 64, By: "args.kv_channels"},
		Vocabulary: megatron.Fact{N: 50257, By: "args.vocab_size"}}
	want.KVHeads = want.Heads
	if got := megatron.ModelOf(c); got != want {
		t.Errorf("%+v", got)
	}
	setValue(c, "args.tokenizer_type", "NullTokenizer") // it does not count a token that it adds
	setValue(c, "args.kv_channels", int64(1)<<40)
	want.Vocabulary, want.HeadSize = megatron.Fact{}, megatron.Fact{}
	if got := megatron.ModelOf(c); got != want {
		t.Errorf("%+v", got)
	}
}
