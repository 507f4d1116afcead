// Package probe measures how long this processor takes: to add a byte, and to copy and verify a
// byte. The clock comes in as an argument, so that the package itself has none. Any goroutine may
// call its functions, which block while they compute.
package probe

import (
	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/tensor"
)

// Clock returns the time since some moment that stays the same.
type Clock func() sense.Duration

// MeasureAdd measures the seconds to add a byte of f32 to a partial sum, which are the Gamma of a
// cost.Model. It computes for some milliseconds, on memory of its own.
func MeasureAdd(clock Clock) (secondsPerByte float64) {
	const n, rounds = 1 << 20, 10
	k, x, y := kernel.Best(), make([]byte, n), make([]byte, n)
	var best sense.Duration
	for i := range rounds {
		start := clock()
		k.Fold(tensor.F32, kernel.Sum, x, y)
		if took := clock() - start; i == 0 || took < best {
			best = took
		}
	}
	return best.Seconds() / n
}

// MeasureReshape measures the seconds that a byte of the new state costs in memory when a job
// changes its mesh: three copies (out of the model, to its place, into the model) and two
// fingerprints, on one core. It computes for some milliseconds, on memory of its own.
func MeasureReshape(clock Clock) (secondsPerByte float64) {
	const n = 8 << 20
	from, to, key := make([]byte, n), make([]byte, n), digest.NewKey(1)
	kernel.Best().Copy(to, from) // the first access maps the memory
	start := clock()
	for range 3 {
		kernel.Best().Copy(to, from)
	}
	for range 2 {
		key.RunSum(0, to)
	}
	return (clock() - start).Seconds() / n
}
