package spelling_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// TestNearest checks which name is offered for a wrong one.
func TestNearest(t *testing.T) {
	for _, x := range []struct{ word, want string }{
		{"pd", "dp"}, {"dp", "dp"}, {"dpp", "dp"}, {"wor", "workers"}, {"wrokers", "workers"},
		{"qq", ""}, {"mesh", ""}, {"", "dp"},
	} {
		if got := spelling.Nearest(x.word, []string{"dp", "tp", "pp", "workers"}); got != x.want {
			t.Errorf("%q: %q, want %q", x.word, got, x.want)
		}
	}
}

// TestNearestLong looks for no name near a very long word, which would take memory by the product
// of both lengths, but for one that begins with it.
func TestNearestLong(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, x := range []struct{ word, name, want string }{
		{long + "y", long + "z", ""}, {long, long + "z", long + "z"}, {"dq", long, ""},
	} {
		if got := spelling.Nearest(x.word, []string{x.name}); got != x.want {
			t.Errorf("%d letters, and a name of %d: %.9q", len(x.word), len(x.name), got)
		}
	}
}

// TestMeant checks the question behind a wrong name, and that there is none where nothing is near.
func TestMeant(t *testing.T) {
	for word, want := range map[string]string{"pd": " (did you mean dp?)", "mesh": "", "": ""} {
		if got := spelling.Meant(word, []string{"dp", "tp"}); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
