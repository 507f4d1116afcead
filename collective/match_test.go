package collective_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// workerOfRank returns the worker that has a rank in the worlds of these tests.
func workerOfRank(rank int) topo.WorkerID { return topo.WorkerID(100 + rank) }

// newMatcher returns a Matcher for a world of so many workers.
func newMatcher(size int) *collective.Matcher {
	var world []topo.WorkerID
	for r := range size {
		world = append(world, workerOfRank(r))
	}
	return collective.NewMatcher(world)
}

// workers lists the workers that have these ranks.
func workers(ranks []int) (list []topo.WorkerID) {
	for _, r := range ranks {
		list = append(list, workerOfRank(r))
	}
	return list
}

// posted returns a call as the worker with a rank posts it.
func posted(rank int, ticket uint64, c collective.Call) *collective.Posted {
	return &collective.Posted{Worker: workerOfRank(rank), Ticket: ticket, Call: c}
}

// sumOf returns an all-reduce of a tensor of f32 with this shape, in memory of its own.
func sumOf(shape ...int) collective.Call {
	n, _ := tensor.Shape(shape).Elements()
	return collective.Call{Kind: collective.AllReduce, DType: tensor.F32, Reduction: collective.Sum,
		In: make([]byte, 4*n), Out: make([]byte, 4*n), Shape: shape}
}

// Calls that differ in any way in which they must not are told so, with both calls and their ranks;
// later callers there too.
func TestMismatchNamesBothCalls(t *testing.T) {
	mean := sumOf(4, 3)
	mean.Reduction = collective.Mean
	half := sumOf(4, 3)
	half.DType, half.In, half.Out = tensor.F16, half.In[:24], half.Out[:24]
	for _, tc := range []struct {
		name  string
		other collective.Call
		want  string
	}{
		{"shape", sumOf(3, 4),
			"rank 0 called all_reduce(f32[4,3], sum), rank 2 called all_reduce(f32[3,4], sum)"},
		{"length", sumOf(13), "rank 2 called all_reduce(f32[13], sum)"},
		{"reduction", mean, "rank 2 called all_reduce(f32[4,3], mean)"},
		{"dtype", half, "rank 2 called all_reduce(f16[4,3], sum)"},
		{"kind", collective.Call{Kind: collective.Barrier, DType: tensor.U8},
			"rank 2 called barrier()"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMatcher(3)
			if got := m.Post(posted(0, 1, sumOf(4, 3)), nil); len(got) != 0 {
				t.Fatalf("one rank alone made %v ready", got)
			}
			got := m.Post(posted(2, 1, tc.other), nil)
			var mismatch *collective.MismatchError
			if len(got) != 1 || !errors.As(got[0].Err, &mismatch) ||
				!strings.Contains(got[0].Err.Error(), tc.want) {
				t.Fatalf("got %v, want an error with %q", got, tc.want)
			}
			if len(got[0].Calls) != 2 {
				t.Errorf("%d calls fail, want both", len(got[0].Calls))
			}
			// The rank that comes late hears the same; the next position is sound again.
			if late := m.Post(posted(1, 1, sumOf(4, 3)), nil); len(late) != 1 ||
				late[0].Err != got[0].Err || len(late[0].Calls) != 1 {
				t.Errorf("the late rank got %v", late)
			}
			for r := range 3 {
				next := m.Post(posted(r, 2, sumOf(5)), nil)
				if r == 2 && (len(next) != 1 || next[0].Err != nil) {
					t.Errorf("the next collective gave %v", next)
				}
			}
		})
	}
}

