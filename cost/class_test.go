package cost_test

import (
	"testing"

	"github.com/shoal-ml/shoal/cost"
)

// Lengths that differ by less than an eighth are in the same class.
func TestClassOf(t *testing.T) {
	for bytes, want := range map[int]int{0: 0, 1: 1, 15: 15, 16: 16, 17: 16, 1 << 20: 1 << 20,
		1<<20 + 1<<17 - 1: 1 << 20, 1<<20 + 1<<17: 1<<20 + 1<<17, 1<<20 - 1: 15 << 16} {
		if got := cost.ClassOf(3, bytes); got != (cost.Class{Hosts: 3, Bytes: want}) {
			t.Errorf("%d bytes are in %+v, want %d", bytes, got, want)
		}
	}
}

// A class is described with at most three digits and a unit.
func TestClassText(t *testing.T) {
	for bytes, want := range map[int]string{17: "16 B", 3 << 19: "1.5 MiB", 1 << 30: "1 GiB",
		1023 << 20: "960 MiB"} {
		if got := cost.ClassOf(3, bytes).String(); got != "all-reduces of "+want+" over 3 hosts" {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
}
