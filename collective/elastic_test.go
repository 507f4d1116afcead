package collective_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// newElasticMatcher returns a Matcher for so many workers that goes on without lost ones.
func newElasticMatcher(size int) *collective.Matcher {
	m := newMatcher(size)
	m.SetElastic()
	return m
}

// workersOf lists the workers of calls, in their order.
func workersOf(calls []*collective.Posted) (ws []topo.WorkerID) {
	for _, p := range calls {
		ws = append(ws, p.Worker)
	}
	return ws
}

// stepCall returns an all-reduce of a step: with more, one after which the step goes on; else its
// last call.
func stepCall(more bool) collective.Call {
	c := sumOf(4)
	c.More, c.Step = more, !more
	return c
}

// What a lost worker posted for a step that it completed counts; what it posted for one that it did
// not is taken back.
func TestLostInMidStep(t *testing.T) {
	for _, completed := range []bool{false, true} {
		m := newElasticMatcher(3)
		for r := range 3 {
			if got := m.Post(posted(r, 1, stepCall(true)), nil); len(got) != 0 {
				t.Fatalf("a part of a step was given out before the step was complete: %v", got)
			}
		}
		if completed {
			m.Post(posted(2, 2, stepCall(false)), nil)
		}
		taken := m.LoseWorker(workerOfRank(2), "was killed", nil)
		m.Post(posted(0, 2, stepCall(false)), nil)
		got := m.Post(posted(1, 2, stepCall(false)), nil)
		want := workers([]int{0, 1})
		if completed {
			want = append(want, workerOfRank(2))
		}
		if len(got) != 2 || got[0].Err != nil || got[1].Err != nil {
			t.Fatalf("completed %v: %v", completed, got)
		}
		for _, r := range got {
			if diff := cmp.Diff(want, workersOf(r.Calls)); diff != "" {
				t.Errorf("completed %v: %s", completed, diff)
			}
		}
		if completed != (len(taken) == 0) {
			t.Errorf("completed %v: taken back: %v", completed, taken)
		}
		if !m.IsQuiet() {
			t.Error("something is left open")
		}
	}
}

// A collective whose result has the shape of the membership fails where a member is lost in the
// middle of the step that it is a part of, also if all have posted it; the step goes on.
func TestPartOfAStepThatNeedsEveryMember(t *testing.T) {
	for _, kind := range []collective.Kind{collective.AllToAll, collective.AllGather} {
		for _, withMemory := range []bool{false, true} {
			m := newElasticMatcher(3)
			for r := range 3 {
				c := stepCall(true)
				c.Kind, c.Reduction = kind, collective.None
				m.Post(posted(r, 1, c), nil)
			}
			lost := []topo.WorkerID{workerOfRank(2)}
			var failed []collective.Ready
			if withMemory {
				failed = m.LoseWorkersWithMemory(lost, "was lost", nil)
			} else {
				failed = m.LoseWorker(lost[0], "was killed", nil)
			}
			var err *collective.LostError
			if n := len(failed); n == 0 || !errors.As(failed[n-1].Err, &err) ||
				!slices.Equal(workersOf(failed[n-1].Calls), workers([]int{0, 1})) {
				t.Errorf("%v, with its memory %v: %v", kind, withMemory, failed)
			}
			m.Post(posted(0, 2, stepCall(false)), nil)
			got := m.Post(posted(1, 2, stepCall(false)), nil)
			if len(got) != 1 || got[0].Err != nil || !m.IsQuiet() {
				t.Errorf("%v, with its memory %v: the step: %v", kind, withMemory, got)
			}
		}
	}
}

// A part of a step, or an aside, that fails because it needs a lost member leaves the step open:
// what was posted before it counts with the last call, and with the members of that.
func TestFailedPartOfAStep(t *testing.T) {
	for _, flags := range []collective.Flags{{More: true}, {Aside: true}} {
		for _, late := range []bool{false, true} {
			m := newElasticMatcher(4)
			gather := sumOf(4)
			gather.Kind, gather.Flags = collective.AllGather, flags
			for r := range 4 {
				m.Post(posted(r, 1, stepCall(true)), nil)
			}
			var got []collective.Ready
			if late {
				got = m.LoseWorker(workerOfRank(3), "was killed", got)
			}
			for r := range 3 {
				got = m.Post(posted(r, 2, gather), got)
			}
			if !late {
				got = m.LoseWorker(workerOfRank(3), "was killed", got)
			}
			for _, r := range got {
				var lost *collective.LostError
				if !errors.As(r.Err, &lost) {
					t.Errorf("%+v, late %v: in the middle of the step %v is ready, error %v", flags,
						late, workersOf(r.Calls), r.Err)
				}
			}
			m.LoseWorker(workerOfRank(2), "was killed", nil)
			m.Post(posted(0, 3, stepCall(false)), nil)
			got = m.Post(posted(1, 3, stepCall(false)), nil)
			if len(got) != 2 || !m.IsQuiet() {
				t.Fatalf("%+v, late %v: the step: %v", flags, late, got)
			}
			for _, r := range got {
				if want := workers([]int{0, 1}); r.Err != nil ||
					!slices.Equal(workersOf(r.Calls), want) {
					t.Errorf("%+v, late %v: %v, error %v", flags, late, workersOf(r.Calls), r.Err)
				}
			}
		}
	}
}

