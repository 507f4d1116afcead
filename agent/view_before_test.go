package agent_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// TestTransfersInTheViewBefore: a worker makes sends before it hears that a step has ended with
// fewer members. They are for the workers that had these ranks when it heard of the members last.
func TestTransfersInTheViewBefore(t *testing.T) {
	a := startAgent(t, 5)
	var workers []*rawWorker
	for rank := range 5 {
		workers = append(workers, joinRaw(t, a, rank))
	}
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
