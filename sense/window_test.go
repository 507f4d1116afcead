package sense_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"pgregory.net/rapid"
)

// A window knows the newest samples, and nothing of those before.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w sense.Window
		all := rapid.SliceOfN(rapid.Float64Range(-9, 9), 1, 30).Draw(t, "samples")
		for i, x := range all {
			w.Add(x)
			newest := slices.Sorted(slices.Values(all[max(0, i+1-sense.WindowSize) : i+1]))
			if w.Count() != i+1 || w.Min() != newest[0] || w.Median() != newest[len(newest)/2] {
				t.Fatalf("of %v: %d samples, least %v, median %v", all[:i+1], w.Count(), w.Min(),
					w.Median())
			}
		}
	})
}
