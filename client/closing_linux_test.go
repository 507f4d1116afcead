package client

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// newSilentJob returns a job whose agent answers nothing, and the agent's side of the control
// socket, which the end of the test closes; the test closes the job. spin is how long a wait polls.
// A failure ends the test, so only its own goroutine may call it.
func newSilentJob(t *testing.T, spin time.Duration) (*Job, *arena.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := arena.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	conn, err := arena.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Close() })
	block, err := arena.NewSegment("control", arena.ControlBytes)
	if err != nil {
		t.Fatal(err)
	}
	var bells [2]*arena.Bell
	for i := range bells {
		if bells[i], err = arena.NewPolledBell(); err != nil {
			t.Fatal(err)
		}
	}
	j := &Job{tasks: group.New(context.Background()), conn: conn, block: block,
		buf: make([]byte, arena.MaxMessage)}
	j.calls = newCalls(arena.InitControl(block.Mem, 0), bells[0], bells[1], conn, spin)
	j.mem.segment = j.requestSegment
	j.Group = &Group{job: j, size: 2}
	return j, agent
}

// Close ends the waits of others with an error, however they wait.
func TestCloseWhileOthersWait(t *testing.T) {
	for _, spin := range []time.Duration{0, time.Millisecond} {
		for range 50 {
			j, _ := newSilentJob(t, spin)
			waits := group.New(context.Background())
			for range 3 {
				h := startCall[uint8](t.Context(), j, collective.Barrier, collective.None, 0, nil,
					nil, nil)
				waits.Go("wait", func(ctx context.Context) error {
					if err := h.Wait(ctx); !errors.Is(err, ErrClosed) {
						t.Errorf("Wait: %v, want ErrClosed", err)
					}
					return nil
				})
			}
			for !j.calls.control.WorkerParked() {
				arena.YieldCore()
			}
			for range 2 {
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := waits.Wait(); err != nil {
				t.Fatal(err)
			}
			if err := Barrier(t.Context(), j); !errors.Is(err, ErrClosed) {
				t.Errorf("a call after Close: %v, want ErrClosed", err)
			}
			if _, err := Empty[float32](j, 1<<20); !errors.Is(err, ErrClosed) {
				t.Errorf("Empty after Close: %v, want ErrClosed", err)
			}
		}
	}
}

// Room that is left in a segment is not handed out when the segment is unmapped.
func TestNoMemoryAfterClose(t *testing.T) {
	j, _ := newSilentJob(t, 0)
	j.mem.segment = func(n int) (*arena.Segment, uint32, error) {
		if j.calls.closed.Load() {
			return nil, 0, ErrClosed
		}
		s, err := arena.NewSegment("memory", int64(n))
		return s, 1, err
	}
	staging, err := j.mem.borrowStaging(1)
	if err != nil {
		t.Fatal(err)
	}
	j.mem.returnStaging(staging)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Empty[float32](j, 3); !errors.Is(err, ErrClosed) {
		t.Errorf("Empty after Close: %v, want ErrClosed", err)
	}
	if _, err := j.mem.borrowStaging(1); !errors.Is(err, ErrClosed) {
		t.Errorf("staging memory after Close: %v, want ErrClosed", err)
	}
}

// A call for whose output there is no memory gives the staging memory of its input back.
func TestCallWithoutMemoryKeepsNone(t *testing.T) {
	j, _ := newSilentJob(t, 0)
	asked := 0
	j.mem.segment = func(n int) (*arena.Segment, uint32, error) {
		if asked++; asked > 1 {
			return nil, 0, errors.New("no memory")
		}
		s, err := arena.NewSegment("memory", int64(n))
		return s, 1, err
	}
	in, out := make([]uint8, 1<<10), make([]uint8, 2*growth)
	h := startCall(t.Context(), j, collective.AllGather, collective.None, 0, in, out, nil)
	if err := h.Wait(t.Context()); err == nil {
		t.Error("a call has its output in memory that could not be had")
	}
	if free := j.mem.staging[stagingClass(len(in))]; len(free) != 1 {
		t.Errorf("%d staging buffers are free, want that of the input", len(free))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// A context that ends when the job is closed rings no bell: the descriptor may be another file's.
func TestALateContextRingsNoBell(t *testing.T) {
	j, _ := newSilentJob(t, 0)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	other, agent := newSilentJob(t, 0)
	j.calls.own = other.calls.own // what the descriptor is now
	j.calls.ringOwn()
	agent.Close()
	if err := j.calls.own.WaitOrHangUp(other.conn); !errors.Is(err, io.EOF) {
		t.Errorf("Park: %v, want io.EOF: the bell was rung", err)
	}
}

// A worker that is cut off hears why, from a call that waits and from every later one.
func TestAgentSaysWhyItHangsUp(t *testing.T) {
	job, agent := newSilentJob(t, 0)
	defer job.Close()
	h := startCall[uint8](t.Context(), job, collective.Barrier, collective.None, 0, nil, nil, nil)
	word := &api.ErrorReply{Problem: "contradicted others"}
	if err := agent.HangUp(api.Tag(word, 0)); err != nil {
		t.Fatal(err)
	}
	_, asked := job.Split(0)
	for _, err := range []error{h.Wait(t.Context()), job.Report(nil), asked} {
		if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "which contradicted others") {
			t.Errorf("got %v", err)
		}
	}
}

// Whoever makes room for a checkpoint when the agent is gone, or the job is closed, does not say
// that there is no memory, and that training goes on.
func TestTheEndIsNoLackOfMemory(t *testing.T) {
	job, agent := newSilentJob(t, 0)
	c := &checkpoints{writer: job.newWriter(), folder: snapshot.Folder{
		Log: func(line string) { t.Error(line) }}}
	agent.Close()
	c.makeRoom(1)
	if err := job.Close(); err != nil {
		t.Fatal(err)
	}
	c.makeRoom(1)
}
