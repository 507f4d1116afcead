package agent_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// joinAllRaw has all n workers of an agent join, and returns them by rank.
func joinAllRaw(t *testing.T, a *agent.Agent, n int) (workers []*rawWorker) {
	t.Helper()
	for rank := range n {
		workers = append(workers, joinRaw(t, a, rank))
	}
	return workers
}

// TestTransfersInTheViewBefore: a worker makes sends before it hears that a step has ended with
// fewer members. They are for the workers that had these ranks when it heard of the members last.
func TestTransfersInTheViewBefore(t *testing.T) {
	a := startAgent(t, 5)
	workers := joinAllRaw(t, a, 5)
	step := validCall()
	step.Step = true
	endStep := func(want arena.Status) {
		t.Helper()
		for _, w := range workers {
			w.submit(step)
		}
		for _, w := range workers {
			if status, text := w.wait(); status != want {
				t.Fatalf("status %d, want %d: %s", status, want, text)
			}
		}
	}
	transfer := func(kind collective.Kind, peer int, view uint32) arena.Descriptor {
		d := validCall()
		d.Kind, d.Reduction, d.Peer, d.View = uint8(kind), 0, uint32(int32(peer)), view
		if kind == collective.Send {
			d.Out = arena.Ref{}
		} else {
			d.In = arena.Ref{}
		}
		return d
	}
	endStep(arena.Done)
	sender, others := workers[2], workers[3:] // of ranks 3 and 4
	before := uint32(sender.joined.Generation)
	for _, lost := range []int{0, 1} { // in two steps, of which the sender hears nothing
		a.WorkerLost(lost, "was killed by SIGKILL")
		workers = workers[1:]
		endStep(arena.Changed)
	}
	now := uint32(sender.control.View().Generation)
	if now != before+2 {
		t.Fatalf("generation %d after %d", now, before)
	}
	for i, w := range others {
		sender.seg.Mem[0] = byte(7 + i)
		w.submit(transfer(collective.Recv, 0, now)) // the sender has rank 0 now
		sender.submit(transfer(collective.Send, 3+i, before))
		for _, of := range []*rawWorker{sender, w} {
			if status, text := of.wait(); status != arena.Done {
				t.Fatalf("transfer %d: status %d: %s", i, status, text)
			}
		}
		if w.seg.Mem[0] != byte(7+i) {
			t.Errorf("rank %d got the message for another one", 3+i)
		}
	}
	for peer, says := range map[int]string{0: "worker 0, for which this recv", 1: "worker 1",
		5: "rank 5 is outside a group of 5"} {
		want := arena.Lost
		if peer == 5 {
			want = arena.Failed
		}
		sender.submit(transfer(collective.Recv, peer, before))
		if status, text := sender.wait(); status != want || !strings.Contains(text, says) {
			t.Errorf("from rank %d: status %d: %s", peer, status, text)
		}
	}
	endStep(arena.Done)
}

// TestSenderInTheViewThatFollows: a send and a receive from any rank meet when a step has ended,
// and before its end counts on all hosts. The rank that the receive tells is of the members that
// there are then.
func TestSenderInTheViewThatFollows(t *testing.T) {
	c := startHosts(t, 3, []int{2, 1}, agent.Orders{})
	var workers [3]*rawWorker
	var on [3]*agent.Agent // by worker: the agent of its host
	for range workers {
		s := <-c.started
		on[s.number] = s.agent
		workers[s.number] = joinRawWithToken(t, s.agent, s.number, s.token)
	}
	from, to := 1, 2
	if on[from] != c.head {
		from, to = to, from
	}
	if on[from] != c.head || on[to] == c.head {
		t.Fatal("worker 0 is not on the first host")
	}
	submit := func(w int, list ...arena.Descriptor) { // all at once
		for _, d := range list {
			workers[w].ticket++
			d.Ticket = workers[w].ticket
			workers[w].control.WriteDescriptor(&d)
		}
		workers[w].control.SetTail(workers[w].ticket)
		workers[w].agent.Ring()
	}
	wait := func(w int, ticket uint64, want arena.Status) (text string) {
		t.Helper()
		status, text := workers[w].waitFor(ticket)
		if status != want {
			t.Fatalf("worker %d: status %d, want %d: %s", w, status, want, text)
		}
		return text
	}
	step, send, recv := validCall(), validCall(), validCall()
	step.Step = true
	send.Kind, send.Reduction, send.Peer, send.Out = uint8(collective.Send), 0, uint32(to),
		arena.Ref{}
	recv.Kind, recv.Reduction, recv.Peer, recv.In = uint8(collective.Recv), 0, 1<<32-1, arena.Ref{}
	for w := range workers {
		submit(w, step)
	}
	for w := range workers {
		wait(w, 1, arena.Done)
	}
	c.head.WorkerLost(0, "was killed by SIGKILL")
	send.View = uint32(workers[from].control.View().Generation)
	submit(to, step, recv)
	for all := 0; all != 2; all, _ = c.head.CountWaits() { // in both calls, for the other worker
		runtime.Gosched()
	}
	submit(from, step, send) // so the head has the send before the other host has ended the step
	wait(from, 2, arena.Changed)
	wait(from, 3, arena.Done)
	wait(to, 2, arena.Changed)
	// the rank is where a call that fails has the length of its text
	source := len(wait(to, 3, arena.Done))
	if now := workers[from].control.View().Rank; source != now || now != from-1 {
		t.Errorf("received from rank %d, which worker %d has not: it has %d", source, from, now)
	}
}

