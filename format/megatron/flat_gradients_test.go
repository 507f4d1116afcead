package megatron_test

// This file tests flat buffers of gradients whose type nobody states.
import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// gradients says of what type they are.
const gradients = "args.accumulate_allreduce_grads_in_fp32"

// withoutValue returns values without the one at a path.
func withoutValue(values []format.Value, path string) []format.Value {
	return slices.DeleteFunc(slices.Clone(values), func(v format.Value) bool {
		return v.Path == path
	})
}

// TestUnsaidGradients writes the distributed optimizer of models that do not say of what type
// gradients are: buffers are where a run looks for them that is told no more than the type of its
// parameters, and a note says so.
func TestUnsaidGradients(t *testing.T) {
	for _, x := range []struct {
		params, gradients tensor.DType
		note              string
	}{
		{tensor.BF16, tensor.F32,
			"f32 is taken, as with --bf16: for a run with --grad-reduce-in-bf16 too, choose"},
		{tensor.F16, tensor.F16, "f16 is taken, as with --fp16: for a run with " +
			"--accumulate-allreduce-grads-in-fp32 too, choose"},
	} {
		c, files := drawTrained(rand.New(rand.NewPCG(5, 1)), 64).asCheckpoint()
		for i := range c.Tensors {
			if m := &c.Tensors[i]; m.DType == tensor.BF16 {
				m.DType = x.params
			}
		}
		lay := func() *format.Output {
			out, err := megatron.LayoutDistributed(corePreset(t, "tp=1", c), c.Tensors, c.Values,
				files.Read)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if out := lay(); out.Notes != nil {
			t.Errorf("%v: notes %q on what is said", x.params, out.Notes)
		}
		c.Values = withoutValue(c.Values, gradients)
		out := lay()
		if len(out.Notes) != 1 || !strings.Contains(out.Notes[0], x.note) {
			t.Errorf("%v: notes %q, want one with %q", x.params, out.Notes, x.note)
		}
		f, err := torchzip.Open(format.NewFiles(formattest.WritePaddedOutput(t, out, c, files)),
			"iter_0000012/mp_rank_00/distrib_optim.pt", nil)
		if err != nil {
			t.Fatal(err)
		}
		buffers := 0
		for _, buffer := range f.Root.(*pickle.Dict).Items {
			types, ok := buffer.Value.(*pickle.Dict)
			if !ok {
				continue
			}
			buffers++
			for i, want := range []tensor.DType{x.params, x.gradients} {
				if got, err := torchzip.ParseDType(
					types.Items[0].Key.(pickle.Tuple)[i]); got != want ||
					err != nil {
					t.Errorf("%v: type %d of the buffer is %v, want %v (%v)", x.params, i, got,
						want, err)
				}
			}
		}
		if buffers == 0 {
			t.Errorf("%v: no buffers", x.params)
		}
	}
}
