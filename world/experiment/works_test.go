package experiment

import (
	"strconv"
	"testing"
)

// Where a kind says all, the forest and the median come near what varies within a kind, the last
// work is off by the root of two of it, and the median of all jobs by what kinds differ in.
func TestWorksAreOffByWhatVaries(t *testing.T) {
	arrivals := make([]int64, 1500)
	for i := range arrivals {
		arrivals[i] = int64(i) * 600
	}
	for _, seed := range []uint64{1, 2, 3} {
		row := predictionErrors(arrivals, 0.3, seed)
		for i, c := range []struct{ least, most float64 }{{0.3, 0.55}, {0.29, 0.45}, {0.37, 0.5},
			{0.9, 2.5}} {
			x, err := strconv.ParseFloat(row[i+1], 64)
			if err != nil || x < c.least || x > c.most {
				t.Errorf("seed %d, column %d: %v (%v)", seed, i+1, row, err)
			}
		}
	}
}
