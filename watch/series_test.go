package watch

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A series of any length shows at most maxPoints, in order of time, and none of its peaks is lost.
func TestSeriesKeepsPeaks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20000).Draw(t, "points")
		seed := rapid.Uint32().Draw(t, "seed")
		s := newSeries(false, "x")
		low, high := math.Inf(1), math.Inf(-1)
		for i := range n {
			seed = seed*1664525 + 1013904223
			x := float64(seed>>8) - 8e6
			if seed%17 == 0 {
				s.add(float64(i), []float64{math.NaN()})
				continue
			}
			low, high = min(low, x), max(high, x)
			s.add(float64(i), []float64{x})
		}
		v := s.view("x", -1)
		if len(v.Times) > maxPoints || len(v.Values[0]) != len(v.Times) || v.Points != uint64(n) {
			t.Fatalf("%d times and %d values of %d points", len(v.Times), len(v.Values[0]), n)
		}
		if !slices.IsSorted(v.Times) || v.Times[0] != 0 {
			t.Fatal("the times are not in order from the first one on")
		}
		var known []float64
		for _, x := range v.Values[0] {
			if !math.IsNaN(x) {
				known = append(known, x)
			}
		}
		if len(known) > 0 && (slices.Min(known) != low || slices.Max(known) != high) {
			t.Fatalf("from %v to %v, want %v to %v", slices.Min(known), slices.Max(known), low,
				high)
		}
	})
}

// Points of a series that is stacked stand for means, so that their sum is that of what they stand
// for.
func TestSeriesOfMeans(t *testing.T) {
	s := newSeries(true, "a", "b")
	for i := range 8 * maxPoints {
		a := float64(i % 2)
		s.add(float64(i), []float64{a, 1 - a})
	}
	v := s.view("split", -1)
	for i := range v.Times {
		if sum := v.Values[0][i] + v.Values[1][i]; math.Abs(sum-1) > 1e-9 || v.Values[0][i] != 0.5 {
			t.Fatalf("point %d: %v and %v", i, v.Values[0][i], v.Values[1][i])
		}
	}
}

// Numbers are JSON with as many digits as are shown, and null for what is no number.
func TestNumbers(t *testing.T) {
	text, err := json.Marshal(numbers{1.23456789, math.NaN(), math.Inf(1), 1764198000.1234,
		-0.5, 0, 1048576, 1234567.875, 1e15})
	want := "[1.23457,null,null,1764198000.123,-0.5,0,1048576,1234567.875,1e+15]"
	if err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
}
