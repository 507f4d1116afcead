package megatron_test

// This file tests optimizers under Hugging Face's names that are written for Megatron.
import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/tensor"
)

// TestFold writes models with their optimizers, under the names of Hugging Face, for Megatron, and
// takes them back: parameters that Megatron joins have one place in its groups and one number of
// steps, and the values prove that what goes by position is where it belongs.
func TestFold(t *testing.T) {
	for _, name := range []string{"mixed", "swapped", "half", "frozen", "distributed", "single"} {
		t.Run(name, func(t *testing.T) {
			dir, want := formattest.Load(t, "testdata/"+name+".zip")
			for _, to := range []string{"pp=2,tp=2", "tp=1", "torch_dist"} {
				c, files := mustRead(t, dir)
				model := sampleModel(c)
				if _, _, err := megatron.ToHuggingFace(c, model); err != nil {
					t.Fatal(err)
				}
				renamed, err := megatron.FoldOptimizer(c)
				if err != nil {
					t.Fatal(err)
				}
				if steps := slices.ContainsFunc(c.Tensors, func(x format.Tensor) bool {
					return strings.HasPrefix(x.Name, "optimizer.step.")
				}); steps != (len(renamed) > 0) {
					t.Errorf("renamed is %v", renamed)
				}
				for _, x := range c.Tensors {
					if steps := "optimizer.step.decoder.layers.0.self_attention.linear_qkv.weig" +
						"ht"; x.Name == steps && (renamed[steps] != "optimizer.step.model.layer"+
						"s.0.self_attn.k_proj.weight" || len(x.Replicas) < 2) {
						t.Errorf("%s was %s, with the replicas %v", steps, renamed[steps],
							x.Replicas)
					}
				}
				var again *format.Checkpoint
				if to == "torch_dist" {
					out, err := megatron.LayoutDist(corePreset(t, "", c), c.Tensors, c.Values,
						files.Read)
					if err != nil {
						t.Fatal(err)
					}
					again, files = readDist(t,
						innerFolder(t, formattest.WriteOutput(t, out, c, files)))
				} else {
					out, err := megatron.Layout(corePreset(t, to, c), c.Tensors, c.Values)
					if err != nil {
						t.Fatal(err)
					}
					again, files = mustRead(t, formattest.WritePaddedOutput(t, out, c, files))
				}
				if said := whyUnnamed(again); said != "" {
					t.Fatalf("%s: %s", to, said)
				}
				if _, _, err := megatron.ToHuggingFace(again, model); err != nil {
					t.Fatalf("%s: %v", to, err)
				}
				formattest.Compare(t, files, again, underHuggingNames(t, want))
				if faults, err := formattest.CheckProofs(files, again); err != nil ||
					len(faults) > 0 {
					t.Errorf("%s: %v, %v", to, faults, err)
				}
			}
		})
	}
}

// TestFoldChained writes a model with experts and its optimizer, under the names of Hugging Face,
// for ranks on which experts have an optimizer of their own, and for others: all state is that of
// its parameter when it is read again.
func TestFoldChained(t *testing.T) {
	m := &trained{bias: true}
	// those that have such names
	for seed := uint64(0); m.bias || m.shared || m.grouped || m.alone; seed++ {
		m = drawTrained(rand.New(rand.NewPCG(seed, 1)), 8)
	}
	logical := func(c *format.Checkpoint) {
		model := megatron.ModelOf(c)
		model.Type, model.Vocabulary = "qwen3_moe", megatron.Fact{N: m.vocab, By: "the test"}
		if _, _, err := megatron.ToHuggingFace(c, model); err != nil {
			t.Fatal(err)
		}
	}
	for _, mesh := range []string{"ep=2", "pp=2,ep=2,tp=2", "ep=4", "pp=2,tp=2"} {
		c, files := m.asCheckpoint()
		logical(c)
		want := tensorSums(t, c, files)
		if _, here := want["optimizer.exp_avg.model.layers.3.mlp.experts.2.up_proj.weight"]; !here {
			t.Fatal("state has other names than those of Hugging Face")
		}
		if _, err := megatron.FoldOptimizer(c); err != nil {
			t.Fatal(err)
		}
		spec := corePreset(t, mesh, c)
		if _, err := megatron.ChainOptimizers(c, spec); err != nil {
			t.Fatal(err)
		}
		out, err := megatron.Layout(spec, c.Tensors, c.Values)
		if err != nil {
			t.Fatal(err)
		}
		again, files := mustRead(t, formattest.WritePaddedOutput(t, out, c, files))
		if said := whyUnnamed(again); said != "" {
			t.Fatalf("%s: %s", mesh, said)
		}
		logical(again)
		if diff := cmp.Diff(want, tensorSums(t, again, files)); diff != "" {
			t.Errorf("%s, fingerprints:\n%s", mesh, diff)
		}
	}
}