// transferOf returns a send or a receive of four bytes with the partner and the tag.
func transferOf(kind collective.Kind, peer int, tag uint32) collective.Call {
	c := collective.Call{Kind: kind, DType: tensor.U8, Peer: peer, Tag: tag, Shape: []int{4}}
	if kind == collective.Send {
		c.In = make([]byte, 4)
	} else {
		c.Out = make([]byte, 4)
	}
	return c
}

// A receive from any rank, and what a lost worker has left, can wait for ever: neither holds up a
// change of members, after which the receive goes on, and the rest has failed. A receive from a
// member is waited for.
func TestMembersChangeWhileTransfersWait(t *testing.T) {
	m := newElasticMatcher(4)
	m.Post(posted(3, 1, transferOf(collective.Recv, collective.AnyRank, 1)), nil)
	m.Post(posted(0, 1, transferOf(collective.Send, 2, 2)), nil)
	m.LoseWorker(workerOfRank(0), "was killed", nil)
	if !m.IsQuiet() {
		t.Error("what may wait for ever holds up the members")
	}
	m.Post(posted(1, 1, transferOf(collective.Recv, 2, 3)), nil)
	if m.IsQuiet() {
		t.Error("a receive from a member holds up nothing")
	}
	if got := m.Post(posted(2, 1, transferOf(collective.Send, 1, 3)), nil); len(got) != 1 ||
		got[0].Err != nil || !m.IsQuiet() {
		t.Errorf("the transfer between members: %v", got)
	}
	var lost *collective.LostError
	failed := m.Advance(workers([]int{3, 1, 2}), nil)
	if len(failed) != 1 || !errors.As(failed[0].Err, &lost) ||
		!slices.Equal(workersOf(failed[0].Calls), workers([]int{0})) {
		t.Errorf("with the members that follow fails %v", failed)
	}
	got := m.Post(posted(1, 2, transferOf(collective.Send, 0, 1)), nil) // to worker 3
	if len(got) != 1 || got[0].Err != nil || got[0].Calls[1].Call.Peer != 1 ||
		!slices.Equal(workersOf(got[0].Calls), workers([]int{1, 3})) {
		t.Errorf("the receive from any rank: %v", got)
	}
}

// A worker that takes part once more has none of the transfers that it made before: what is sent to
// it from then on is not for them.
func TestTransfersBeforeAWorkerComesBack(t *testing.T) {
	m := newElasticMatcher(3)
	m.Post(posted(2, 1, transferOf(collective.Recv, 1, 0)), nil)
	m.LoseWorker(workerOfRank(2), "asks again to take part", nil)
	if !m.IsQuiet() {
		t.Error("its receive from before keeps the worker out")
	}
	failed := m.Advance(workers([]int{0, 1, 2}), nil)
	if len(failed) != 1 || failed[0].Err == nil || failed[0].Calls[0].Ticket != 1 {
		t.Errorf("when it comes back fails %v", failed)
	}
	if got := m.Post(posted(1, 1, transferOf(collective.Send, 2, 0)), nil); len(got) > 0 {
		t.Errorf("what is sent to it then is for %v", got)
	}
	if got := m.Post(posted(2, 2, transferOf(collective.Recv, 1, 0)), nil); len(got) != 1 ||
		got[0].Err != nil || got[0].Calls[1].Ticket != 2 {
		t.Errorf("its next receive: %v", got)
	}
}

// A transfer that waits when the members change is for the workers that were meant, or fails.
func TestTransfersAreForTheWorkersThatWereMeant(t *testing.T) {
	m := newElasticMatcher(4)
	for ticket, peer := range []int{1, 2, 0} { // from a worker that moves, stays, and leaves
		m.Post(posted(3, uint64(ticket+1), transferOf(collective.Recv, peer, 0)), nil)
	}
	m.Post(posted(0, 1, transferOf(collective.Recv, 3, 0)), nil)
	failed := m.Advance(workers([]int{1, 3, 2}), nil)
	var partner *collective.PartnerError
	if len(failed) != 2 || !slices.Equal(workersOf(failed[0].Calls), workers([]int{0})) ||
		!errors.As(failed[1].Err, &partner) || partner.Partner != workerOfRank(0) ||
		failed[1].Calls[0].Ticket != 3 {
		t.Errorf("with the members that follow fails %v", failed)
	}
	for from, ticket := range map[int]uint64{1: 1, 2: 2} {
		got := m.Post(posted(from, 9, transferOf(collective.Send, 1, 0)), nil)
		if len(got) != 1 || got[0].Err != nil || got[0].Calls[1].Ticket != ticket {
			t.Errorf("what worker %d sends is for %v, not for receive %d", from, got, ticket)
		}
	}
}

