package collective_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// groupStepCall returns a call of a step on a group: with more, one after which the step goes on;
// else its last.
func groupStepCall(g topo.GroupID, more bool) collective.Call {
	return collective.Call{Kind: collective.Barrier, DType: tensor.U8, Group: g,
		Flags: collective.Flags{More: more, Step: !more}}
}

// A step on a group fails as soon as it loses a member, wherever the members are in it, and whether
// or not the lost one has posted all of it; when all have, it counts.
func TestStepOnAGroupCountsWithAllOrNotAtAll(t *testing.T) {
	for _, tc := range []struct {
		name    string
		posts   [3]int // calls of each member before member 2 is lost
		at      []int  // ranks whose calls fail with the loss
		counted bool
	}{
		{"nobody has begun", [3]int{0, 0, 0}, nil, false},
		{"only the lost one has begun", [3]int{0, 0, 1}, []int{2}, false},
		{"one has not begun", [3]int{1, 0, 1}, []int{0, 2}, false},
		{"all have begun", [3]int{1, 1, 1}, []int{0, 1, 2}, false},
		{"the lost one is not through", [3]int{2, 2, 1}, []int{0, 1, 2, 0, 1}, false},
		{"the lost one is through", [3]int{1, 2, 2}, []int{0, 1, 2, 1, 2}, false},
		{"all are through", [3]int{2, 2, 2}, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newElasticMatcher(3)
			g := joinGroup(t, m, 0, 1, 2)
			var ready []collective.Ready
			post := func(rank, k int) {
				ready = m.Post(posted(rank, uint64(k+1), groupStepCall(g, k == 0)), ready)
			}
			for r, n := range tc.posts {
				for k := range n {
					post(r, k)
				}
			}
			if counted := len(ready) == 2 && ready[1].Err == nil &&
				len(ready[1].Calls) == 3; counted != tc.counted || !counted && len(ready) > 0 {
				t.Fatalf("before the loss: %v", ready)
			}
			var failed []int
			for _, r := range m.LoseWorker(workerOfRank(2), "was killed", nil) {
				mustBeLost(t, r)
				for _, p := range r.Calls {
					failed = append(failed, int(p.Worker-workerOfRank(0)))
				}
			}
			if !slices.Equal(failed, tc.at) {
				t.Errorf("the calls of %v fail, expected were %v", failed, tc.at)
			}
			if tc.counted {
				return
			}
			for r := range 2 {
				for k := tc.posts[r]; k < 2; k++ {
					ready = nil
					post(r, k)
					if len(ready) != 1 || len(ready[0].Calls) != 1 {
						t.Fatalf("call %d of rank %d, posted late: %v", k, r, ready)
					}
					mustBeLost(t, ready[0])
				}
			}
			// The others go on, on a group of theirs.
			g = joinGroup(t, m, 0, 1)
			ready = nil
			for k := range 2 {
				post(0, k)
				post(1, k)
			}
			if len(ready) != 2 || ready[0].Err != nil || ready[1].Err != nil ||
				len(ready[1].Calls) != 2 {
				t.Errorf("the step again: %v", ready)
			}
		})
	}
}

// A member that is not through with its part ends the step without the flag: nobody's counts.
func TestStepOnAGroupNeedsEveryFlag(t *testing.T) {
	m := newElasticMatcher(2)
	g := joinGroup(t, m, 0, 1)
	m.Post(posted(0, 1, groupStepCall(g, true)), nil)
	m.Post(posted(1, 1, groupStepCall(g, true)), nil)
	m.Post(posted(0, 2, groupStepCall(g, false)), nil)
	no := groupStepCall(g, false)
	no.Step = false
	got := m.Post(posted(1, 2, no), nil)
	var mismatch *collective.MismatchError
	if len(got) != 2 || got[0].Err != nil || len(got[0].Calls) != 2 ||
		!errors.As(got[1].Err, &mismatch) || len(got[1].Calls) != 2 {
		t.Errorf("got %v", got)
	}
}

// mustBeLost fails the test unless a set failed because of a lost rank.
func mustBeLost(t *testing.T, r collective.Ready) {
	t.Helper()
	var lost *collective.LostError
	if !errors.As(r.Err, &lost) {
		t.Fatalf("got %v, want a LostError", r)
	}
}
