package megatron_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/formattest"
	"github.com/shoal-ml/shoal/state/format/megatron"
	"github.com/shoal-ml/shoal/tensor"
)

// storages are the elements of the tensors in a file of torch.save, in their order there.
func storages(t *testing.T, dir fstest.MapFS, file string) (all [][]byte) {
	t.Helper()
	b := dir[file].Data
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		e, err := z.Open(fmt.Sprintf("archive/data/%d", i))
		if err != nil {
			return all
		}
		data, err := io.ReadAll(e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
	}
}

// buffers are those of a rank's distributed optimizers: parameters from the last to the first, of each chunk, in f32.
func (m *trained) buffers(a axes, tp, pp, ep int) (all [][]byte) {
	for o := range 2 {
		if o == 0 && ep > 0 || o == 1 && a.ep == 1 {
			continue
		}
		for _, chunk := range m.chunks(a, tp, pp, ep) {
			var list [3][]byte
			for _, x := range slices.Backward(chunk) {
				if expert := strings.Contains(x.whole, ".mlp.experts."); a.ep > 1 && expert != (o == 1) {
					continue
				}
				for k, kind := range []string{"fp32", "exp_avg", "exp_avg_sq"} {
					list[k] = append(list[k], slices.Concat(m.part(x.whole, m.whole[kind+" "+x.whole], tp, a.tp).rows...)...)
				}
			}
			all = append(all, list[:]...)
		}
	}
	return all
}

// writeFlat writes a checkpoint with the distributed optimizer's files for some ranks, compares these with what they must have, and reads it again.
func (m *trained) writeFlat(t *testing.T, c *format.Checkpoint, files *format.Files, a axes) (*format.Checkpoint, *format.Files) {
	t.Helper()
	out, err := megatron.LayoutDistributed(a.spec(t, c), c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := formattest.WritePadded(t, out, c, files)
	a.each(func(folder string, tp, pp, ep int) {
		want := m.rank(a, tp, pp, ep)
		for name := range want {
			if strings.Contains(name, ".state.") || strings.Contains(name, "fp32_from_fp16_params") {
				delete(want, name)
			}
		}
		if diff := cmp.Diff(want, tensors(t, dir, folder+"/model_optim_rng.pt")); diff != "" {
			t.Fatalf("%+v, %s:\n%s", a, folder, diff)
		}
		if !cmp.Equal(m.buffers(a, tp, pp, ep), storages(t, dir, folder+"/distrib_optim.pt")) {
			t.Fatalf("%+v, %s: the buffers are others", a, folder)
		}
	})
	again, files := read(t, dir)
	if faults, err := formattest.Prove(files, again); err != nil || len(faults) > 0 || apart(again) != "" {
		t.Fatalf("%+v: %v, %v, %s", a, faults, err, apart(again))
	}
	return again, files
}

// TestDistributedAnyToAny writes the distributed optimizer's files of random models for random ranks, and from there for others.
func TestDistributedAnyToAny(t *testing.T) {
	all := []axes{{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 2, 1, 2}, {2, 2, 2, 1}, {1, 1, 4, 1}, {1, 2, 2, 2}}
	tried := 0
	rapid.Check(t, func(rt *rapid.T) {
		seed, path := rapid.Uint64().Draw(rt, "seed"), rapid.SliceOfN(rapid.SampledFrom(all), 1, 2).Draw(rt, "path")
		if tried++; tried > 3 && !t.Failed() { // they are large
			return
		}
		ok := t.Run("", func(t *testing.T) {
			m := drawTrained(rand.New(rand.NewPCG(seed, 1)), 64)
			c, files := m.source()
			want := withoutSteps(sums(t, c, files))
			for _, a := range path {
				c, files = m.writeFlat(t, c, files, a)
				if diff := cmp.Diff(want, sums(t, c, files)); diff != "" {
					t.Fatalf("%+v, fingerprints:\n%s", a, diff)
				}
				at := "optimizer.optimizer."
				if a.ep > 1 {
					at = "optimizer.1.optimizer."
				}
				for path, want := range map[string]any{"args.use_distributed_optimizer": true, at + "param_groups.0.step": int64(12), at + "param_groups.0.lr": 0.5} {
					if got, _ := c.Value(path); got != want {
						t.Errorf("%+v: %s is %v, want %v", a, path, got, want)
					}
				}
			}
		})
		if !ok {
			rt.Fatalf("seed %d by way of %+v", seed, path)
		}
	})
}

func withoutSteps(all map[string]digest.Sum) map[string]digest.Sum {
	for name := range all {
		if strings.HasPrefix(name, "optimizer.step.") {
			delete(all, name)
		}
	}
	return all
}

// TestDistributedRefuses has what does not look the same for all runs that load it, or of which shoal does not know where it stands.
func TestDistributedRefuses(t *testing.T) {
	drop := func(c *format.Checkpoint, match func(string) bool) {
		c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool { return match(x.Name) })
	}
	unsaid := func(c *format.Checkpoint, path string) {
		c.Values = slices.DeleteFunc(c.Values, func(v format.Value) bool { return v.Path == path })
	}
	retyped := func(c *format.Checkpoint, name string, d tensor.DType) {
		for i := range c.Tensors {
			if c.Tensors[i].Name == name {
				c.Tensors[i].DType = d
			}
		}
	}
	first := func(c *format.Checkpoint, change func(names []any)) {
		for i, v := range c.Values {
			if names, ok := v.Is.([]any); ok && v.Path == oneGroup+"param_names" {
				c.Values[i].Is = slices.Clone(names)
				change(c.Values[i].Is.([]any))
			}
		}
	}
	for _, x := range []struct {
		name   string
		hidden int
		change func(c *format.Checkpoint)
		err    string
	}{
		{"buckets matter", 8, nil, "which is no multiple of 64: where the next one stands in the distributed optimizer's buffer depends on the buckets of the run that loads it"},
		{"no optimizer", 64, func(c *format.Checkpoint) {
			drop(c, func(name string) bool { return strings.HasPrefix(name, "optimizer.") })
		}, "there is no optimizer with groups"},
		{"another order", 64, func(c *format.Checkpoint) { first(c, func(n []any) { n[1], n[2] = n[2], n[1] }) }, `the optimizer has "decoder.layers.0.self_attention.linear_qkv.weight" before "decoder.layers.0.self_attention.linear_proj.weight"`},
		{"an unknown parameter", 64, func(c *format.Checkpoint) { first(c, func(n []any) { n[1] = "decoder.layers.0.mlp.gate.weight" }) }, `of the parameter "decoder.layers.0.mlp.gate.weight" shoal does not know where`},
		{"no steps", 64, func(c *format.Checkpoint) {
			drop(c, func(name string) bool { return strings.HasPrefix(name, "optimizer.step.") })
		}, "nobody says how many steps"},
		{"gradients", 64, func(c *format.Checkpoint) { unsaid(c, "args.accumulate_allreduce_grads_in_fp32") }, "there is no value args.accumulate_allreduce_grads_in_fp32"},
		{"one without state", 64, func(c *format.Checkpoint) {
			drop(c, func(name string) bool { return name == "optimizer.exp_avg."+router })
		}, "has no optimizer.exp_avg." + router + " of its shape"},
		{"of two types", 64, func(c *format.Checkpoint) { retyped(c, "model."+router, tensor.F16) }, "shoal writes buffers for those of one type"},
		{"another kind", 64, func(c *format.Checkpoint) {
			i := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool { return x.Name == "optimizer.exp_avg."+router })
			more := c.Tensors[i]
			more.Name = "optimizer.max_exp_avg_sq." + router
			c.Tensors = append(c.Tensors, more)
		}, `tensor "optimizer.max_exp_avg_sq.` + router + `" is none that Megatron's distributed optimizer keeps`},
	} {
		m := drawTrained(rand.New(rand.NewPCG(5, 1)), x.hidden)
		c, files := m.source()
		if x.change != nil {
			x.change(c)
		}
		_, err := megatron.LayoutDistributed(preset(t, "tp=1", c), c.Tensors, c.Values, files.Read)
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
}