// A step ends with a call of it that fails. The next one has room for as many collectives as any,
// also for a rank that had posted some of them before the others called.
func TestStepAfterOneThatFailed(t *testing.T) {
	const before = 200
	for _, ahead := range []int{0, 10} {
		for _, parts := range []int{collective.MaxStep, collective.MaxStep + 1} {
			m := newMatcher(2)
			var next [2]uint64 // by rank
			post := func(rank int, c collective.Call) []collective.Ready {
				next[rank]++
				return m.Post(posted(rank, next[rank], c), nil)
			}
			part := func(rank int) []collective.Ready {
				return post(rank, stepCall(next[rank] < uint64(before+parts)))
			}
			for range before {
				part(0)
				part(1)
			}
			for range 1 + ahead {
				part(0)
			}
			wrong := collective.Call{Kind: collective.Barrier, Flags: collective.Flags{More: true}}
			if got := post(1, wrong); len(got) != before+1 || got[before].Err == nil {
				t.Fatalf("%d ahead: a wrong call makes %d ready", ahead, len(got))
			}
			var last []collective.Ready
			failed := 0
			for next[1] <= before+uint64(parts) {
				for rank := range 2 {
					if next[rank] > before+uint64(parts) {
						continue
					}
					last = part(rank)
					for _, r := range last {
						if r.Err != nil {
							failed++
						}
					}
				}
			}
			if parts > collective.MaxStep && failed == 0 ||
				parts == collective.MaxStep && (failed > 0 || len(last) != parts) {
				t.Errorf("%d ahead, a step of %d: %d are ready with its end, %d sets failed", ahead,
					parts, len(last), failed)
			}
		}
	}
}

// When a rank is lost, a collective and a receive that wait for it fail, now or when they are
// posted; a group without that rank goes on.
func TestLostRankFailsWhatWaitsForIt(t *testing.T) {
	m := newMatcher(3)
	id, _, err := m.JoinGroup(workerOfRank(0), []topo.WorkerID{workerOfRank(0), workerOfRank(1)})
	if err != nil {
		t.Fatal(err)
	}
	inside := sumOf(2)
	inside.Group = id
	m.Post(posted(0, 1, sumOf(4)), nil)
	m.Post(posted(0, 2, inside), nil)
	recv := collective.Call{Kind: collective.Recv, DType: tensor.F32, Peer: 2, Out: make([]byte, 8),
		Shape: []int{2}}
	m.Post(posted(1, 1, recv), nil)
	got := m.LoseWorker(workerOfRank(2), "exited with code 0", nil)
	if len(got) != 2 {
		t.Fatalf("%d failures, want the all_reduce of the world and the recv: %v", len(got), got)
	}
	for _, r := range got {
		var lost *collective.LostError
		if !errors.As(r.Err, &lost) || lost.Lost != 2 ||
			!strings.Contains(r.Err.Error(), "rank 2 exited with code 0, while rank") {
			t.Errorf("got %v", r.Err)
		}
	}
	if r := m.Post(posted(1, 2, inside), nil); len(r) != 1 || r[0].Err != nil {
		t.Errorf("the group without the lost rank gave %v", r)
	}
	if r := m.Post(posted(1, 3, sumOf(4)), nil); len(r) != 1 || r[0].Err == nil {
		t.Errorf("a call that waits for ever: %v", r)
	}
}

// A call that the lost rank had posted still counts.
func TestLostRankLeavesItsCallsBehind(t *testing.T) {
	m := newMatcher(2)
	m.Post(posted(1, 1, sumOf(4)), nil)
	if got := m.LoseWorker(workerOfRank(1), "was killed", nil); len(got) != 0 {
		t.Fatalf("its own call failed: %v", got)
	}
	if got := m.Post(posted(0, 1, sumOf(4)), nil); len(got) != 1 || got[0].Err != nil {
		t.Errorf("got %v, want the complete collective", got)
	}
}

// All who ask for the same list for the k-th time get the same group, and wrong lists are refused.
func TestGroups(t *testing.T) {
	m := newMatcher(4)
	// group has a rank ask for the group of ranks, and returns its number and the rank's index.
	group := func(rank int, ranks ...int) (topo.GroupID, int) {
		t.Helper()
		id, self, err := m.JoinGroup(workerOfRank(rank), workers(ranks))
		if err != nil {
			t.Fatal(err)
		}
		return id, self
	}
	a, self := group(2, 3, 2)
	if self != 1 {
		t.Errorf("rank 2 is number %d of [3 2]", self)
	}
	b, _ := group(2, 3, 2)
	if c, _ := group(3, 3, 2); c != a {
		t.Errorf("rank 3 got group %d first, want %d", c, a)
	}
	if c, _ := group(3, 3, 2); c != b || a == b {
		t.Errorf("rank 3 got group %d the second time, want %d", c, b)
	}
	for _, bad := range [][]int{{0, 1}, {2, 2}, {2, 4}, {2, -1}, nil} {
		if _, _, err := m.JoinGroup(workerOfRank(2), workers(bad)); err == nil {
			t.Errorf("rank 2 got a group of %v", bad)
		} else if others := !slices.Contains(bad, 2); others != strings.Contains(err.Error(),
			"the rank that asks for the group is not in it") {
			t.Errorf("of %v: %v", bad, err)
		}
	}
}

