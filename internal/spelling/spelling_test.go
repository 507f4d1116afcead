package spelling_test

import (
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

// TestMeant checks the question behind a wrong name, and that there is none where nothing is near.
func TestMeant(t *testing.T) {
	for word, want := range map[string]string{"pd": " (did you mean dp?)", "mesh": ""} {
		if got := spelling.Meant(word, []string{"dp", "tp"}); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
