package cli

import (
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
)

// TestPredictionText checks that what a prediction is made of is in it.
func TestPredictionText(t *testing.T) {
	links, none := 4.3321, 0.0
	for want, p := range map[string]api.Plan{
		"4.42s: 4.33s on links, 92.35ms in memory, for 7 bytes of new state": {Copied: 7,
			Seconds: 4.42445, LinkSeconds: &links, MemorySeconds: 0.09235},
		"92.35ms in memory, for 7 bytes of new state": {Copied: 7,
			Seconds: 0.09235, LinkSeconds: &none, MemorySeconds: 0.09235},
		"92.35ms in memory, for 7 bytes of new state, without links: no all-reduce has told yet " +
			"how fast they are": {Copied: 7, Seconds: 0.09235, MemorySeconds: 0.09235},
	} {
		if got := PredictionText(&p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
