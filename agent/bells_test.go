package agent_test

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// A worker that fills its bell, or changes how bells are read and written, stops nobody: its calls
// complete, and the agent ends.
func TestBellsDoNotStopTheAgent(t *testing.T) {
	w := joinRaw(t, startAgent(t, 1), 0)
	if err := unix.SetNonblock(w.agent.FD(), true); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		_, _ = unix.Read(w.bell.FD(), make([]byte, 8)) // what was rung before, if it was
		if _, err := unix.Write(w.bell.FD(), full[:]); err != nil {
			t.Fatal(err)
		}
		// A write blocks from here on, for the agent too.
		if err := unix.SetNonblock(w.bell.FD(), false); err != nil {
			t.Fatal(err)
		}
		w.control.SetWorkerParked(true)
		w.submit(validCall())
		if status, text := w.wait(); status != arena.Done {
			t.Errorf("status %d: %s", status, text)
		}
		if err := unix.SetNonblock(w.bell.FD(), true); err != nil {
			t.Fatal(err)
		}
	}
}

// A worker that takes what it can read from its descriptors wakes the agent no less for others.
func TestAWorkerSwallowsNoRingsOfOthers(t *testing.T) {
	a := startAgent(t, 2)
	w, thief := joinRaw(t, a, 0), joinRaw(t, a, 1)
	g := group.New(t.Context())
	g.Go("thief", func(ctx context.Context) error {
		for ctx.Err() == nil {
			_, _ = unix.Read(thief.agent.FD(), make([]byte, 8))
			arena.YieldCore()
		}
		return nil
	})
	alone, _ := w.request(&api.GroupRequest{Ranks: []int{0}})
	for range 500 {
		call := validCall()
		call.Group = alone.ID
		w.submit(call)
		if status, text := w.wait(); status != arena.Done {
			t.Fatalf("status %d: %s", status, text)
		}
	}
	g.Stop(nil)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
