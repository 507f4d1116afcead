package plural_test

import (
	"testing"

	"github.com/shoal-ml/shoal/internal/plural"
)

// TestPlural checks the forms for 0, 1 and 2.
func TestPlural(t *testing.T) {
	for n, want := range map[int]string{0: "0 values stay", 1: "1 value stays",
		2: "2 values stay"} {
		if got := plural.Of(n, "value") + " " + plural.Verb(n, "stays", "stay"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestBytes checks which unit a size gets, and that it never has more than three digits.
func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1023: "0.999 KiB",
		1536: "1.5 KiB", 3 << 20: "3 MiB", 24 << 30: "24 GiB", 1000 << 30: "0.977 TiB",
		1 << 50: "1 PiB"} {
		if got := plural.Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