// A lost worker is forgotten when no group has it any more, and is known to be gone until then.
func TestForget(t *testing.T) {
	m := newElasticMatcher(3)
	list := []topo.WorkerID{workerOfRank(1), workerOfRank(2)}
	for _, w := range list {
		if _, _, err := m.JoinGroup(w, list); err != nil {
			t.Fatal(err)
		}
	}
	m.LoseWorker(workerOfRank(2), "was killed", nil)
	for _, rid := range []func(){
		func() { m.Advance([]topo.WorkerID{workerOfRank(0), workerOfRank(1)}, nil) },
		func() { m.LeaveGroup(workerOfRank(1), 1); m.RemoveUnusedGroups() },
	} {
		if m.Forget(workerOfRank(2)) || !m.IsLost(workerOfRank(2)) {
			t.Error("a lost worker is forgotten that a group has")
		}
		rid()
	}
	if !m.Forget(workerOfRank(2)) || m.IsLost(workerOfRank(2)) {
		t.Error("a lost worker is known that no group has")
	}
}

// An aside of a step completes as soon as all have posted it, and what was posted before it stays a
// part of the step.
func TestAside(t *testing.T) {
	m := newElasticMatcher(3)
	for r := range 3 {
		m.Post(posted(r, 1, stepCall(true)), nil)
	}
	var got []collective.Ready
	for r := range 3 {
		c := sumOf(4)
		c.Aside = true
		got = m.Post(posted(r, 2, c), got)
	}
	if len(got) != 1 || got[0].Err != nil || !got[0].Calls[0].Call.Aside || len(got[0].Calls) != 3 {
		t.Fatalf("ready after an aside: %v", got)
	}
	m.LoseWorker(workerOfRank(2), "was killed", nil)
	m.Post(posted(0, 3, stepCall(false)), nil)
	got = m.Post(posted(1, 3, stepCall(false)), nil)
	if len(got) != 2 || !slices.Equal(workersOf(got[0].Calls), workers([]int{0, 1})) ||
		!slices.Equal(workersOf(got[1].Calls), workers([]int{0, 1})) {
		t.Errorf("a step with an aside, of which one was lost after the aside: %v", got)
	}
}

// The last one that a collective waits for dies: the others go on at once.
func TestLossMakesReady(t *testing.T) {
	m := newElasticMatcher(3)
	m.Post(posted(0, 1, stepCall(false)), nil)
	m.Post(posted(2, 1, stepCall(false)), nil)
	got := m.LoseWorker(workerOfRank(1), "was killed", nil)
	if len(got) != 1 || got[0].Err != nil ||
		!slices.Equal(workersOf(got[0].Calls), workers([]int{0, 2})) {
		t.Errorf("got %v", got)
	}
}

// When the root of a broadcast is lost before it gave anything, the lowest rank's own value is what
// all get.
func TestBroadcastWithoutItsRoot(t *testing.T) {
	m := newElasticMatcher(3)
	m.LoseWorker(workerOfRank(0), "was killed", nil)
	var ready []collective.Ready
	for r := 1; r < 3; r++ {
		ready = m.Post(posted(r, 1,
			collective.Call{Kind: collective.Broadcast, DType: tensor.U8, Peer: 0,
				Out: []byte{byte(r)}, Shape: []int{1}}), ready)
	}
	if len(ready) != 1 || ready[0].Err != nil {
		t.Fatalf("got %v", ready)
	}
	calls := []*collective.Call{&ready[0].Calls[0].Call, &ready[0].Calls[1].Call}
	var s collective.Schedule
	if err := s.Build(calls); err != nil {
		t.Fatal(err)
	}
	runChunks(rand.New(rand.NewPCG(1, 1)), &s, calls)
	if got := calls[1].Out; !bytes.Equal(got, []byte{1}) {
		t.Errorf("rank 2 has %v, want rank 1's value", got)
	}
}

// A collective whose result changes its shape with the members cannot go on without one.
func TestAllGatherFailsWithALostMember(t *testing.T) {
	m := newElasticMatcher(2)
	m.Post(posted(0, 1,
		collective.Call{Kind: collective.AllGather, DType: tensor.U8, In: []byte{1},
			Out: []byte{0, 0}, Shape: []int{1}}), nil)
	got := m.LoseWorker(workerOfRank(1), "was killed", nil)
	var lost *collective.LostError
	if len(got) != 1 || !errors.As(got[0].Err, &lost) {
		t.Errorf("got %v", got)
	}
}

