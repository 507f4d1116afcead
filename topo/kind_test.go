package topo_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/topo"
)

// TestKindOf: the name of any device becomes the name of a kind, and that of a kind stays.
func TestKindOf(t *testing.T) {
	for device, want := range map[string]string{
		"NVIDIA H100 80GB HBM3":     "NVIDIA-H100-80GB-HBM3",
		" Tesla V100-SXM2 (16GB)\n": "Tesla-V100-SXM2-16GB",
		"cpu":                       "cpu",
		strings.Repeat("x", 99):     strings.Repeat("x", topo.MaxKind),
	} {
		if got := topo.KindOf(device); got != want || topo.CheckKind(got) != nil {
			t.Errorf("%q is of kind %q: %v; want %q", device, got, topo.CheckKind(got), want)
		}
	}
	for _, name := range []string{"", "a/b", "a b", "a;b", "ä", strings.Repeat("x", 65)} {
		if topo.CheckKind(name) == nil {
			t.Errorf("%q names a kind", name)
		}
	}
}