// Whatever the order in which ranks post, every position completes once, with the calls of that
// position.
func TestMatchingByPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size, rounds := rapid.IntRange(1, 6).Draw(t, "size"),
			rapid.IntRange(1, 20).Draw(t, "rounds")
		m := newMatcher(size)
		next, complete := make([]int, size), 0
		for range size * rounds {
			r := rapid.IntRange(0, size-1).Draw(t, "rank")
			for next[r] == rounds {
				r = (r + 1) % size
			}
			next[r]++
			for _, ready := range m.Post(posted(r, uint64(next[r]), sumOf(next[r])), nil) {
				complete++
				if ready.Err != nil || len(ready.Calls) != size {
					t.Fatalf("position %d: %v", complete, ready)
				}
				for i, p := range ready.Calls {
					if p.Worker != workerOfRank(i) || p.Ticket != uint64(complete) {
						t.Fatalf("position %d holds ticket %d of w%d at place %d", complete,
							p.Ticket, p.Worker, i)
					}
				}
			}
		}
		if complete != rounds || slices.Min(next) != rounds {
			t.Fatalf("%d of %d collectives completed", complete, rounds)
		}
	})
}

// Sends and receives meet by rank and tag in the order of posting, and an error names both where
// their lengths differ.
func TestTransfersMeetInOrder(t *testing.T) {
	m := newMatcher(3)
	send := func(ticket uint64, to int, tag uint32, n int) []collective.Ready {
		return m.Post(posted(0, ticket,
			collective.Call{Kind: collective.Send, DType: tensor.U8, Peer: to, Tag: tag,
				In: make([]byte, n), Shape: []int{n}}), nil)
	}
	recv := func(rank int, ticket uint64, tag uint32, n int) []collective.Ready {
		return m.Post(posted(rank, ticket,
			collective.Call{Kind: collective.Recv, DType: tensor.U8, Peer: 0, Tag: tag,
				Out: make([]byte, n), Shape: []int{n}}), nil)
	}
	send(1, 1, 0, 4)
	send(2, 1, 7, 8)
	send(3, 2, 0, 4)
	send(4, 1, 0, 5)
	for i, want := range []struct {
		rank   int
		tag    uint32
		n      int
		ticket uint64
	}{{1, 7, 8, 2}, {1, 0, 4, 1}, {2, 0, 4, 3}, {1, 0, 5, 4}} {
		got := recv(want.rank, uint64(i+1), want.tag, want.n)
		if len(got) != 1 || got[0].Err != nil || got[0].Calls[0].Ticket != want.ticket {
			t.Errorf("receive %d met %v, want ticket %d", i, got, want.ticket)
		}
	}
	send(5, 1, 0, 4)
	if got := recv(1, 9, 0, 6); len(got) != 1 || got[0].Err == nil ||
		!strings.Contains(got[0].Err.Error(),
			"send(u8[4], to 1, tag 0), rank 1 called recv(u8[6], from 0, tag 0)") {
		t.Errorf("lengths differ: %v", got)
	}
}

// Lengths that do not add up are found when all calls are there, and blamed on a rank.
func TestLengthsMustAddUp(t *testing.T) {
	call := func(kind collective.Kind, in, out int) *collective.Call {
		return &collective.Call{Kind: kind, DType: tensor.U8, Reduction: collective.Sum,
			In: make([]byte, in), Out: make([]byte, out), Shape: []int{in}}
	}
	for kind, calls := range map[collective.Kind][]*collective.Call{
		collective.AllGather: {call(collective.AllGather, 2, 5),
			call(collective.AllGather, 3, 4)},
		collective.ReduceScatter: {call(collective.ReduceScatter, 4, 2),
			call(collective.ReduceScatter, 4, 3)},
		collective.Gather:  {call(collective.Gather, 2, 4), call(collective.Gather, 3, 0)},
		collective.Scatter: {call(collective.Scatter, 6, 2), call(collective.Scatter, 0, 3)},
		collective.Broadcast: {call(collective.Broadcast, 6, 0),
			call(collective.Broadcast, 0, 3)},
		collective.AllToAll: {call(collective.AllToAll, 4, 4),
			call(collective.AllToAll, 4, 5)},
	} {
		var s collective.Schedule
		var member *collective.MemberError
		if err := s.Build(calls); !errors.As(err, &member) {
			t.Errorf("%v: got %v", kind, err)
		}
	}
}

