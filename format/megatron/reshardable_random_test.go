package megatron_test

// This file tests buffers of dp_reshardable that are made here.
import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/tensor"
)

var expertNumber = regexp.MustCompile(`experts\.(linear_fc\d\.(?:weight|bias))(\d+)$`)

// distName returns what torch_dist calls a parameter: norms as parts of the products after them,
// and experts one by one.
func (m *trained) distName(name string) string {
	if m.alone {
		name = strings.NewReplacer("input_layernorm.", "self_attention.linear_qkv.layer_norm_",
			"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_").Replace(name)
	}
	return expertNumber.ReplaceAllString(name, "experts.local_experts.$2.$1")
}

// inBuckets returns the model with the buffers of its optimizers, over some ranks, as pieces of
// random sizes.
func (m *trained) inBuckets(r *rand.Rand, a axes, ranks, least int) (*format.Checkpoint,
	*format.Files) {
	c, data := &format.Checkpoint{}, []byte{}
	for _, name := range m.params {
		x := m.whole[name]
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: "model." + m.distName(name), DType: x.dtype, Shape: x.shape,
				Pieces: []format.Piece{
					{Box: x.shape.Box(), File: "file", Offset: int64(len(data))}}})
		data = append(data, slices.Concat(x.rows...)...)
	}
	a.forEachRank(func(_ string, tp, pp, ep int) {
		ids, all := m.rankBuffers(a, tp, pp, ep, ranks, least)
		for i, id := range ids {
			prefix, rank := "", pp*a.tp+tp
			if a.ep > 1 {
				prefix = fmt.Sprintf("chained_%d.", id.optimizer)
			}
			if id.optimizer == 1 {
				rank = (pp*a.ep+ep)*a.tp + tp
			}
			for b, bucket := range all[i] {
				kind := strings.Replace(id.kind, "fp32", "param", 1)
				t := format.Tensor{
					Name: fmt.Sprintf(
						"%soptimizer.distributed.dp_group_idx_%d.gbuf_idx_%d.dtype_(torch.bfloa"+
							"t16, torch.float32).bucket_idx_%d.%s", prefix, rank, id.number, b,
						kind), DType: tensor.F32, Shape: tensor.Shape{len(bucket) / 4}}
				for at := 0; at < t.Shape[0]; {
					to := min(at+1+r.IntN(t.Shape[0]), t.Shape[0])
					data = append(data, make([]byte, 4*r.IntN(3))...) // somewhere
					t.Pieces = append(t.Pieces,
						format.Piece{Box: tensor.Box{{From: at, To: to}}, File: "file",
							Offset: int64(len(data))})
					data = append(data, bucket[4*at:4*to]...)
					at = to
				}
				r.Shuffle(len(t.Pieces), func(i, j int) {
					t.Pieces[i], t.Pieces[j] = t.Pieces[j], t.Pieces[i]
				})
				c.Tensors = append(c.Tensors, t)
			}
		}
	})
	for path, is := range map[string]any{"tensor_model_parallel_size": int64(a.tp),
		"pipeline_model_parallel_size": int64(a.pp), "expert_model_parallel_size": int64(a.ep),
		"num_attention_heads": int64(4)} {
		setValue(c, "args."+path, is)
	}
	if a.chunks > 1 {
		setValue(c, "args.virtual_pipeline_model_parallel_size", int64(a.chunks))
	}
	if err := c.Finish(); err != nil {
		panic(err)
	}
	return c, format.NewFiles(fstest.MapFS{"file": {Data: data}})
}

// TestReshardableRandom finds the parameters of random models in the buffers of random ranks, as
// Megatron's rules put them there.
func TestReshardableRandom(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed, hidden, a := rapid.Uint64().Draw(rt, "seed"),
			rapid.SampledFrom([]int{8, 12}).Draw(rt, "hidden"), drawAxes.Draw(rt, "axes")
		ranks, least := rapid.IntRange(1, 8).Draw(rt, "ranks"),
			rapid.SampledFrom([]int{0, 1, 100, 1000}).Draw(rt, "least")
		r := rand.New(rand.NewPCG(seed, 1))
		m := drawTrained(r, hidden)
		c, files := m.inBuckets(r, a, ranks, least)
		if err := megatron.Unbucket(files, c); err != nil {
			rt.Fatal(err)
		}
		want, got := map[string]string{}, map[string]string{}
		for _, name := range m.params {
			want["model."+m.distName(name)] = string(slices.Concat(m.whole[name].rows...))
			for _, kind := range []string{"fp32", "exp_avg", "exp_avg_sq"} {
				want["optimizer."+kind+"."+
					m.distName(name)] = string(slices.Concat(m.whole[kind+" "+name].rows...))
			}
		}
		for i := range c.Tensors {
			x := &c.Tensors[i]
			got[x.Name] = string(formattest.ReadTensor(t, files, x))
			if x.WhyPart != "" {
				rt.Fatalf("%+v: %s stays: %s", a, x.Name, x.WhyPart)
			}
		}
		if !maps.Equal(want, got) {
			rt.Fatalf("%+v: %s", a,
				cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))))
		}
		if faults, err := formattest.CheckProofs(files, c); err != nil ||
			len(faults)+len(c.Check(files)) > 0 {
			rt.Fatalf("%+v: %v, %v, %v", a, faults, c.Check(files), err)
		}
	})
}
