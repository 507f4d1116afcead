package megatron_test

// This file tests the groups that Megatron gives the optimizers of others.
import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/tensor"
)

// stateCheckpoint returns a checkpoint with state of parameters, and the values of a group for
// each. shapes has the number of dimensions, each of 2, by parameter.
func stateCheckpoint(shapes map[string]int, kinds ...string) (*format.Checkpoint,
	map[string][]format.Value) {
	c, of := &format.Checkpoint{}, map[string][]format.Value{}
	for name, dims := range shapes {
		for _, kind := range kinds {
			c.Tensors = append(c.Tensors,
				format.Tensor{Name: "optimizer." + kind + "." + name, DType: tensor.F32,
					Shape: slices.Repeat([]int{2}, dims)})
		}
		of[name] = []format.Value{{Path: "lr", Data: 0.5},
			{Path: "weight_decay", Data: 0.1 * float64(dims-1)}}
	}
	return c, of
}

// TestRegroup makes the two groups of Megatron, in the order in which it has their parameters, of
// names of both kinds.
func TestRegroup(t *testing.T) {
	shapes := map[string]int{"lm_head.weight": 2, "model.norm.weight": 1,
		"model.embed_tokens.weight": 2, "model.layers.10.mlp.down_proj.weight": 2,
		"model.layers.2.mlp.down_proj.weight":    2,
		"model.layers.2.self_attn.o_proj.weight": 2, "model.layers.2.self_attn.q_norm.weight": 1,
		"model.layers.2.input_layernorm.weight": 1}
	matrices := []any{"embedding.word_embeddings.weight",
		"decoder.layers.2.self_attention.linear_proj.weight",
		"decoder.layers.2.mlp.linear_fc2.weight", "decoder.layers.10.mlp.linear_fc2.weight",
		"output_layer.weight"}
	vectors := []any{"decoder.layers.2.self_attention.linear_qkv.layer_norm_weight",
		"decoder.layers.2.self_attention.q_layernorm.weight",
		"decoder.layers.2.mlp.experts.local_experts.1.linear_fc1.bias",
		"decoder.layers.2.mlp.experts.local_experts.1.linear_fc2.bias",
		"decoder.layers.2.mlp.experts.local_experts.10.linear_fc1.bias",
		"decoder.final_layernorm.weight"}
	for _, x := range []struct {
		kinds   []string
		ordered bool
		at      string
	}{
		{[]string{"exp_avg"}, true, "optimizer.param_groups."},
		{[]string{"exp_avg", "fp32", "step"}, true, "optimizer.optimizer.param_groups."},
		{[]string{"exp_avg"}, false, "optimizer.optimizer.param_groups."},
	} {
		c, of := stateCheckpoint(shapes, x.kinds...)
		own, more := stateCheckpoint(
			map[string]int{"decoder.layers.2.mlp.experts.local_experts.10.linear_fc1.bias": 1,
				"decoder.layers.2.mlp.experts.local_experts.1.linear_fc2.bias": 1,
				"decoder.layers.2.mlp.experts.local_experts.1.linear_fc1.bias": 1}, "exp_avg")
		c.Tensors = append(c.Tensors, own.Tensors...)
		for name, v := range more {
			of[name] = v
		}
		if _, err := megatron.RegroupOptimizer(c, of, x.ordered); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]any{"0.param_names": matrices, "1.param_names": vectors,
			"0.weight_decay": 0.1, "1.weight_decay": 0.0, "0.wd_mult": 1.0, "1.wd_mult": 0.0,
			"1.lr":      0.5,
			"0.lr_mult": 1.0, "0.is_expert_parallel": false, "1.is_decoupled_lr": false,
			"0.bias_correction": true} {
			if is, _ := c.Value(x.at + path); !cmp.Equal(is, want) {
				t.Errorf("%v: %s is %v, want %v", x.kinds, path, is, want)
			}
		}
	}
}

