package main

import (
	"maps"
	"slices"
	"testing"
)

// The median difference of neighbours is found though the machine was slow for half of the time;
// what it cost is a share of the median call.
func TestStepsAreComparedWithTheirNeighbours(t *testing.T) {
	var plain, steps []float64
	for i := range 100 {
		slow := float64(i / 50 * 1000)
		plain, steps = append(plain, 200+slow), append(steps, 200+slow+float64(i%5-1))
	}
	want := map[string]float64{"bytes": 64, "pairs": 100, "plain_us": 1200, "steps_us": 1199,
		"cost": 100. / 1200, "low": 100. / 1200, "high": 200. / 1200}
	if got := compareSeries(64, slices.Clone(plain), slices.Clone(steps)); !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	if one := compareSeries(64, []float64{2}, []float64{3}); one["cost"] != 50 ||
		one["low"] != 50 ||
		one["high"] != 50 {
		t.Errorf("of one pair: %v", one)
	}
}
