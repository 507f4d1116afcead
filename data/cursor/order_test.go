package cursor_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/data/cursor"
)

// samplesOf returns all samples of an order, by position.
func samplesOf(o cursor.Order) []int64 {
	all := make([]int64, o.Samples())
	o.Fill(all, cursor.Span{From: 0, To: o.Samples()})
	return all
}

// Of small orders of all lengths, each has every sample once.
func TestOrderIsAPermutation(t *testing.T) {
	for n := uint64(0); n <= 2000; n++ {
		seen := make([]bool, n)
		for _, s := range samplesOf(cursor.NewOrder(n, 42, n%5)) {
			if s < 0 || uint64(s) >= n || seen[s] {
				t.Fatalf("%d samples: sample %d is out of range or comes twice", n, s)
			}
			seen[s] = true
		}
	}
}

// A network with keys is a permutation by its form; what could go wrong in large domains is the
// width of the halves.
func TestLargeOrderRepeatsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1<<20, cursor.MaxSamples).Draw(t, "samples")
		o := cursor.NewOrder(n, rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "epoch"))
		from := rapid.Uint64Range(0, n-1000).Draw(t, "from")
		dst := make([]int64, 1000)
		o.Fill(dst, cursor.Span{From: from, To: from + 1000})
		seen := map[int64]bool{}
		for i, s := range dst {
			if s < 0 || uint64(s) >= n || seen[s] {
				t.Fatalf("position %d: sample %d is out of range or comes twice", from+uint64(i), s)
			}
			seen[s] = true
		}
	})
}

// The order of data that is not shuffled is its own.
func TestIdentity(t *testing.T) {
	for i, s := range samplesOf(cursor.Identity(100)) {
		if int64(i) != s {
			t.Fatalf("position %d holds %d", i, s)
		}
	}
}

// A position that the order does not have panics.
func TestPositionOutsidePanics(t *testing.T) {
	for _, o := range []cursor.Order{cursor.NewOrder(0, 1, 1), cursor.NewOrder(5, 1, 1),
		cursor.Identity(5)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("position %d of as many samples has one", o.Samples())
				}
			}()
			o.At(o.Samples())
		}()
	}
}

// Over seeds, each ordered pair of samples stands equally often at the first two positions, and at
// the first and the last. (Whole orders are not equally likely: like every Feistel network this one
// gives even permutations of its domain only.)
func TestSmallOrdersAreUniform(t *testing.T) {
	const draws = 20000
	for _, n := range []int{2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 16, 17, 20, 40} {
		pairs := n * (n - 1)
		first, ends := make([]int, n*n), make([]int, n*n)
		for seed := range uint64(draws) {
			s := samplesOf(cursor.NewOrder(uint64(n), seed, 0))
			first[int(s[0])*n+int(s[1])]++
			ends[int(s[0])*n+int(s[n-1])]++
		}
		for name, counts := range map[string][]int{"the first two": first, "first and last": ends} {
			want, chi := draws/float64(pairs), 0.0
			for i, c := range counts {
				if i/n != i%n {
					chi += (float64(c) - want) * (float64(c) - want) / want
				}
			}
			freedom := float64(pairs - 1)
			if chi > freedom+5*math.Sqrt(2*freedom)+15 { // about one in a million
				t.Errorf("%d samples, %s: chi-square %.0f over %d pairs", n, name, chi, pairs)
			}
		}
	}
}

// Position and sample fall into the cells of a 16 by 16 board as if they had nothing to do with
// each other, in any epoch, and so do the samples at the same position of two epochs, and of
// neighbouring positions.
func TestOrderLooksRandom(t *testing.T) {
	const n, cells = 50000, 16
	for epoch := range uint64(20) {
		a, b := samplesOf(cursor.NewOrder(n, 1, epoch)), samplesOf(cursor.NewOrder(n, 1, epoch+1))
		boards := map[string][cells][cells]float64{}
		add := func(name string, x, y int64) {
			board := boards[name]
			board[x*cells/n][y*cells/n]++
			boards[name] = board
		}
		displacement := 0.0
		for i := range a {
			add("position and sample", int64(i), a[i])
			add("two epochs", a[i], b[i])
			add("neighbours", a[i], a[(i+1)%n])
			displacement += math.Abs(float64(int64(i) - a[i]))
		}
		for name, board := range boards {
			want, chi := float64(n)/cells/cells, 0.0
			for _, row := range board {
				for _, c := range row {
					chi += (c - want) * (c - want) / want
				}
			}
			if chi > 350 { // 225 degrees of freedom: one in a million is above 340
				t.Errorf("epoch %d, %s: chi-square %.0f", epoch, name, chi)
			}
		}
		// a third, with a deviation of 0.1 % of n
		if mean := displacement / n; math.Abs(mean-n/3.) > n/100. {
			t.Errorf("epoch %d: samples are moved by %.0f on average, expected about %d", epoch,
				mean, n/3)
		}
	}
}

// BenchmarkFill measures what the samples of a batch cost.
func BenchmarkFill(b *testing.B) {
	o := cursor.NewOrder(1281167, 1, 1)
	dst := make([]int64, 1024)
	for b.Loop() {
		o.Fill(dst, cursor.Span{From: 5000, To: 6024})
	}
}