// TestMembersChangeWhileAReceiveWaits: a worker has a receive from any rank open when steps end,
// and another one is lost whose message nobody has received. The members change all the same, and
// the receive gets what is sent later.
func TestMembersChangeWhileAReceiveWaits(t *testing.T) {
	a := startAgent(t, 3)
	workers := []*rawWorker{joinRaw(t, a, 0), joinRaw(t, a, 1), joinRaw(t, a, 2)}
	step, send, recv := validCall(), validCall(), validCall()
	step.Step = true
	send.Kind, send.Reduction, send.Out = uint8(collective.Send), 0, arena.Ref{}
	recv.Kind, recv.Reduction, recv.Peer, recv.In = uint8(collective.Recv), 0, 1<<32-1, arena.Ref{}
	endStep := func(workers []*rawWorker, want arena.Status) {
		t.Helper()
		for _, w := range workers {
			w.submit(step)
		}
		for _, w := range workers {
			if status, text := w.wait(); status != want {
				t.Fatalf("status %d, want %d: %s", status, want, text)
			}
		}
	}
	endStep(workers, arena.Done)
	waits := workers[1].submit(recv)
	send.Peer, send.Tag = 2, 7
	workers[0].submit(send)
	a.WorkerLost(0, "was killed by SIGKILL")
	endStep(workers[1:], arena.Changed)
	send.Peer, send.Tag = 0, 0 // the rank of the worker that receives
	send.View = uint32(workers[2].control.View().Generation)
	workers[2].submit(send)
	if status, text := workers[2].wait(); status != arena.Done {
		t.Fatalf("the send: status %d: %s", status, text)
	}
	// the rank that has sent is where a call that fails has the length of its text
	if status, text := workers[1].waitFor(waits); status != arena.Done || len(text) != 1 {
		t.Errorf("the receive: status %d, from rank %d", status, len(text))
	}
	endStep(workers[1:], arena.Done)
}

// TestGroupsInTheViewBefore: a worker makes a group before it hears that a step has ended with
// fewer members. The group is of the workers that had these ranks when it heard of the members
// last, and so the same that the others make by the ranks of now.
func TestGroupsInTheViewBefore(t *testing.T) {
	a := startAgent(t, 4)
	workers := joinAllRaw(t, a, 4)
	step := validCall()
	step.Step = true
	for _, want := range []arena.Status{arena.Done, arena.Changed} {
		for _, w := range workers {
			w.submit(step)
		}
		for i, w := range workers {
			if status, text := w.wait(); status != want {
				t.Fatalf("worker %d, status %d, want %d: %s", i, status, want, text)
			}
		}
		if want == arena.Done {
			a.WorkerLost(0, "was killed by SIGKILL")
			workers = workers[1:]
		}
	}
	first, last := workers[0], workers[2] // of ranks 1 and 3, which are 0 and 2 now
	before, now := first.joined.Generation, last.control.View().Generation
	old, _ := first.request(&api.GroupRequest{Ranks: []int{1, 3}, View: before})
	for _, view := range []uint64{now, 0} {
		if view == 0 { // one more of each
			old, _ = first.request(&api.GroupRequest{Ranks: []int{1, 3}, View: before})
		}
		same, _ := last.request(&api.GroupRequest{Ranks: []int{0, 2}, View: view})
		if old.ID == 0 || old.Rank != 0 || same.ID != old.ID || same.Rank != 1 || same.Size != 2 {
			t.Errorf("in view %d of %d: %+v and %+v", view, now, old, same)
		}
	}
	for rank, says := range map[int]string{0: "worker 0, which had rank 0, has left the members",
		4: "4 is no rank of the job"} {
		r, _ := first.request(&api.GroupRequest{Ranks: []int{1, rank}, View: before})
		if r.Field != "ranks" || !strings.Contains(r.Error, says) {
			t.Errorf("with rank %d: %+v", rank, r)
		}
	}
}

// TestEvenBlocksInTheViewBefore: workers make an all-to-all before they hear that a step has ended
// with fewer members. Its elements split evenly over these too, but into other blocks: it fails,
// and the workers go on.
func TestEvenBlocksInTheViewBefore(t *testing.T) {
	a := startAgent(t, 3)
	workers := []*rawWorker{joinRaw(t, a, 0), joinRaw(t, a, 1), joinRaw(t, a, 2)}
	all := func(d arena.Descriptor, want arena.Status, says string) {
		t.Helper()
		for _, w := range workers {
			w.submit(d)
		}
		for i, w := range workers {
			if status, text := w.wait(); status != want || !strings.Contains(text, says) {
				t.Errorf("worker %d of %d, status %d, want %d: %s", i, len(workers), status, want,
					text)
			}
		}
	}
	step, blocks := validCall(), validCall()
	step.Step = true
	blocks.Kind, blocks.Reduction, blocks.Tag = uint8(collective.AllToAll), 0, 3
	blocks.In.Count, blocks.Out.Count, blocks.Out.Offset, blocks.Shape[0] = 12, 12, 64, 12
	all(step, arena.Done, "")
	all(blocks, arena.Done, "")
	a.WorkerLost(0, "was killed by SIGKILL")
	workers = workers[1:]
	all(step, arena.Changed, "")
	all(blocks, arena.Failed, "even blocks for 3 ranks in a group of 2")
	blocks.Tag = 2
	all(blocks, arena.Done, "")
}