// Calls that were made for more ranks, or for fewer, than there are make no schedule, and the error
// says whose they are.
func TestCallsForAnotherSize(t *testing.T) {
	pair := func(kind collective.Kind, peer int, splits []int) []*collective.Call {
		one := collective.Call{Kind: kind, DType: tensor.U8, Reduction: collective.Sum, Peer: peer,
			In: make([]byte, 6), Out: make([]byte, 6), Shape: []int{6}, Splits: splits}
		other := one
		return []*collective.Call{&one, &other}
	}
	even := pair(collective.AllToAll, 0, nil)
	even[0].Tag, even[1].Tag = 3, 2
	rootless := pair(collective.Reduce, 0, nil)
	rootless[0].Out = nil
	for what, calls := range map[string][]*collective.Call{
		"broadcast":  pair(collective.Broadcast, 2, nil),
		"no root":    pair(collective.Broadcast, -1, nil),
		"reduce":     pair(collective.Reduce, 2, nil),
		"gather":     pair(collective.Gather, 2, nil),
		"scatter":    pair(collective.Scatter, 2, nil),
		"one more":   pair(collective.AllToAll, 0, []int{2, 2, 2}),
		"one less":   pair(collective.AllToAll, 0, []int{6}),
		"even":       even,
		"other root": rootless,
	} {
		var s collective.Schedule
		var member *collective.MemberError
		if err := s.Build(calls); !errors.As(err, &member) || member.Member != 0 ||
			!strings.Contains(err.Error(), "have changed") || len(s.Moves) > 0 {
			t.Errorf("%s: %d moves, got %v", what, len(s.Moves), err)
		}
	}
}

// A receive from any rank gets the first send that waits, or the next one that is posted.
func TestReceiveFromAnyRank(t *testing.T) {
	m := newMatcher(4)
	send := func(rank int, ticket uint64) []collective.Ready {
		return m.Post(posted(rank, ticket,
			collective.Call{Kind: collective.Send, DType: tensor.U8, Peer: 0, In: make([]byte, 4),
				Shape: []int{4}}), nil)
	}
	recv := func(from int, ticket uint64) []collective.Ready {
		return m.Post(posted(0, ticket,
			collective.Call{Kind: collective.Recv, DType: tensor.U8, Peer: from,
				Out: make([]byte, 4), Shape: []int{4}}), nil)
	}
	// met fails the test unless got is one transfer: the send of a rank, met by the receive of rank
	// 0 that has this ticket.
	met := func(got []collective.Ready, from int, recvTicket uint64) {
		t.Helper()
		if len(got) != 1 || got[0].Err != nil || got[0].Calls[0].Worker != workerOfRank(from) ||
			got[0].Calls[1].Ticket != recvTicket || got[0].Calls[1].Call.Peer != from {
			t.Fatalf("got %v, want the send of rank %d with receive %d", got, from, recvTicket)
		}
	}
	// Sends that wait are taken in the order of posting, but for one that a receive asks for by
	// name.
	for _, r := range []int{3, 1, 2} {
		send(r, 1)
	}
	met(recv(1, 1), 1, 1)
	met(recv(collective.AnyRank, 2), 3, 2)
	met(recv(collective.AnyRank, 3), 2, 3)
	// So are receives that wait.
	for ticket, from := range []int{2, collective.AnyRank, 1} {
		if got := recv(from, uint64(4+ticket)); len(got) != 0 {
			t.Fatalf("a receive met %v", got)
		}
	}
	met(send(1, 2), 1, 5)
	met(send(1, 3), 1, 6)
	met(send(2, 2), 2, 4)
	// It waits for as long as anybody is left who may send.
	recv(collective.AnyRank, 7)
	for _, r := range []int{1, 3, 2} {
		got := m.LoseWorker(workerOfRank(r), "was killed", nil)
		if r != 2 && len(got) != 0 || r == 2 && (len(got) != 1 || got[0].Err == nil) {
			t.Fatalf("after the loss of rank %d: %v", r, got)
		}
	}
}
