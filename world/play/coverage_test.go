package play_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/setting"
)

// About 80 of 100 measurements of changes lie in the bands that were predicted, which are those by
// which it was decided: in jobs of all kinds, on machines whose load changes and with cables that
// become slow.
func TestPredictionsHold(t *testing.T) {
	changes, inside, above := 0, 0, 0
	for seed := range uint64(160) {
		rng := rand.New(rand.NewPCG(seed, 11))
		// from draws a number from low to high, evenly in its logarithm.
		from := func(low, high float64) float64 { return low * math.Pow(high/low, rng.Float64()) }
		noise := from(50, 5000)
		text := fmt.Sprintf("hosts 4 cable %.0fMbit\ncompute %.3fms + %.4fms/sample sd %d%%\n"+
			"gradients %.0fkB\ndata 50000 batch %d range 16-4096\nnoise %.0f growing to %.0f\n"+
			"target 50 epochs\nrun 600 steps\nseed %d\npolicy batch\n", from(100, 10_000),
			from(1, 100), from(0.05, 2), 2+rng.IntN(14), from(10, 20_000), 16+rng.IntN(500), noise,
			noise*from(1, 10), seed+1)
		for step := rng.IntN(100); step < 600; step += 40 + rng.IntN(300) {
			host := 1 + rng.IntN(4)
			if rng.IntN(4) == 0 {
				text += fmt.Sprintf("at step %d cable h%d %.0fMbit\n", step, host, from(50, 5000))
			} else {
				text += fmt.Sprintf("at step %d slow h%d %.2fx\n", step, host, from(0.6, 2))
			}
		}
		for _, c := range playText(t, text).Entries {
			// of the rate alone nothing is predicted, and nothing measured
			if (c.Phase == setting.Kept || c.Phase == setting.Reverted) && c.Measured > 0 {
				changes++
				if c.Predicted.Contains(c.Measured) {
					inside++
				} else if c.Measured > c.Predicted.High {
					above++
				}
			}
		}
	}
	share := float64(inside) / float64(changes)
	t.Logf("%d changes, %.1f %% in their bands, %d above", changes, 100*share, above)
	if changes < 100 || share < 0.75 || share > 0.85 {
		t.Errorf("%.3f of %d changes are in their bands", share, changes)
	}
}

// The same holds of sizes that somebody asks for.
func TestPredictionsOfSizesHold(t *testing.T) {
	changes, inside, above := 0, 0, 0
	var errors []float64
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 12))
		// from draws a number from low to high, evenly in its logarithm.
		from := func(low, high float64) float64 { return low * math.Pow(high/low, rng.Float64()) }
		text := fmt.Sprintf("hosts 4 range 1-12 cable %.0fMbit\ncompute %.3fms + %.4fms/sample "+
			"sd %d%%\ngradients %.0fkB hidden %d%%\ndata 50000 batch %d\nrun 700 steps\nseed %d\n"+
			"costs join 100ms start 1s\n", from(100, 10_000), from(1, 100), from(0.05, 2),
			2+rng.IntN(10), from(10, 20_000), rng.IntN(60), 48+rng.IntN(500), seed+1)
		for step := 30; step < 600; step += 100 {
			text += fmt.Sprintf("at step %d set size=%d\n", step, 1+rng.IntN(12))
		}
		for _, c := range playText(t, text).Entries {
			if c.Phase == setting.Kept && c.Measured > 0 {
				changes++
				errors = append(errors, math.Abs(math.Log(c.Measured/c.Predicted.Mid)))
				if c.Predicted.Contains(c.Measured) {
					inside++
				} else if c.Measured > c.Predicted.High {
					above++
				}
			}
		}
	}
	slices.Sort(errors)
	share := float64(inside) / float64(changes)
	t.Logf("%d changes, %.1f %% in their bands, %d above; median error %.3f, of 95 %% %.3f",
		changes, 100*share, above, errors[len(errors)/2], errors[len(errors)*95/100])
	if changes < 100 || share < 0.75 || share > 0.9 {
		t.Errorf("%.3f of %d changes are in their bands", share, changes)
	}
}
