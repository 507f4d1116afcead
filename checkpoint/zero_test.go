package checkpoint

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/state/layout"
)

// TestZeroProves writes no checkpoint of stage 3 when the model, which is left out, is not what
// DeepSpeed would make of the master weights.
func TestZeroProves(t *testing.T) {
	for _, swapped := range []bool{false, true} {
		dir, _ := formattest.Load(t, "../format/deepspeed/testdata/zero2.zip")
		folder := t.TempDir()
		if err := os.CopyFS(folder, dir); err != nil {
			t.Fatal(err)
		}
		c, err := Open(folder)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if swapped {
			for i := range c.Tensors {
				if c.Tensors[i].Name == "module.0.bias" { // its neighbour's bytes
					for k := range c.Tensors {
						if c.Tensors[k].Name == "module.2.bias" {
							c.Tensors[i].Pieces = c.Tensors[k].Pieces
						}
					}
				}
			}
		}
		spec, err := layout.Preset("zero3", layout.Mesh{{Name: "dp", Size: 2}},
			Catalogue(c.Checkpoint), 0)
		if err != nil {
			t.Fatal(err)
		}
		out, lost, err := c.Output(TargetFormat{Format: "zero3", Spec: spec})
		if err != nil || lost > 4 || len(out.Implied) != 4 {
			t.Fatalf("%d values are lost, %d tensors implied: %v", lost, len(out.Implied), err)
		}
		to := filepath.Join(t.TempDir(), "to")
		_, err = Move(context.Background(), c, out, to, Options{})
		if !swapped && err != nil || swapped &&
			(err == nil || !strings.Contains(err.Error(), `and "module.0.bias" has`)) {
			t.Errorf("swapped %v: %v", swapped, err)
		}
		if _, there := os.Stat(to); (there == nil) == swapped {
			t.Errorf("swapped %v: the output: %v", swapped, there)
		}
	}
}
