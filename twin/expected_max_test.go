package twin

import (
	"math"
	"testing"
)

// TestExpectedMax compares the mean of the longest of some times with what is known of normal
// numbers: the order statistics of two and three, and the mean of one that cannot be below 0.
func TestExpectedMax(t *testing.T) {
	for _, c := range []struct {
		means     []float64
		deviation float64
		want      float64
	}{
		{[]float64{1, 3, 2}, 0, 3},
		{[]float64{2}, 0.1, 2},
		{[]float64{1, 1}, 0.1, 1 + 0.1/math.Sqrt(math.Pi)},
		{[]float64{2, 2, 2}, 0.1, 2 + 0.2*1.5/math.Sqrt(math.Pi)},
		{[]float64{0.5, 1}, 0.1, 1},
		{[]float64{1}, 0.5, 1.00425},
	} {
		if got := expectedMax(c.means, c.deviation); math.Abs(got-c.want) > 2e-3*c.want {
			t.Errorf("%v with a deviation of %v: %v, want %v", c.means, c.deviation, got, c.want)
		}
	}
}
