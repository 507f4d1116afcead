package megatron_test

// This file tests the distributed optimizer that is written, against buffers that are cut here.
import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/tensor"
)

// readStorages returns the elements of the tensors in a file of torch.save, in the order of their
// numbers there. It stops the test if the file is no archive.
func readStorages(t *testing.T, dir fstest.MapFS, file string) (all [][]byte) {
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

// A placed is a parameter of a buffer.
type placed struct {
	elements []byte // of f32
	shared   bool   // whether it is an embedding that another stage has too
}

// savedBuckets returns what Megatron saves of a buffer, for so many data parallel ranks and buckets
// of at least so many elements, or of any number if that is 0. By its rules
// (param_and_grad_buffer.py, get_parameter_state_dp_zero of distrib_optimizer.py) parameters stand
// in a buffer from the last to the first, each from a multiple of 64 elements on; a bucket is
// complete when it has enough, and is filled up to a multiple of the ranks and of 128; a shared
// embedding has one to itself. What fills up buckets is not saved.
func savedBuckets(params []placed, ranks, least int) (buckets [][]byte) {
	up := func(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }
	multiple := 128
	for multiple%ranks != 0 {
		multiple += 128
	}
	var memory []byte
	begin, end := 0, 0 // of the bucket, and of what is in it
	complete := func() {
		buckets = append(buckets,
			append(slices.Clone(memory), make([]byte, 4*end-len(memory))...)[4*begin:4*end])
		begin = up(end, multiple)
		end = begin
	}
	for _, p := range slices.Backward(params) {
		if end = up(end, 64); p.shared && end > begin {
			complete()
		}
		memory = append(memory, make([]byte, 4*end-len(memory))...)
		memory = append(memory, p.elements...)
		if end = len(memory) / 4; p.shared || least > 0 && end-begin >= least {
			complete()
		}
	}
	if end > begin {
		complete()
	}
	return buckets
}

// A flatID is which buffer: of which optimizer, of which of its chunks that have some parameters,
// and of which kind.
type flatID struct {
	optimizer, number int    // both from 0
	kind              string // kind of state
}

// rankBuffers returns the buckets of a rank's distributed optimizers, as a run with so many data
// parallel ranks and such buckets has them, in the order of the file. ranks and least are as
// savedBuckets takes them.
func (m *trained) rankBuffers(a axes, tp, pp, ep, ranks, least int) (ids []flatID, all [][][]byte) {
	for o := range 2 {
		if o == 0 && ep > 0 || o == 1 && a.ep == 1 {
			continue
		}
		for n, chunk := range m.rankChunks(a, tp, pp, ep) {
			for _, kind := range []string{"fp32", "exp_avg", "exp_avg_sq"} {
				var params []placed
				for _, x := range chunk {
					if expert := strings.Contains(x.whole, ".mlp.experts."); a.ep > 1 &&
						expert != (o == 1) {
						continue
					}
					x, shared := x.whole, m.tied && a.pp > 1 && x.whole == m.params[0]
					params = append(params,
						placed{slices.Concat(m.partOf(x, m.whole[kind+" "+x], tp, a.tp).rows...),
							shared})
				}
				ids, all = append(ids, flatID{o, n, kind}),
					append(all, savedBuckets(params, ranks, least))
			}
		}
	}
	return ids, all
}

// checkBuffers compares the buffers in a file with those of runs that load it, of any data parallel
// ranks. A run with smaller buckets has the same, or shorter ones, which Megatron sees. found are
// in the order of rankBuffers. It stops the test at the first that is not as it must be.
func (m *trained) checkBuffers(t *testing.T, found [][]byte, a axes, tp, pp, ep int) {
	t.Helper()
	for _, ranks := range []int{1, 3, 8} {
		for _, least := range []int{0, 1, 100, 1000} {
			_, all := m.rankBuffers(a, tp, pp, ep, ranks, least)
			for i, buckets := range all {
				want := slices.Concat(buckets...)
				switch {
				case len(want) > len(found[i]) || len(want) < len(found[i]) && least == 0:
					t.Fatalf("%+v: buffer %d has %d bytes; with %d ranks and buckets of %d "+
						"elements Megatron's has %d", a, i, len(found[i]), ranks, least, len(want))
				case len(want) == len(found[i]) && !bytes.Equal(want, found[i]):
					t.Fatalf("%+v: buffer %d is another than Megatron's with %d ranks and "+
						"buckets of %d elements", a, i, ranks, least)
				}
			}
		}
	}
}

// writeFlat writes a checkpoint with the distributed optimizer's files for some ranks, compares
// these with what they must have, and reads it again. It stops the test at the first difference,
// gives c the optimizers for these ranks, and does nothing on the disk.
func (m *trained) writeFlat(t *testing.T, c *format.Checkpoint, files *format.Files,
	a axes) (*format.Checkpoint, *format.Files) {
	t.Helper()
	out, err := megatron.LayoutDistributed(a.spec(t, c), c.Tensors, c.Values, files.Read)
	if err != nil {
		t.Fatal(err)
	}
	dir := formattest.WritePaddedOutput(t, out, c, files)
	a.forEachRank(func(folder string, tp, pp, ep int) {
		want := m.rankTensors(a, tp, pp, ep)
		for name := range want {
			if strings.Contains(name, ".state.") ||
				strings.Contains(name, "fp32_from_fp16_params") {
				delete(want, name)
			}
		}
		if diff := cmp.Diff(want, fileTensors(t, dir, folder+"/model_optim_rng.pt")); diff != "" {
			t.Fatalf("%+v, %s:\n%s", a, folder, diff)
		}
		m.checkBuffers(t, readStorages(t, dir, folder+"/distrib_optim.pt"), a, tp, pp, ep)
	})
	again, files := mustRead(t, dir)
	if faults, err := formattest.CheckProofs(files, again); err != nil || len(faults) > 0 ||
		whyUnnamed(again) != "" {
		t.Fatalf("%+v: %v, %v, %s", a, faults, err, whyUnnamed(again))
	}
	return again, files
}

// TestDistributedAnyToAny writes the distributed optimizer's files of random models for random
// ranks, and from there for others.
func TestDistributedAnyToAny(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed, hidden := rapid.Uint64().Draw(rt, "seed"),
			rapid.SampledFrom([]int{8, 12, 64}).Draw(rt, "hidden")
		most := 2
		if hidden == 64 { // they are large
			most = 1
		}
		path := rapid.SliceOfN(drawAxes, 1, most).Draw(rt, "path")
		ok := t.Run("", func(t *testing.T) {
			m := drawTrained(rand.New(rand.NewPCG(seed, 1)), hidden)
			c, files := m.asCheckpoint()
			want := deleteSteps(tensorSums(t, c, files))
			for _, a := range path {
				c, files = m.writeFlat(t, c, files, a)
				if diff := cmp.Diff(want, tensorSums(t, c, files)); diff != "" {
					t.Fatalf("%+v, fingerprints:\n%s", a, diff)
				}
				at := "optimizer.optimizer."
				if a.ep > 1 {
					at = "optimizer.1.optimizer."
				}
				for path, want := range map[string]any{"args.use_distributed_optimizer": true,
					at + "param_groups.0.step": int64(12), at + "param_groups.0.lr": 0.5} {
					if got, _ := c.Value(path); got != want {
						t.Errorf("%+v: %s is %v, want %v", a, path, got, want)
					}
				}
			}
		})
		if !ok {
			rt.Fatalf("seed %d, %d, by way of %+v", seed, hidden, path)
		}
	})
}

