package agent_test

import (
	"context"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// A worker whose program loops over the epochs is let in during its own epoch only, or with the
// step that ends it. One that waits longer, as a spare, is told when its epoch is over, asks again
// in the next, and hears that it was let in meanwhile.
func TestEntersInAnEpoch(t *testing.T) {
	a := startAgentOf(t, context.Background(), agent.Config{Size: 1, Spares: 1})
	member := joinRaw(t, a, 0)
	if r, _ := member.request(
		&api.DataRequest{Samples: 6, Batch: 2}); r.Type != "data" {
		t.Fatalf("stating the data: %+v", r)
	}
	step := validCall()
	step.Step = true
	steps := func(n int, want arena.Status) {
		t.Helper()
		for range n {
			member.submit(step)
			if status, text := member.wait(); status != want {
				t.Fatalf("a step: status %d, %q", status, text)
			}
		}
	}
	steps(4, arena.Done) // the first epoch, and a step of the second
	token := a.ExpectWorker(1, true)
	a.WorkerStarted(1)
	late := joinRawWithToken(t, a, 1, token)
	asks := func(epoch uint32) uint64 {
		return late.submit(arena.Descriptor{Kind: arena.KindEnter, Tag: epoch + 1})
	}
	answered := func(ticket uint64, want arena.Status) {
		t.Helper()
		if status, text := late.waitFor(ticket); status != want {
			t.Fatalf("asking: status %d, %q; want %d", status, text, want)
		}
	}
	answered(asks(0), arena.Done)
	second := asks(1)
	awaitStatus(t, a, func(s agent.Status) bool { return len(s.Waiting) > 0 })
	steps(1, arena.Done)
	if late.control.Completion(second) != 0 {
		t.Fatal("it is answered within its epoch")
	}
	steps(1, arena.Done)
	answered(second, arena.Done)
	if err := a.Resize(2, "the test"); err != nil {
		t.Fatal(err)
	}
	steps(1, arena.Changed) // lets it in, of whom no call waits
	answered(asks(2), arena.Changed)
	if v := late.control.View(); v.Size != 2 || v.Rank != 1 || !v.New {
		t.Errorf("the worker is told %+v", v)
	}
}

// The step that ends an epoch lets in who asks within it: then all of them are between the same two
// epochs.
func TestEntersWithTheEndOfAnEpoch(t *testing.T) {
	a := startAgent(t, 1)
	member := joinRaw(t, a, 0)
	if r, _ := member.request(
		&api.DataRequest{Samples: 2, Batch: 2}); r.Type != "data" {
		t.Fatalf("stating the data: %+v", r)
	}
	step := validCall()
	step.Step = true
	member.submit(step)
	member.wait()
	if err := a.Resize(2, "the test"); err != nil {
		t.Fatal(err)
	}
	token := a.ExpectWorker(1, true)
	a.WorkerStarted(1)
	late := joinRawWithToken(t, a, 1, token)
	late.submit(arena.Descriptor{Kind: arena.KindEnter, Tag: 2})
	awaitStatus(t, a, func(s agent.Status) bool { return s.Entering > 0 })
	member.submit(step)
	if status, text := late.wait(); status != arena.Changed {
		t.Errorf("asking: status %d, %q", status, text)
	}
}
