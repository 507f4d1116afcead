package checkpoint

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// TestModelAlone has the layouts in which people save models, and what is left of their names.
func TestModelAlone(t *testing.T) {
	for _, c := range []struct{ kind, tensors, values, want, note string }{
		{"torch", "state_dict.model.w optimizer_states.0.state.0.exp_avg",
			"pytorch-lightning_version epoch", "model.w", "of Lightning"},
		{"torch", "model_state_dict.w optimizer_state_dict.state.0.exp_avg", "epoch", "w",
			"of a training script"},
		{"torch", "state_dict.module.w state_dict.module.b", "arch best_acc1", "b w", "DDP"},
		{"torch", "state_dict._orig_mod.module.w", "", "w", "torch.compile"},
		{"torch", "module._orig_mod.w", "", "w", `"_orig_mod."`},
		{"torch", "model.w model_ema.w optimizer.state.0.step", "", "w", "of a training script"},
		{"torch", "net.w net.b", "epoch", "b w", "of a training script"},
		// These have no wrapper, or none that is known.
		{"torch", "model.layers.0.w lm_head.w", "", "lm_head.w model.layers.0.w", ""},
		{"torch", "model.w", "", "model.w", ""},
		{"torch flat", "model.w optimizer.w", "", "model.w optimizer.w", ""},
		{"torch", "module.w head.w", "", "head.w module.w", ""},
		{"safetensors", "module.w", "", "module.w", ""},
		{"torch DCP", "model.w optimizer.w", "epoch", "model.w optimizer.w", ""},
		{"job", "model/0.weight optimizer/state/0/exp_avg", "job/step", "0.weight", "of a job"},
		{"job", "weights/w", "job/step", "weights/w", ""},
	} {
		kind, flat := strings.CutSuffix(c.kind, " flat")
		x := &Checkpoint{renamed: map[string]string{},
			Checkpoint: &format.Checkpoint{Format: kind, Nested: !flat}}
		if kind == "job" {
			x.job = &snapshot.State{}
		}
		for _, name := range strings.Fields(c.tensors) {
			x.Tensors = append(x.Tensors,
				format.Tensor{Name: name, DType: tensor.F32, Shape: tensor.Shape{1}})
		}
		for _, path := range strings.Fields(c.values) {
			x.Values = append(x.Values, format.Value{Path: path})
		}
		notes, err := x.ModelAlone()
		if err != nil {
			t.Fatalf("%s: %v", c.tensors, err)
		}
		var names []string
		for _, y := range x.Tensors {
			names = append(names, y.Name)
		}
		if got := strings.Join(names, " "); got != c.want && c.note != "" ||
			c.note == "" && len(notes) > 0 || !strings.Contains(strings.Join(notes, "\n"), c.note) {
			t.Errorf("%s: %s, %q; want %s, %q", c.tensors, got, notes, c.want, c.note)
		}
	}
}

// TestPlaceholders has an empty array of floats in a checkpoint of torch, where it is suspicious,
// and in one of a job, which has what was registered.
func TestPlaceholders(t *testing.T) {
	c := &Checkpoint{Checkpoint: &format.Checkpoint{
		Tensors: []format.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{0}},
			{Name: "n", DType: tensor.I64, Shape: tensor.Shape{0}},
			{Name: "m", DType: tensor.F32, Shape: tensor.Shape{0, 3}}}}}
	if names := c.Placeholders(); !slices.Equal(names, []string{"w"}) {
		t.Errorf("%q", names)
	}
	c.Job = true
	if names := c.Placeholders(); names != nil {
		t.Errorf("of a job: %q", names)
	}
}
