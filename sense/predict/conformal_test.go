package predict

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestConformalRank compares ranks with those of exact arithmetic, where floating point could come
// out one too high: 8 of 10 is 4 of 5.
func TestConformalRank(t *testing.T) {
	for n := 1; n <= 1000; n++ {
		for tenths := 1; tenths <= 9; tenths++ {
			want := (tenths*(n+1) + 9) / 10
			if got := ConformalRank(n, float64(tenths)/10); got != want {
				t.Fatalf("%d numbers, probability 0.%d: rank %d, not %d", n, tenths, got, want)
			}
		}
	}
}

// TestConformalQuantile checks how often a number is at most the quantile of those before it.
func TestConformalQuantile(t *testing.T) {
	r, within := rand.New(rand.NewPCG(1, 2)), 0
	const tries, n = 20_000, 12
	for range tries {
		list := make([]float64, n)
		for i := range list {
			list[i] = r.ExpFloat64()
		}
		slices.Sort(list)
		x, enough := ConformalQuantile(list, 0.8)
		if !enough {
			t.Fatal("twelve are enough for 80 %")
		}
		if r.ExpFloat64() <= x {
			within++
		}
	}
	if part := float64(within) / tries; part < 0.84 || part > 0.86 { // 11 of 13
		t.Errorf("%v of the next numbers are at most the quantile, not 0.846", part)
	}
	if x, enough := ConformalQuantile([]float64{1, 2, 3}, 0.8); x != 3 || enough {
		t.Errorf("of three numbers: %v %v", x, enough)
	}
}