// deleteSteps removes the numbers of steps from the sums, and returns these. It changes the map
// that it is given.
func deleteSteps(all map[string]digest.Sum) map[string]digest.Sum {
	for name := range all {
		if strings.HasPrefix(name, "optimizer.step.") {
			delete(all, name)
		}
	}
	return all
}

// TestDistributedRefuses has what does not look the same for all runs that load it, or of which
// shoal does not know where it stands.
func TestDistributedRefuses(t *testing.T) {
	drop := func(c *format.Checkpoint, match func(string) bool) {
		c.Tensors = slices.DeleteFunc(c.Tensors, func(x format.Tensor) bool {
			return match(x.Name)
		})
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
			if names, ok := v.Data.([]any); ok && v.Path == oneGroup+"param_names" {
				c.Values[i].Data = slices.Clone(names)
				change(c.Values[i].Data.([]any))
			}
		}
	}
	for _, x := range []struct {
		name   string
		hidden int
		change func(c *format.Checkpoint)
		err    string
	}{
		{"no optimizer", 64, func(c *format.Checkpoint) {
			drop(c, func(name string) bool { return strings.HasPrefix(name, "optimizer.") })
		}, "there is no optimizer with groups"},
		{"another order", 64, func(c *format.Checkpoint) {
			first(c, func(n []any) {
				i := slices.Index(n, any("decoder.layers.0.self_attention.linear_proj.weight"))
				n[i], n[i+1] = n[i+1], n[i]
			})
		},
			`the optimizer has "decoder.layers.0.self_attention.linear_qkv.weight" before "decoder.layers.0.self_attention.linear_proj.weight"`},
		{"an unknown parameter", 64, func(c *format.Checkpoint) {
			first(c, func(n []any) { n[1] = "decoder.layers.0.mlp.gate.weight" })
		}, `of the parameter "decoder.layers.0.mlp.gate.weight" shoal does not know where`},
		{"no steps", 64, func(c *format.Checkpoint) {
			drop(c, func(name string) bool { return strings.HasPrefix(name, "optimizer.step.") })
		}, "nobody says how many steps"},
		{"one without state", 64, func(c *format.Checkpoint) {
			drop(c, func(name string) bool { return name == "optimizer.exp_avg."+router })
		}, "has no optimizer.exp_avg." + router + " of its shape"},
		{"of two types", 64, func(c *format.Checkpoint) {
			retyped(c, "model."+router, tensor.F16)
		}, "shoal writes buffers for those of one type"},
		{"another kind", 64, func(c *format.Checkpoint) {
			i := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool {
				return x.Name == "optimizer.exp_avg."+router
			})
			more := c.Tensors[i]
			more.Name = "optimizer.max_exp_avg_sq." + router
			c.Tensors = append(c.Tensors, more)
		}, `tensor "optimizer.max_exp_avg_sq.` + router +
			`" is none that Megatron's distributed optimizer keeps`},
	} {
		m := drawTrained(rand.New(rand.NewPCG(5, 1)), x.hidden)
		c, files := m.asCheckpoint()
		if x.change != nil {
			x.change(c)
		}
		_, err := megatron.LayoutDistributed(corePreset(t, "tp=1", c), c.Tensors, c.Values,
			files.Read)
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
}
