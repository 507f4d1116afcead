package keeper

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A job gets the variables of who submits it, but for those that its hosts decide.
func TestSubmittedEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "XDG_RUNTIME_DIR=/run/user/7", "SHOAL_RANK=3", "_=/x",
		"CUDA_VISIBLE_DEVICES=7", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_HOME=/cuda", "no variable",
		"=C:=C:", "NUL=\x00", "EMPTY="})
	if d := cmp.Diff([]string{"PATH=/bin", "CUDA_HOME=/cuda", "EMPTY="}, got); d != "" {
		t.Error(d)
	}
}
