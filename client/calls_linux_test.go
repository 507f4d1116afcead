package client

import (
	"context"
	"errors"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// Of several goroutines that wait for the same call one fetches the result, and all find it there.
func TestWaitFetchesTheResultOnce(t *testing.T) {
	block, err := arena.NewSegment("control", arena.ControlBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer block.Close()
	k := newCalls(arena.InitControl(block.Mem, 0), nil, nil, nil, 0)
	for ticket := uint64(1); ticket <= 1000; ticket++ {
		fetched := 0
		h := &Handle{calls: k, ticket: ticket, finish: func(bool) {
			arena.YieldCore() // to the other one
			fetched++
		}}
		k.control.Complete(ticket, arena.Done, "")
		g := group.New(context.Background())
		for range 2 {
			g.Go("wait", func(ctx context.Context) error {
				if err := h.Wait(ctx); err != nil {
					return err
				}
				if fetched != 1 {
					t.Errorf("call %d: the result was fetched %d times when Wait returned", ticket,
						fetched)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
}

// The end of a context ends a call also where it waits for the slot of an older call, which nobody
// completes.
func TestAContextEndsTheWaitForASlot(t *testing.T) {
	job, _ := newSilentJob(t, 0)
	defer job.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	for i := range arena.Slots + 2 {
		if err := Barrier(ended, job); !errors.Is(err, context.Canceled) {
			t.Fatalf("call %d: %v", i, err)
		}
	}
}

// Calls that contexts have ended give their staging memory back when they are complete, and leave
// the slices of the program alone.
func TestMemoryOfCallsThatContextsHaveEnded(t *testing.T) {
	job, _ := newSilentJob(t, 0)
	defer job.Close()
	segments := 0
	job.mem.segment = func(n int) (*arena.Segment, uint32, error) {
		segments++
		s, err := arena.NewSegment("memory", int64(n))
		return s, uint32(segments), err
	}
	ended, end := context.WithCancel(t.Context())
	end()
	x := make([]uint8, growth+1) // it gets a segment of its own
	for ticket := uint64(1); ticket <= 5; ticket++ {
		x[0] = uint8(ticket)
		if err := AllReduce(ended, job, x, collective.Sum); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		x[0] = 99
		job.calls.control.Complete(ticket, arena.Done, "")
	}
	if segments != 1 || x[0] != 99 {
		t.Errorf("5 calls have taken %d segments, and x begins with %d", segments, x[0])
	}
}

// A call that has failed has no result: the slices of the program stay as they are.
func TestFailedCallsLeaveSlicesAlone(t *testing.T) {
	job, _ := newSilentJob(t, 0)
	defer job.Close()
	job.mem.segment = func(n int) (*arena.Segment, uint32, error) {
		s, err := arena.NewSegment("memory", int64(n))
		return s, 1, err
	}
	all := []arena.Status{arena.Done, arena.Failed, arena.Lost, arena.Changed}
	for ticket, status := range all {
		in, out := []uint8{1, 2}, []uint8{8, 9}
		h := AllReduceIntoAsync(job, out, in, collective.Sum)
		job.calls.control.Complete(uint64(ticket+1), status, "")
		err := h.Wait(t.Context())
		if failed := errors.As(err, new(*CallError)); failed == status.OK() ||
			failed != (out[1] == 9) {
			t.Errorf("status %d: %v, and the output is %v", status, err, out)
		}
	}
}

// watched is a context that tells whoever reads begun that somebody waits until it ends.
type watched struct {
	context.Context
	begun chan<- struct{} // has room for all who may wait
}

// Done tells of the wait.
func (c watched) Done() <-chan struct{} {
	c.begun <- struct{}{}
	return c.Context.Done()
}

// Of two goroutines that wait for the slot of the oldest call one gets it. The other one waits for
// the next slot, and does not write over the call there.
func TestWhoHasWaitedTakesASlotThatIsFree(t *testing.T) {
	job, _ := newSilentJob(t, 0)
	defer job.Close()
	start := func(ctx context.Context) *Handle {
		return startCall[uint8](ctx, job, collective.Barrier, collective.None, 0, nil, nil, nil)
	}
	for range arena.Slots {
		start(t.Context())
	}
	complete := func(ticket uint64) {
		job.calls.control.Complete(ticket, arena.Done, "")
		job.calls.own.Ring()
	}
	made, g := make(chan *Handle, 2), group.New(t.Context())
	for range 2 {
		begun := make(chan struct{}, 100)
		g.Go("call", func(ctx context.Context) error {
			made <- start(watched{ctx, begun})
			return nil
		})
		<-begun
	}
	complete(1)
	first := <-made
	complete(first.ticket)
	complete(2)
	second := <-made
	if err := g.Wait(); err != nil || first.ticket != arena.Slots+1 ||
		second.ticket != arena.Slots+2 {
		t.Fatalf("calls %d and %d: %v", first.ticket, second.ticket, err)
	}
	for slot, h := range job.calls.users {
		if h != nil && int((h.ticket-1)%arena.Slots) != slot {
			t.Errorf("call %d counts as the user of slot %d", h.ticket, slot)
		}
	}
}
