package signals

import "testing"

// BenchmarkStep measures what a step of one call costs where nothing of its gradient is measured.
func BenchmarkStep(b *testing.B) {
	f := newFast()
	for i := range b.N {
		f.makeStep(10_000)
		if i%100_000 == 99_999 {
			f.signals.PopStepsNote()
		}
	}
}
