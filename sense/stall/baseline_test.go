package stall

import (
	"testing"

	"github.com/shoal-ml/shoal/sense"
)

// What is usual is twice the median of the stalls, of which newer ones count more, whatever their
// order; too few say nothing, nor those that are long ago.
func TestUsualDuration(t *testing.T) {
	for _, c := range []struct {
		name   string
		stalls []int // how many seconds they took; they ended 200 seconds after each other
		later  int   // seconds from the end of the last to the stall that is asked about
		want   int
	}{
		{"none", nil, 10, 0},
		{"two", []int{7, 7}, 10, 0},
		{"three", []int{7, 7, 7}, 10, 14},
		{"one of which is long", []int{1, 1, 1, 100, 1}, 10, 2},
		{"the newer ones are longer", []int{1, 1, 1, 9, 9}, 10, 18},
		{"the newest one is longer", []int{1, 1, 1, 1, 9}, 10, 2},
		{"twice as long ago as they lasted", []int{7, 7, 7}, 800, 14},
		{"longer ago", []int{7, 7, 7}, 801, 0},
	} {
		var b baseline
		at := sense.Duration(0)
		for _, took := range c.stalls {
			at += 200 * sense.Second
			b.addStall(at-sense.Duration(took)*sense.Second, at)
		}
		got := b.usualDuration(at + sense.Duration(c.later)*sense.Second)
		if want := sense.Duration(c.want) * sense.Second; got != want {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}

// A baseline is bounded, and one that is outdated is forgotten when another stall ends.
func TestBaselineForgets(t *testing.T) {
	var b baseline
	for i := range sense.Duration(2 * maxEnded) {
		b.addStall(i*sense.Second, i*sense.Second)
	}
	if len(b) != maxEnded || b[0].at != maxEnded*sense.Second {
		t.Errorf("%d stalls, the oldest at %v", len(b), b[0].at)
	}
	if b.addStall(sense.Second*1e6, sense.Second*1e6); len(b) != 1 {
		t.Errorf("%d stalls after a long time", len(b))
	}
}
