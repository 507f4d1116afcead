package collective_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// What a vanished worker posted in full is taken back, and workers of one host vanish together:
// nothing is ready with one and without the other.
func TestLostMemoryContributesNothing(t *testing.T) {
	m := newElasticMatcher(4)
	for _, r := range []int{1, 2, 3} {
		m.Post(posted(r, 1, stepCall(true)), nil)
		m.Post(posted(r, 2, stepCall(false)), nil)
	}
	m.LoseWorker(workerOfRank(3), "was killed", nil) // its memory is still there
	got := m.LoseWorkersWithMemory(workers([]int{2, 3}), "is on a lost host", nil)
	if len(got) != 0 {
		t.Fatalf("ready before w0 has posted: %v", got)
	}
	m.Post(posted(0, 1, stepCall(true)), nil)
	got = m.Post(posted(0, 2, stepCall(false)), nil)
	if len(got) != 2 {
		t.Fatalf("got %v", got)
	}
	for _, r := range got {
		if diff := cmp.Diff(workers([]int{0, 1}), workersOf(r.Calls)); diff != "" || r.Err != nil {
			t.Errorf("%v: %s", r.Err, diff)
		}
	}
}

// Waiting for a worker that vanishes ends: the others go on, and who cannot go on is told.
func TestLostMemoryIsNotWaitedFor(t *testing.T) {
	gather := collective.Call{Kind: collective.AllGather, DType: tensor.U8, In: []byte{1},
		Out: []byte{0, 0, 0}, Shape: []int{1}}
	for rank := range 3 {
		m := newElasticMatcher(3)
		other := (rank + 1) % 3
		m.Post(posted(other, 1, gather), nil)
		m.Post(posted(rank, 1, gather), nil)
		m.LoseWorker(workerOfRank(rank), "was killed", nil) // what it gave is still there
		got := m.LoseWorkersWithMemory(workers([]int{rank}), "is on a lost host", nil)
		var lost *collective.LostError
		if len(got) != 1 || !errors.As(got[0].Err, &lost) ||
			!slices.Equal(workersOf(got[0].Calls), workers([]int{other})) {
			t.Errorf("without rank %d: %v", rank, got)
		}
	}
}

// A set that was being executed goes on without what vanished, with a root that is there, or says
// why it cannot.
func TestWithoutLost(t *testing.T) {
	m := newElasticMatcher(3)
	var sets []collective.Ready
	cast := func(r int) collective.Call {
		c := collective.Call{Kind: collective.Broadcast, DType: tensor.U8, Peer: 0, Shape: []int{1}}
		if r == 0 {
			c.In = []byte{0}
		} else {
			c.Out = []byte{byte(r)}
		}
		return c
	}
	for r := range 3 {
		sets = m.Post(posted(r, 1, cast(r)), sets)
	}
	gone := workers([]int{0})
	m.LoseWorkersWithMemory(gone, "is on a lost host", nil)
	r := m.WithoutLost(sets[0], gone)
	if r.Err != nil || !slices.Equal(workersOf(r.Calls), workers([]int{1, 2})) ||
		!r.Calls[0].Call.Promoted || r.Calls[1].Call.Peer != 0 {
		t.Errorf("broadcast without its root: %v %+v", r.Err, r.Calls[0].Call)
	}
	if again := m.WithoutLost(r, gone); again.Err != nil || len(again.Calls) != 2 {
		t.Errorf("taking away what is gone changed something: %v", again)
	}
	set := collective.Ready{
		Calls: []*collective.Posted{posted(0, 2, collective.Call{Kind: collective.Send, Peer: 1}),
			posted(1, 2, collective.Call{Kind: collective.Recv, Peer: 0})}}
	var lost *collective.LostError
	if r := m.WithoutLost(set, gone); !errors.As(r.Err, &lost) ||
		!slices.Equal(workersOf(r.Calls), workers([]int{1})) {
		t.Errorf("receive without its send: %v", r)
	}
	if r := m.WithoutLost(set, workers([]int{0, 1})); len(r.Calls) != 0 {
		t.Errorf("something is left of nothing: %v", r)
	}
}

// Groups that workers have from another matcher are the same ones here, and new ones get new
// numbers.
func TestAdoptGroup(t *testing.T) {
	old, m := newElasticMatcher(3), newElasticMatcher(3)
	list := workers([]int{0, 2})
	var ids []topo.GroupID
	for _, w := range []topo.WorkerID{workerOfRank(0), workerOfRank(0), workerOfRank(2)} {
		id, _, err := old.JoinGroup(w, list)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	m.AdoptGroup(ids[0], list, workerOfRank(0), true)
	m.AdoptGroup(ids[1], list, workerOfRank(0), false)
	m.AdoptGroup(ids[2], list, workerOfRank(2), false)
	second, self, err := m.JoinGroup(workerOfRank(2), list)
	if err != nil || second != ids[1] || self != 1 {
		t.Errorf("the second group of w2 is %d (%d), %v; w0 has it as %d", second, self, err,
			ids[1])
	}
	third, _, err := m.JoinGroup(workerOfRank(2), list)
	if err != nil || slices.Contains(ids, third) {
		t.Errorf("the third group is %d, %v; taken are %v", third, err, ids)
	}
}

// A group lasts until all its members that are left have freed it, and who asks for another gets
// the one that the others have.
func TestGroupsAreFreed(t *testing.T) {
	m := newElasticMatcher(3)
	list := workers([]int{0, 2})
	// ask has a rank ask for the group of list.
	ask := func(w int) topo.GroupID {
		t.Helper()
		id, _, err := m.JoinGroup(workerOfRank(w), list)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	// removes checks that just these groups are removed now.
	removes := func(want ...topo.GroupID) {
		t.Helper()
		if got := m.RemoveUnusedGroups(); !slices.Equal(got, want) {
			t.Fatalf("groups %v are disbanded, want %v", got, want)
		}
	}
	first := ask(0)
	m.LeaveGroup(workerOfRank(0), first)
	removes() // w2 has not asked for it yet
	second := ask(0)
	if ask(2) != first || ask(2) != second {
		t.Fatal("w2 gets other groups than w0")
	}
	m.LeaveGroup(workerOfRank(1), second) // it is no member
	m.LeaveGroup(workerOfRank(0), topo.World)
	removes()
	m.LeaveGroup(workerOfRank(2), first)
	removes(first)
	if _, _, ok := m.IndexInGroup(first, workerOfRank(0)); ok {
		t.Error("a group that was disbanded is there")
	}
	third := ask(0)
	if ask(2) != third {
		t.Error("w2 gets another group than w0 after an earlier one was disbanded")
	}
	m.LeaveGroup(workerOfRank(2), third)
	m.LoseWorker(workerOfRank(0), "is gone", nil)
	removes(third) // and w2 still has the second
	m.LeaveGroup(workerOfRank(2), second)
	removes(second)
	for range 2 * collective.MaxGroups {
		id, _, err := m.JoinGroup(workerOfRank(1), workers([]int{1, 2}))
		if err != nil {
			t.Fatal(err)
		}
		m.LeaveGroup(workerOfRank(1), id)
		m.JoinGroup(workerOfRank(2), workers([]int{1, 2}))
		m.LeaveGroup(workerOfRank(2), id)
		removes(id)
	}
}
