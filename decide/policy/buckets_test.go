package policy_test

import (
	"math"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
)

// routeOf returns the route that an all-reduce of so many bytes takes without measurements.
func routeOf(bytes int) collective.Route { return collective.DefaultRoute(bytes) }

// Gradients that take long to make go in small buckets, of which the last is over soon; where a
// word costs more than bytes, they go in large ones. What is chosen is clearly better than what was
// there, or what was there.
func TestBucket(t *testing.T) {
	s := cost.Step{Hosts: 4, Bytes: 64 << 20, Backward: 2}
	if got := policy.DecideBucketSize(slowCables, s, s.Bytes, routeOf).To; got > 4<<20 {
		t.Errorf("after a long backward pass: %d", got)
	}
	words := cost.Model{Fixed: 0.1, Beta: 8.0 / 100e9}
	s.Backward = 0.001
	if got := policy.DecideBucketSize(words, s, 1<<20, routeOf).To; got != s.Bytes {
		t.Errorf("where a word takes 0.1 s: %d", got)
	}
	for _, m := range []cost.Model{cost.Default(), slowCables, words} {
		for _, bytes := range []int{100, 1 << 20, 5 << 20, 200 << 20} {
			for _, backward := range []float64{0, 0.02, 1} {
				s := cost.Step{Hosts: 3, Bytes: bytes, Backward: backward}
				now := max(bytes/16, 50)
				got := policy.DecideBucketSize(m, s, now, routeOf).To
				if got != now && !slices.Contains(policy.BucketSizes(s.Bytes), got) {
					t.Errorf("%d of %+v is none that is worth a look", got, s)
				}
				if was, is := m.StepSeconds(s, now, routeOf(now)),
					m.StepSeconds(s, got, routeOf(got)); got != now &&
					is > 0.97*was || math.IsNaN(is) {
					t.Errorf("%+v: %d takes %v, and %d took %v", s, got, is, now, was)
				}
			}
		}
	}
}

// The sizes worth comparing are the whole step, if it is no longer than the largest bucket, and
// powers of two.
func TestBucketSizes(t *testing.T) {
	const mib = 1 << 20
	for bytes, want := range map[int][]int{1: {1}, mib: {mib}, 3 * mib: {3 * mib, 2 * mib, mib},
		64 * mib: {64 * mib, 32 * mib, 16 * mib, 8 * mib, 4 * mib, 2 * mib, mib},
		65 * mib: {64 * mib, 32 * mib, 16 * mib, 8 * mib, 4 * mib, 2 * mib, mib}} {
		if got := policy.BucketSizes(bytes); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %d, want %d", bytes, got, want)
		}
	}
}
