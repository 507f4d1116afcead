package queue

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/internal/group"
)

// TestOrder compares the queue with a slice under random puts and takes.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		var want, got []int
		for i := range rapid.IntRange(0, 200).Draw(t, "operations") {
			if rapid.Bool().Draw(t, "put") {
				want = append(want, i)
				if !q.Put(i) {
					t.Fatal("an open queue refused an item")
				}
			} else if item, ok := q.TakeNow(); ok {
				got = append(got, item)
			} else if len(got) != len(want) {
				t.Fatalf("nothing to take after %d of %d", len(got), len(want))
			}
		}
		for len(got) < len(want) {
			item, _ := q.Take()
			got = append(got, item)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestCloseWakesAll closes a queue on which several goroutines wait, and uses it afterwards.
func TestCloseWakesAll(t *testing.T) {
	var q Queue[string]
	g := group.New(context.Background())
	for range 3 {
		g.Go("taker", func(context.Context) error {
			for {
				if _, ok := q.Take(); !ok {
					return nil
				}
			}
		})
	}
	q.Put("x")
	q.Close()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if q.Put("y") {
		t.Error("a closed queue took an item")
	}
	if _, ok := q.TakeNow(); ok {
		t.Error("a closed queue gave an item")
	}
}

// TestNoAllocationOnceGrown checks that a queue that is never empty uses its memory again.
func TestNoAllocationOnceGrown(t *testing.T) {
	var q Queue[[4]uint64]
	q.Put([4]uint64{})
	if n := testing.AllocsPerRun(1000, func() {
		q.Put([4]uint64{1}) // never empty: the room of what was taken must be found again
		q.TakeNow()
	}); n != 0 {
		t.Errorf("%v allocations an item", n)
	}
}