// TestMegatronCoreBuffers asks Megatron-Core where it puts the parameters of a model of its own, in buckets of several sizes: there the buffers that are written have them too.
func TestMegatronCoreBuffers(t *testing.T) {
	python := formattest.Python(t, "megatron/core")
	text, err := exec.Command(python, "-W", "ignore", "testdata/buffers.py").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	var theirs []struct {
		Buckets, Elements int
		Places            map[string][2]json.RawMessage
	}
	if err := json.Unmarshal(text, &theirs); err != nil || len(theirs) != 3 {
		t.Fatalf("%v: %s", err, text)
	}
	c, groups := &format.Checkpoint{}, [2][]any{}
	want := map[string]int64{}
	for name, place := range theirs[0].Places {
		var s tensor.Shape
		var at int64
		if err := errors.Join(json.Unmarshal(place[0], &s), json.Unmarshal(place[1], &at)); err != nil {
			t.Fatal(err)
		}
		want[name] = at
		for kind, d := range map[string]tensor.DType{"model.": tensor.BF16, "optimizer.fp32.": tensor.F32, "optimizer.exp_avg.": tensor.F32, "optimizer.exp_avg_sq.": tensor.F32} {
			c.Tensors = append(c.Tensors, format.Tensor{Name: kind + name, DType: d, Shape: s, Pieces: []format.Piece{{Box: s.Box(), File: "zeros"}}})
		}
		groups[2-len(s)] = append(groups[2-len(s)], name)
	}
	for i, names := range groups { // as Megatron numbers them: from the last in the buffer to the first
		slices.SortFunc(names, func(a, b any) int { return int(want[b.(string)] - want[a.(string)]) })
		says(c, fmt.Sprintf("optimizer.optimizer.param_groups.%d.param_names", i), names)
		says(c, fmt.Sprintf("optimizer.optimizer.param_groups.%d.step", i), int64(1))
	}
	says(c, "args.accumulate_allreduce_grads_in_fp32", true)
	out, err := megatron.LayoutDistributed(preset(t, "", c), c.Tensors, c.Values, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := int64(math.MaxInt64) // where the buffer is in the file
	ours := map[string]int64{}
	for _, x := range out.Tensors {
		if name, ok := strings.CutPrefix(x.Name, "optimizer.fp32."); ok {
			ours[name] = x.Pieces[0].Offset
			first = min(first, x.Pieces[0].Offset)
		}
	}
	for name := range ours {
		ours[name] = (ours[name] - first) / 4
	}
	if diff := cmp.Diff(want, ours); diff != "" {
		t.Error(diff)
	}
	for _, x := range theirs[1:] {
		if x.Buckets < 2 || x.Elements != theirs[0].Elements || !cmp.Equal(x.Places, theirs[0].Places) {
			t.Errorf("in %d buckets they are elsewhere", x.Buckets)
		}
	}
}
