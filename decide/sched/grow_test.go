package sched

import "testing"

// A job that has lost a host grows to its smallest size or beyond, so that the default policy wants
// no size that the job does not have, which nothing could replace.
func TestGrowthOfHurtJob(t *testing.T) {
	curve := Curve{{Slots: 1, Rate: 1}, {Slots: 3, Rate: 2.5}, {Slots: 4, Rate: 3}}
	for _, c := range []struct{ min, max, has, next int }{
		{1, 4, 1, 2}, {3, 4, 1, 3}, {3, 4, 2, 4}, {4, 4, 1, 4}, {3, 4, 4, 0},
	} {
		j := Job{ID: "a", Min: c.min, Max: c.max, Asked: c.max, Speed: curve}
		if n := j.nextSize(c.has); n != c.next {
			t.Errorf("%d to %d slots, of which it has %d: the next size is %d, not %d", c.min,
				c.max, c.has, n, c.next)
		}
	}
}
