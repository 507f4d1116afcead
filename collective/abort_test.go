package collective_test

import (
	"errors"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// A worker is lost that only one of two groups has. When its partner drops the step, the calls of
// the third fail too, though all of its partners live; and after Advance the world goes on.
func TestAbortedWorkerIsNotWaitedFor(t *testing.T) {
	m := collective.NewMatcher(workers([]int{0, 1, 2}))
	one, other := joinGroup(t, m, 0, 1), joinGroup(t, m, 1, 2)
	call := func(g topo.GroupID) collective.Call {
		return collective.Call{Kind: collective.Barrier, DType: tensor.U8, Group: g}
	}
	// fails checks that sets are failed calls of just these ranks, in this order.
	fails := func(sets []collective.Ready, who ...int) {
		t.Helper()
		for _, r := range sets {
			var lost *collective.LostError
			if !errors.As(r.Err, &lost) {
				t.Fatalf("got %v", r)
			}
			for _, p := range r.Calls {
				if len(who) == 0 || p.Worker != workerOfRank(who[0]) {
					t.Fatalf("a call of w%d fails, expected are %v", p.Worker, who)
				}
				who = who[1:]
			}
		}
		if len(who) > 0 {
			t.Fatalf("no call of %v fails in %v", who, sets)
		}
	}
	fails(m.Post(posted(0, 1, call(one)), nil))
	send := collective.Call{Kind: collective.Send, DType: tensor.U8, Group: one, Peer: 0,
		In: []byte{1}, Shape: []int{1}}
	fails(m.Post(posted(1, 1, send), nil))
	fails(m.Post(posted(1, 2, call(other)), nil))
	fails(m.LoseWorker(workerOfRank(2), "was killed", nil), 1)
	// what it has sent, and what waits for it
	fails(m.Abort(workerOfRank(1), "has dropped the step", nil), 1, 0)
	fails(m.Post(posted(0, 2, call(one)), nil), 0)
	fails(m.Post(posted(0, 3, call(topo.World)), nil), 0)
	fails(m.Abort(workerOfRank(0), "has dropped the step", nil))
	m.Advance(workers([]int{1, 0}), nil)
	if got := m.Post(posted(0, 4, call(topo.World)), nil); len(got) != 0 {
		t.Fatalf("got %v", got)
	}
	if got := m.Post(posted(1, 3, call(topo.World)), nil); len(got) != 1 || got[0].Err != nil ||
		len(got[0].Calls) != 2 {
		t.Fatalf("the world does not go on: %v", got)
	}
}

// joinGroup has each of the ranks ask m for the group of all of them, and returns its number. A
// refusal fails the test.
func joinGroup(t *testing.T, m *collective.Matcher, ranks ...int) (id topo.GroupID) {
	t.Helper()
	for _, r := range ranks {
		var err error
		if id, _, err = m.JoinGroup(workerOfRank(r), workers(ranks)); err != nil {
			t.Fatal(err)
		}
	}
	return id
}