// TestRegroupWhole keeps a weight decay that is a whole number, as a file of groups can have it.
func TestRegroupWhole(t *testing.T) {
	const a = "decoder.layers.0.mlp.linear_fc1.weight"
	c, of := stateCheckpoint(map[string]int{a: 2}, "exp_avg")
	of[a] = []format.Value{{Path: "weight_decay", Data: int64(1)}}
	if _, err := megatron.RegroupOptimizer(c, of, true); err != nil {
		t.Fatal(err)
	}
	if is, _ := c.Value("optimizer.param_groups.0.weight_decay"); is != 1.0 {
		t.Errorf("a weight decay of 1 becomes %v", is)
	}
}

// TestRegroupNumbers has a vector of which the optimizer keeps a number too, as torch's NAdam does:
// it has no weight decay.
func TestRegroupNumbers(t *testing.T) {
	const a = "decoder.final_layernorm.weight"
	c, of := stateCheckpoint(map[string]int{a: 1}, "exp_avg")
	c.Tensors = append(c.Tensors,
		format.Tensor{Name: "optimizer.mu_product." + a, DType: tensor.F32})
	if _, err := megatron.RegroupOptimizer(c, of, true); err != nil {
		t.Fatal(err)
	}
	if is, _ := c.Value("optimizer.param_groups.0.wd_mult"); is != 0.0 {
		t.Errorf("the factor of its weight decay is %v", is)
	}
}

// TestRegroupNot refuses what Megatron has no place for, or nobody says.
func TestRegroupNot(t *testing.T) {
	const a, b = "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc2.weight"
	change := func(name, key string, is any) func(map[string][]format.Value) {
		return func(of map[string][]format.Value) {
			of[name] = append(slices.DeleteFunc(of[name], func(v format.Value) bool {
				return v.Path == key
			}), format.Value{Path: key, Data: is})
		}
	}
	for name, x := range map[string]struct {
		change    func(map[string][]format.Value)
		ordered   bool
		err, note string
	}{
		"alike": {func(map[string][]format.Value) {}, true, "",
			"2 parameters have some, and 0, vectors and biases, none"},
		"two rates": {change(a, "lr", 0.25), false,
			`lr of the optimizer is 0.5 for "` + b + `" and 0.25 for "` + a + `"`, ""},
		"more of one": {change(b, "momentum", 0.5), false,
			`momentum of the optimizer is 0.5 for "` + b + `" and <nil>`, ""},
		"one decays not": {change(a, "weight_decay", 0.0), true, "",
			`that was otherwise here, as for "` + a + `"`},
		"nobody says it": {func(of map[string][]format.Value) {
			delete(of, b)
		}, false, `nothing says in which group of the optimizer the parameter "` + b + `" is`, ""},
		"rates and decays": {change(a, "weight_decay", 0.5), true, "", "2 parameters have some"},
	} {
		c, of := stateCheckpoint(map[string]int{a: 2, b: 2}, "exp_avg")
		x.change(of)
		note, err := megatron.RegroupOptimizer(c, of, x.ordered)
		if x.err == "" && (err != nil || !strings.Contains(note, x.note)) ||
			x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: %q, %v", name, note, err)
		}
	}
	odd := map[string]int{a: 2, "decoder.layers.0.self_attention.linear_q_up_proj.weight": 2}
	c, of := stateCheckpoint(odd, "exp_avg")
	if _, err := megatron.RegroupOptimizer(c, of, true); err == nil ||
		!strings.Contains(err.Error(), "shoal does not know; choose torch_dist") {
		t.Error(err)
	}
	c, of = stateCheckpoint(odd, "exp_avg")
	if _, err := megatron.RegroupOptimizer(c, of, false); err != nil {
		t.Error(err)
	}
	if _, said := c.Value("optimizer.optimizer.param_groups.0.param_names"); said {
		t.Error("an order is said that nobody knows")
	}
}