// TestFoldRefuses says which optimizers under the names of Hugging Face Megatron has no place for.
func TestFoldRefuses(t *testing.T) {
	const q, k, v, o = "model.layers.0.self_attn.q_proj.weight",
		"model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
		"model.layers.0.self_attn.o_proj.weight"
	step := func(param string, d tensor.DType) format.Tensor {
		return format.Tensor{Name: "optimizer.step." + param, DType: d,
			Pieces: []format.Piece{{File: param}}}
	}
	group := func(path string, names ...any) format.Value {
		return format.Value{Path: "optimizer.optimizer.param_groups." + path + ".param_names",
			Data: names}
	}
	for _, x := range []struct {
		name string
		c    format.Checkpoint
		err  string // "" for none
	}{
		{"whole", format.Checkpoint{
			Tensors: []format.Tensor{step(q, tensor.F32), step(k, tensor.F32), step(v, tensor.F32),
				step(o, tensor.F32), step("vision.weight", tensor.F32),
				step("lm_head.weight", tensor.F32)},
			Values: []format.Value{group("0", q, k, o, v, "lm_head.weight", "vision.weight"),
				{Path: "iteration", Data: int64(3)}}}, ""},
		{"a step is missing",
			format.Checkpoint{Tensors: []format.Tensor{step(q, tensor.F32), step(v, tensor.F32)}},
			"optimizer.step: of decoder.layers.0.self_attention.linear_qkv.weight, which has 3 " +
				"parts, there is " + q + ", " + v + " only"},
		{"steps of two types",
			format.Checkpoint{
				Tensors: []format.Tensor{step(q, tensor.F32), step(k, tensor.I64),
					step(v, tensor.F32)}}, "is of f32, and \"optimizer.step." + k +
				"\" of i64; Megatron has one for both"},
		{"unlike values", format.Checkpoint{
			Values: []format.Value{{Path: "optimizer.step." + q, Data: int64(1)},
				{Path: "optimizer.step." + k, Data: int64(2)}}},
			"is 2, and \"optimizer.step." + q + "\" is 1; Megatron has one for both"},
		{"two groups", format.Checkpoint{
			Values: []format.Value{group("0", q, k, v, o), group("1", v)}}, "both have parts of " +
			"decoder.layers.0.self_attention.linear_qkv.weight; Megatron has it in one group"},
		{"another order", format.Checkpoint{
			Values: []format.Value{group("0", "lm_head.weight", q, k, v, o)}}, "param_names\": " +
			"Megatron goes by the order of parameters, and nobody says that this is the one " +
			"that Megatron has"},
		{"another order, of other models",
			format.Checkpoint{Values: []format.Value{group("0", "vision.weight")}}, ""},
		{"half of a group", format.Checkpoint{Values: []format.Value{group("0", q, k)}},
			"param_names: of decoder.layers.0.self_attention.linear_qkv.weight, which has 3 " +
				"parts, there is"},
	} {
		if !strings.HasPrefix(x.name, "another order") {
			setValue(&x.c, "args.tensor_model_parallel_size", int64(2))
		}
		if _, err := megatron.FoldOptimizer(&x.c); (err == nil) != (x.err == "") ||
			err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v; want %q", x.name, err, x.err)
		}
		if x.name != "whole" {
			continue
		}
		if is, _ := x.c.Value("optimizer.optimizer.param_groups.0.param_names"); !slices.Equal(
			is.([]any), []any{"decoder.layers.0.self_attention.linear_qkv.weight",
				"decoder.layers.0.self_attention.linear_proj.weight", "output_layer.weight",
				"vision.weight"}) {
			t.Errorf("the group has %v", is)
		}
		var names []string
		for _, y := range x.c.Tensors {
			names = append(names, y.Name)
		}
		if !slices.Equal(names,
			[]string{"optimizer.step.decoder.layers.0.self_attention.linear_proj.weight",
				"optimizer.step.decoder.layers.0.self_attention.linear_qkv.weight",
				"optimizer.step.output_layer.weight", "optimizer.step.vision.weight"}) {
			t.Errorf("there are %v", names)
		}
	}
}

// TestFoldDense: before experts a norm is a module of its own, and in a layer without them a part
// of what is after it.
func TestFoldDense(t *testing.T) {
	var c format.Checkpoint
	for _, param := range []string{"0.mlp.down_proj", "0.post_attention_layernorm",
		"1.mlp.experts.0.down_proj", "1.post_attention_layernorm"} {
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: "optimizer.step.model.layers." + param + ".weight",
				DType: tensor.F32, Pieces: []format.Piece{{File: param}}})
	}
	if _, err := megatron.FoldOptimizer(&c); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0.mlp.linear_fc1.layer_norm_weight",
		"1.pre_mlp_layernorm.weight"} {
		findTensor(t, &c, "optimizer.step.decoder.layers."+name)
	}
}
