package megatron

// This file tests torch_dist without the pieces of a tensor.
import (
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// TestDistWithoutPieces: a tensor of which no piece is there stays, so that Check tells of it.
func TestDistWithoutPieces(t *testing.T) {
	for _, name := range []string{
		"decoder.layers.a", "decoder.layers.mlp.experts.experts.a",
		"optimizer.state.exp_avg.decoder.layers.a", "optimizer.state.fp32_param.decoder.layers.a",
		"optimizer.state.param.decoder.layers.a",
	} {
		x := format.Tensor{Name: name, DType: tensor.U8, Shape: tensor.Shape{2, 2, 3}}
		c := format.Checkpoint{Tensors: splitTensors([]format.Tensor{x})}
		if len(c.Tensors) != 1 || c.Tensors[0].Name != name ||
			len(c.Check(format.NewFiles(nil))) == 0 {
			t.Errorf("%s: %v are left, and no fault is found", name, c.Tensors)
		}
	}
}
