package megatron_test

// This file tests random models with optimizers over random ranks.
import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// drawAxes draws ranks of a model of four layers and four experts.
var drawAxes = rapid.Custom(func(t *rapid.T) axes {
	pick := func(name string) int { return rapid.SampledFrom([]int{1, 2, 4}).Draw(t, name) }
	return axes{pick("tp"), pick("pp"), pick("ep"), pick("chunks")}
}).Filter(func(a axes) bool {
	return a.tp*a.pp*a.ep <= 8 && a.pp*a.chunks <= 4 && (a.pp > 1 || a.chunks == 1)
})

// TestTrainedAnyToAny writes random models with the optimizer's state, and experts, for random
// ranks and from there for others: each rank's file has what Megatron looks for there, the same
// state comes back, and groups say what they said.
func TestTrainedAnyToAny(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawTrained(rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1)), 8)
		path := rapid.SliceOfN(drawAxes, 1, 2).Draw(rt, "path")
		ok := t.Run("", func(t *testing.T) {
			first, files := m.asCheckpoint()
			want := tensorSums(t, first, files)
			values := groupValues(first)
			c := first
			for _, a := range append(path, axes{1, 1, 1, 1}) {
				c, files = m.writeChecked(t, c, files, a)
				if diff := cmp.Diff(want, tensorSums(t, c, files)); diff != "" {
					t.Fatalf("%+v, fingerprints:\n%s", a, diff)
				}
				if faults, err := formattest.CheckProofs(files, c); err != nil || len(faults) > 0 ||
					whyUnnamed(c) != "" {
					t.Fatalf("%+v: %v, %v, %s", a, faults, err, whyUnnamed(c))
				}
			}
			if diff := cmp.Diff(values, groupValues(c)); diff != "" {
				t.Fatal(diff)
			}
		})
		if !ok {
			rt.Fatalf("%+v by way of %+v", m.layers, path)
		}
	})
}

// TestTrainedUneven has stages with unlike numbers of layers, in chunks: the first has two layers
// in each, the other one.
func TestTrainedUneven(t *testing.T) {
	m := drawTrained(rand.New(rand.NewPCG(3, 1)), 8)
	m.layers = 6
	c, files := m.asCheckpoint()
	c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
		return !strings.HasPrefix(x.Name, "model.") || strings.Contains(x.Name, "layer")
	})
	one := tensor.Shape{2, 2}
	for layer := range 6 {
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: fmt.Sprintf("model.decoder.layers.%d.mlp.router.weight", layer),
				DType: tensor.U8, Shape: one,
				Pieces: []format.Piece{{Box: one.Box(), File: "file", Offset: int64(4 * layer)}}})
	}
	for path, is := range map[string]any{"args.num_virtual_stages_per_pipeline_rank": nil,
		"args.account_for_loss_in_pipeline_split": true} {
		setValue(c, path, is)
	}
	var rules []layout.Rule
	for layer, stage := range []int{0, 0, 1, 0, 0, 1} {
		rules = append(rules,
			layout.Rule{Match: fmt.Sprintf("**layers.%d.**", layer),
				Place: fmt.Sprintf("pp=at(%d)", stage)})
	}
	spec := &layout.Spec{Shoal: layout.Version, Mesh: "pp=2",
		Rules: append(rules, layout.Rule{Match: "**"})}
	out, err := megatron.Layout(spec, c.Tensors, c.Values)
	if err != nil {
		t.Fatal(err)
	}
	dir, want := formattest.WritePaddedOutput(t, out, c, files), tensorSums(t, c, files)
	for file, names := range map[string][]string{
		"00_000": {"model0.decoder.layers.0.mlp.router.weight",
			"model0.decoder.layers.1.mlp.router.weight",
			"model1.decoder.layers.0.mlp.router.weight",
			"model1.decoder.layers.1.mlp.router.weight"},
		"00_001": {"model0.decoder.layers.0.mlp.router.weight",
			"model1.decoder.layers.0.mlp.router.weight"},
	} {
		has := fileTensors(t, dir, "iter_0000012/mp_rank_"+file+"/model_optim_rng.pt")
		for _, name := range names {
			if has[name] == "" {
				t.Errorf("%s has no %s", file, name)
			}
		}
	}
	again, files := mustRead(t, dir)
	if diff := cmp.Diff(want, tensorSums(t, again, files)); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]any{
		"args.virtual_pipeline_model_parallel_size":  int64(2),
		"args.num_virtual_stages_per_pipeline_rank":  int64(2),
		"args.num_layers_per_virtual_pipeline_stage": nil,
		"args.decoder_first_pipeline_num_layers":     int64(4),
		"args.decoder_last_pipeline_num_layers":      int64(2),
		"args.account_for_loss_in_pipeline_split":    false,
	} {
		if got, ok := again.Value(path); !ok || got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// groupValues returns the values of a checkpoint that are an optimizer's, by path.
func groupValues(c *format.Checkpoint) map[string]any {
	all := map[string]any{}
	for _, v := range c.Values {
		if strings.HasPrefix(v.Path, "optimizer.") {
			all[v.Path] = v.Data
		}
	}
	return maps.Clone(all)
}