// simWorker is a worker of TestStepsAreAtomic: it posts the calls of its steps one after the other.
type simWorker struct {
	id     topo.WorkerID
	step   int    // the step that it is in, from 0
	call   int    // calls that it has posted in the step
	ticket uint64 // its last call of all
	alive  bool
}

// Each step of TestStepsAreAtomic has callsPerStep calls, of which number anAside, counted from 1,
// is an aside.
const callsPerStep, anAside = 4, 2

// Whatever workers die and join at whatever point: every step has the same contributors in all of
// its calls, every living member is among them, and nobody contributes to a step twice.
func TestStepsAreAtomic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "size")
		m := newElasticMatcher(size)
		var members []*simWorker
		for r := range size {
			members = append(members, &simWorker{id: workerOfRank(r), alive: true})
		}
		next, step := workerOfRank(size), 0
		var contributors [][]topo.WorkerID // by call of the current step
		// deal takes up what a method of m returned, and fails the test where it is not as the
		// test says; at the last call of a step it begins the next one.
		deal := func(ready []collective.Ready) {
			for _, r := range ready {
				if r.Err != nil {
					if len(r.Calls) != 1 || !m.IsLost(r.Calls[0].Worker) {
						t.Fatalf("a living worker got %v", r.Err)
					}
					continue
				}
				if r.Calls[0].Call.Aside {
					continue
				}
				contributors = append(contributors, workersOf(r.Calls))
				if !r.Calls[0].Call.Step {
					continue
				}
				if len(contributors) != callsPerStep-1 {
					t.Fatalf("step %d has %d calls", step, len(contributors))
				}
				for _, c := range contributors {
					if !slices.Equal(c, contributors[0]) {
						t.Fatalf("step %d has contributors %v", step, contributors)
					}
				}
				for _, w := range members {
					if w.alive && !slices.Contains(contributors[0], w.id) {
						t.Fatalf("step %d lacks w%d: %v", step, w.id, contributors[0])
					}
				}
				step, contributors = step+1, nil
			}
		}
		// post has a worker post its next call.
		post := func(w *simWorker) {
			w.ticket++
			w.call++
			c := stepCall(w.call < callsPerStep)
			if w.call == anAside {
				c.More, c.Aside = false, true
			}
			if w.call == callsPerStep {
				w.call, w.step = 0, w.step+1
			}
			deal(m.Post(&collective.Posted{Worker: w.id, Ticket: w.ticket, Call: c}, nil))
		}
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			w := members[rapid.IntRange(0, len(members)-1).Draw(t, "who")]
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what == 0 && w.alive:
				w.alive = false
				deal(m.LoseWorker(w.id, "was killed", nil))
			case what == 1 && m.IsQuiet():
				members = slices.DeleteFunc(members, func(w *simWorker) bool { return !w.alive })
				members = append(members, &simWorker{id: next, step: step, alive: true})
				next++
				var ids []topo.WorkerID
				for _, w := range members {
					ids = append(ids, w.id)
				}
				m.Advance(ids, nil)
			case w.alive && w.step == step: // else it waits for the step to end
				post(w)
			}
			if !slices.ContainsFunc(members, func(w *simWorker) bool { return w.alive }) {
				return
			}
		}
		last := step
		for _, w := range members { // everybody finishes the step: nothing may be stuck
			for w.alive && w.step == last {
				post(w)
			}
		}
		if !m.IsQuiet() {
			t.Fatal("all living members finished their step, and something is still open")
		}
	})
}

// Held lists the parts of the step under way that all members have posted, up to the first one that
// a member lacks, and the world is not quiet as long as there are any.
func TestHeld(t *testing.T) {
	m := newElasticMatcher(3)
	for ticket := uint64(1); ticket <= 3; ticket++ {
		for r := range 3 {
			m.Post(posted(r, ticket, stepCall(true)), nil)
		}
	}
	m.Post(posted(0, 4, stepCall(true)), nil)
	for from, want := range []int{3, 2, 1, 0, 0} {
		held := m.Held(from, nil)
		if len(held) != want || want > 0 && held[0].Calls[0].Ticket != uint64(from+1) {
			t.Errorf("from %d on, %d parts are held, want %d", from, len(held), want)
		}
	}
	if m.IsQuiet() {
		t.Error("the world is quiet in the middle of a step")
	}
	m.LoseWorker(workerOfRank(1), "was killed", nil)
	if held := m.Held(0, nil); len(held) != 0 {
		t.Errorf("after a loss %d parts are held with all members", len(held))
	}
}
