package layout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/tensor"
)

// decoderTensors returns a tiny model of so many layers, and experts in each (0 = none), under the
// names of Hugging Face, with the state of Adam, which counts steps for all parameters, and for
// each.
func decoderTensors(layers, experts int) (tensors []layout.Tensor) {
	for _, state := range []string{"", "optimizer.exp_avg.", "optimizer.exp_avg_sq.",
		"optimizer.steps."} {
		add := func(name string, shape ...int) {
			if state == "optimizer.steps." {
				shape = nil
			}
			tensors = append(tensors,
				layout.Tensor{Name: state + name, DType: tensor.F32, Shape: shape})
		}
		add("model.embed_tokens.weight", 10, 8)
		for l := range layers {
			p := fmt.Sprintf("model.layers.%d.", l)
			add(p+"input_layernorm.weight", 8)
			add(p+"self_attn.q_proj.weight", 16, 8)
			add(p+"self_attn.k_proj.weight", 8, 8)
			add(p+"self_attn.v_proj.weight", 8, 8)
			add(p+"self_attn.q_proj.bias", 16)
			add(p+"self_attn.k_proj.bias", 8)
			add(p+"self_attn.v_proj.bias", 8)
			add(p+"self_attn.o_proj.weight", 8, 16)
			add(p+"post_attention_layernorm.weight", 8)
			mlp := []string{"mlp."}
			for e := range experts {
				if e == 0 {
					mlp = nil
					add(p+"mlp.gate.weight", experts, 8)
				}
				mlp = append(mlp, fmt.Sprintf("mlp.experts.%d.", e))
			}
			for _, m := range mlp {
				add(p+m+"gate_proj.weight", 12, 8)
				add(p+m+"up_proj.weight", 12, 8)
				add(p+m+"down_proj.weight", 8, 12)
			}
		}
		add("model.norm.weight", 8)
		add("lm_head.weight", 10, 8)
	}
	return append(tensors, layout.Tensor{Name: "optimizer.step", DType: tensor.I64})
}

// TestPresets resolves each preset and compares the memory of every rank with the oracle.
func TestPresets(t *testing.T) {
	for _, c := range []struct {
		name, mesh string
		experts    int
		rank       int
		want       []string // some of what the rank has
	}{
		{"hf", "", 0, 0, []string{"model.layers.1.self_attn.q_proj.weight [16,8]",
			"optimizer.step []"}},
		{"fsdp2", "dp=3", 0, 2,
			[]string{"model.layers.1.self_attn.q_proj.weight [4,8]", "optimizer.step []",
				"model.norm.weight [2]"}},
		{"zero1", "dp=3", 0, 2,
			[]string{"model.layers.1.self_attn.q_proj.weight [16,8]", "optimizer.exp_avg [536]",
				"optimizer.step []"}},
		{"zero2", "dp=2", 0, 1, []string{"optimizer.exp_avg_sq [804]"}},
		{"zero3", "dp=3", 0, 1,
			[]string{"model.layers.1.self_attn.q_proj.weight [43]",
				"optimizer.exp_avg.model.norm.weight [3]"}},
		{"megatron-core", "pp=2,dp=2,tp=2", 0, 7,
			[]string{"decoder.layers.1.self_attention.linear_qkv.weight [16,8]",
				"decoder.layers.1.self_attention.linear_qkv.bias [16]",
				"decoder.layers.1.mlp.linear_fc1.weight [12,8]",
				"decoder.layers.1.mlp.linear_fc2.weight [8,6]", "output_layer.weight [128,8]",
				"decoder.final_layernorm.weight [8]",
				"optimizer.steps.model.layers.0.self_attn.q_proj.weight []", "optimizer.step []"}},
		{"hf", "dp=2,cp=2,tp=1", 0, 3, []string{"model.layers.1.self_attn.q_proj.weight [16,8]"}},
		// without experts ep is one more axis of replicas
		{"megatron-core", "pp=2,cp=2,ep=2", 0, 7,
			[]string{"decoder.layers.1.mlp.linear_fc1.weight [24,8]"}},
		{"megatron-core+zero1", "pp=2,dp=2,tp=2", 0, 0,
			[]string{"embedding.word_embeddings.weight [128,8]", "optimizer.exp_avg [696]"}},
		{"megatron-core+zero1", "pp=2,ep=2,dp=2", 4, 2,
			[]string{"decoder.layers.0.mlp.experts.2.linear_fc1.weight [24,8]",
				"decoder.layers.0.mlp.router.weight [4,8]",
				"decoder.layers.0.pre_mlp_layernorm.weight [8]"}},
		{"megatron-core+fsdp2", "dp=2,tp=2", 0, 3,
			[]string{"decoder.layers.0.self_attention.linear_proj.weight [4,8]"}},
	} {
		t.Run(c.name+" "+c.mesh, func(t *testing.T) {
			_, l := resolvePreset(t, c.name, c.mesh, decoderTensors(2, c.experts))
			checkHeld(t, l, c.rank, c.want)
		})
	}
}

