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
