package checkpoint

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format"
)

// TestCheckComplete has outputs with all tensors, one that is implied, and one that is nowhere.
func TestCheckComplete(t *testing.T) {
	c := &Checkpoint{Checkpoint: &format.Checkpoint{
		Tensors: []format.Tensor{{Name: "a"}, {Name: "b"}, {Name: "optimizer.step.a"}}}}
	out := &format.Output{Checkpoint: format.Checkpoint{Tensors: []format.Tensor{{Name: "a"}}}}
	if err := c.checkComplete(out); err == nil ||
		!strings.Contains(err.Error(), `no place for tensor "b"`) {
		t.Error(err)
	}
	out.Implied = []*format.Proof{{Model: format.Tensor{Name: "b"}}}
	if err := c.checkComplete(out); err != nil {
		t.Error(err)
	}
}