// TestPresetsByName has the layers in the order of their names, as files have them, in which layer
// 10 comes before layer 2: they are counted all the same.
func TestPresetsByName(t *testing.T) {
	tensors := decoderTensors(12, 0)
	layer := func(x layout.Tensor) string {
		_, rest, _ := strings.Cut(x.Name, "layers.")
		number, _, _ := strings.Cut(rest, ".")
		return number
	}
	slices.SortStableFunc(tensors, func(a, b layout.Tensor) int {
		return strings.Compare(layer(a), layer(b))
	})
	_, l := resolvePreset(t, "megatron-core", "pp=3", tensors)
	checkHeld(t, l, 2, []string{"decoder.layers.8.mlp.linear_fc1.weight [24,8]",
		"decoder.layers.11.mlp.linear_fc1.weight [24,8]"})
}

// TestPresetsOfScalars has a parameter without a dimension beside others: it and its state are on
// every rank, and the state of the others is cut.
func TestPresetsOfScalars(t *testing.T) {
	var tensors []layout.Tensor
	for _, state := range []string{"", "optimizer.exp_avg."} {
		tensors = append(tensors,
			layout.Tensor{Name: state + "w", DType: tensor.F32, Shape: tensor.Shape{4, 2}},
			layout.Tensor{Name: state + "scale", DType: tensor.F32})
	}
	_, l := resolvePreset(t, "fsdp2", "dp=2", tensors)
	checkHeld(t, l, 1, []string{"w [2,2]", "scale []", "optimizer.exp_avg.w [2,2]",
		"optimizer.exp_avg.scale []"})
}

// resolvePreset resolves a preset for a model with 2 heads of k and v, and returns the spec and the
// layout. It fails the test where the memory of a rank is not what the oracle says.
func resolvePreset(t *testing.T, preset, mesh string, tensors []layout.Tensor) (*layout.Spec,
	*layout.Layout) {
	t.Helper()
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := layout.Preset(preset, m, tensors, 2)
	if err != nil {
		t.Fatal(err)
	}
	l, err := spec.Resolve(tensors)
	if err != nil {
		t.Fatal(err)
	}
	for rank, want := range layouttest.ExpectedArrays(spec, tensors) {
		got := map[string]layouttest.Array{}
		for _, local := range l.RankLocals(rank) {
			got[local.Name] = fillLocal(t, tensors, local)
		}
		if diff := cmp.Diff(want, got, sameEmpty); diff != "" {
			t.Fatalf("rank %d (-want +got):\n%s", rank, diff)
		}
	}
	return spec, l
}

// checkHeld reports by Errorf which of some local tensors, given as "name [shape]", a rank does not
// hold; it may hold more.
func checkHeld(t *testing.T, l *layout.Layout, rank int, all []string) {
	t.Helper()
	var has []string
	for _, local := range l.RankLocals(rank) {
		has = append(has, local.Name+" "+local.Shape.String())
	}
	for _, want := range all {
		if !slices.Contains(has, want) {
			t.Errorf("rank %d lacks %q; it has %s", rank, want, strings.Join(has, "; "))
		}
	}
}

// megatronTensors returns a tiny model under the names of Megatron, with the state of an optimizer:
// gate is 2 for a model with a gate, else 1, and experts their number in each layer; 0 = none.
func megatronTensors(gate, experts int) (tensors []layout.Tensor) {
	for _, state := range []string{"model.", "optimizer.exp_avg."} {
		add := func(name string, shape ...int) {
			tensors = append(tensors,
				layout.Tensor{Name: state + name, DType: tensor.F32, Shape: shape})
		}
		add("embedding.word_embeddings.weight", 10, 8)
		for l := range 2 {
			p := fmt.Sprintf("decoder.layers.%d.", l)
			add(p+"self_attention.linear_qkv.weight", 16, 8)
			add(p+"self_attention.linear_qkv.layer_norm_weight", 8)
			add(p+"self_attention.linear_proj.weight", 8, 8)
			mlp := []string{"mlp."}
			for e := range experts {
				mlp = append(mlp, fmt.Sprintf("mlp.experts.local_experts.%d.", e))
			}
			for _, m := range mlp[min(experts, 1):] {
				add(p+m+"linear_fc1.weight", gate*6, 8)
				add(p+m+"linear_fc1.bias", gate*6)
				add(p+m+"linear_fc2.weight", 8, 6)
				add(p+m+"linear_fc2.bias", 8)
			}
		}
		add("decoder.final_layernorm.weight", 8)
	}
	return append(tensors,
		layout.Tensor{Name: "optimizer.step.embedding.word_embeddings.weight", DType: tensor.F32})
}

