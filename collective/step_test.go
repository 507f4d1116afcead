package collective_test

import (
	"math"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
)

func suits(bytes int) collective.Route { return collective.Suits(bytes) }

// A step takes at least as long as backward and the last bucket, and as the network needs for all
// of it; in one bucket it takes as long as backward and an all-reduce.
func TestTimeOfSteps(t *testing.T) {
	for _, m := range []collective.Model{collective.Usual(), slowCables} {
		for _, backward := range []float64{0, 0.01, 10} {
			s := collective.Step{Hosts: 3, Bytes: 64 << 20, Backward: backward}
			if got, want := m.Step(s, s.Bytes, suits(s.Bytes)),
				backward+m.Time(suits(s.Bytes), 3, s.Bytes); !near(got, want) {
				t.Errorf("in one bucket, behind %v s: %v, want %v", backward, got, want)
			}
			wire := 2.0 * 2 / 3 * float64(s.Bytes) * m.Beta
			for _, size := range s.Buckets() {
				took, last := m.Step(s, size, suits(size)), m.Time(suits(size), 3, size)
				if took < backward+last*0.999 || took < wire {
					t.Errorf("buckets of %d, behind %v s: %v; the last one takes %v, the wire %v",
						size, backward, took, last, wire)
				}
			}
		}
	}
}

// Gradients that take long to make go in small buckets, of which the last is over soon; where a
// word costs more than bytes, they go in large ones. What is chosen is clearly better than what was
// there, or what was there.
func TestBucket(t *testing.T) {
	s := collective.Step{Hosts: 4, Bytes: 64 << 20, Backward: 2}
	if got := slowCables.Bucket(s, s.Bytes, suits); got > 4<<20 {
		t.Errorf("behind a long backward pass: %d", got)
	}
	words := collective.Model{Fixed: 0.1, Beta: 8.0 / 100e9}
	s.Backward = 0.001
	if got := words.Bucket(s, 1<<20, suits); got != s.Bytes {
		t.Errorf("where a word takes 0.1 s: %d", got)
	}
	for _, m := range []collective.Model{collective.Usual(), slowCables, words} {
		for _, bytes := range []int{100, 1 << 20, 5 << 20, 200 << 20} {
			for _, backward := range []float64{0, 0.02, 1} {
				s := collective.Step{Hosts: 3, Bytes: bytes, Backward: backward}
				now := max(bytes/16, 50)
				got := m.Bucket(s, now, suits)
				if got != now && !slices.Contains(s.Buckets(), got) {
					t.Errorf("%d of %+v is none that is worth a look", got, s)
				}
				if was, is := m.Step(s, now, suits(now)), m.Step(s, got, suits(got)); got != now &&
					is > 0.97*was || math.IsNaN(is) {
					t.Errorf("%+v: %d takes %v, and %d took %v", s, got, is, now, was)
				}
			}
		}
	}
}

func TestBuckets(t *testing.T) {
	const mib = 1 << 20
	for bytes, want := range map[int][]int{1: {1}, mib: {mib}, 3 * mib: {3 * mib, 2 * mib, mib},
		64 * mib: {64 * mib, 32 * mib, 16 * mib, 8 * mib, 4 * mib, 2 * mib, mib},
		65 * mib: {64 * mib, 32 * mib, 16 * mib, 8 * mib, 4 * mib, 2 * mib, mib}} {
		if got := (collective.Step{Bytes: bytes}).Buckets(); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %d, want %d", bytes, got, want)
		}
	}
}