// TestMegatronNames cuts what has Megatron's names already.
func TestMegatronNames(t *testing.T) {
	for _, c := range []struct {
		mesh          string
		gate, experts int
		rank          int
		want          []string
	}{
		{"pp=2,tp=2", 2, 0, 3,
			[]string{"model.decoder.layers.1.self_attention.linear_qkv.weight [8,8]",
				"model.decoder.layers.1.mlp.linear_fc1.weight [6,8]",
				"model.decoder.layers.1.mlp.linear_fc1.bias [6]",
				"model.decoder.layers.1.mlp.linear_fc2.weight [8,3]",
				"model.decoder.layers.1.mlp.linear_fc2.bias [8]",
				"model.embedding.word_embeddings.weight [5,8]",
				"optimizer.exp_avg.decoder.layers.1.mlp.linear_fc1.weight [6,8]",
				"optimizer.step.embedding.word_embeddings.weight []",
				"model.decoder.final_layernorm.weight [8]"}},
		{"tp=2", 1, 0, 1, []string{"model.decoder.layers.0.mlp.linear_fc1.weight [3,8]",
			"model.decoder.layers.0.self_attention.linear_proj.weight [8,4]"}},
		{"pp=2,ep=2", 2, 4, 3,
			[]string{"model.decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight [12,8]",
				"model.decoder.layers.1.mlp.experts.local_experts.2.linear_fc2.bias [8]"}},
	} {
		spec, l := resolvePreset(t, "megatron-core", c.mesh, megatronTensors(c.gate, c.experts))
		checkHeld(t, l, c.rank, c.want)
		if strings.Contains(c.mesh, "tp") &&
			strings.Contains(fmt.Sprint(spec.Rules), "blocks=2") != (c.gate == 2) {
			t.Errorf("with %d blocks: %v", c.gate, spec.Rules)
		}
	}
}

// TestRefusedPresets says which meshes and models presets do not support.
func TestRefusedPresets(t *testing.T) {
	dp, tp, none := layout.Mesh{{Name: "dp", Size: 2}}, layout.Mesh{{Name: "tp", Size: 2}},
		layout.Mesh{}
	odd := layout.Mesh{{Name: "dp", Size: 2}, {Name: "xx", Size: 2}}
	for _, c := range []struct {
		name    string
		mesh    layout.Mesh
		tensors []layout.Tensor
		kvHeads int
		err     string
	}{
		{"horovod", dp, small, 1, `no preset "horovod"`},
		{"zero1+hf", dp, small, 1, `no preset "hf" here`},
		{"zero1+zero1", dp, small, 1, "zero1 comes twice"},
		{"fsdp2", none, small, 1, "no axis dp"},
		{"zero1", none, small, 1, "no axis dp"},
		{"megatron-core", dp, small, 1,
			"no tensor is called **model.layers.#.**, as Hugging Face names a decoder, or " +
				"**decoder.layers.#.self_attention.linear_qkv.weight, as Megatron Core does; " +
				"rename the tensors, or choose another preset or a layout of your own"},
		{"megatron-core", dp, decoderTensors(2, 0), 3, "not for 3 heads"},
		{"megatron-core", tp, megatronTensors(2, 0), 1,
			"1 heads of k and v do not come out even over tp=2"},
		{"hf", tp, small, 1,
			"mesh tp=2: the layout has no axis tp, only dp, cp"},
		{"fsdp2", odd, small, 1, "mesh dp=2,xx=2: the layout has no axis xx, only dp, cp; all 2 " +
			"places on it would have the same"},
		{"megatron-core+zero1", odd, decoderTensors(2, 0), 2,
			"the layout has no axis xx, only dp, cp, tp, pp, ep;"},
		{"megatron-core", tp, megatronTensors(3, 0), 2, "has 18 rows, and there is no " +
			"model.decoder.layers.0.mlp.linear_fc2.weight with as many columns, or half as many"},
	} {
		if _, err := layout.Preset(c.name, c.mesh, c.tensors, c.kvHeads); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.err)
		}
	}
}
