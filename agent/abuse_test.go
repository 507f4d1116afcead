package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/version"
)

// rawWorker speaks the protocol by hand, to speak it wrongly too. One goroutine at a time uses it.
type rawWorker struct {
	t       testing.TB // ended by requests that fail
	conn    *arena.Conn
	control *arena.Control
	bell    *arena.Bell    // wakes this worker
	agent   *arena.Bell    // wakes the agent
	seg     *arena.Segment // segment 1 of the worker
	ticket  uint64         // of the newest call; 0 = there is none
	joined  rawReply       // answer to the join
}

// rawReply has the fields of all replies that tests look at.
type rawReply struct {
	api.Header
	api.ShapeReply
	ID         uint32 `json:"id"`
	Rank       int    `json:"rank"`
	Size       int    `json:"size"`
	Generation uint64 `json:"generation"`
	Late       bool   `json:"late"`
	Crowded    bool   `json:"crowded"`
	PieceBytes int    `json:"piece_bytes"`
	PiecesOpen int    `json:"pieces_open"`
	Bytes      int64  `json:"bytes"`
	Step       uint64 `json:"step"`
	Seed       uint64 `json:"seed"`
	Folder     string `json:"folder"`
	Damaged    string `json:"damaged"`
	Done       bool   `json:"done"`
	Error      string `json:"error"`
	Field      string `json:"field"`
}

// request sends a request, any value that can be JSON, and blocks until it is answered. The caller
// owns the descriptors.
func (w *rawWorker) request(message any) (rawReply, []int) {
	w.t.Helper()
	if m, is := message.(api.Message); is {
		message = api.Tag(m, 0)
	}
	if err := w.conn.Send(message); err != nil {
		w.t.Fatal(err)
	}
	b, fds, err := w.conn.Receive(make([]byte, arena.MaxMessage))
	if err != nil {
		w.t.Fatalf("no answer to %v: %v", message, err)
	}
	var r rawReply
	if err := json.Unmarshal(b, &r); err != nil {
		w.t.Fatal(err)
	}
	return r, fds
}

// dialRaw connects a worker, which has not joined yet; it hangs up at the end of the test.
func dialRaw(t testing.TB, a *agent.Agent) *rawWorker {
	t.Helper()
	conn, err := arena.Dial(context.Background(), a.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawWorker{t: t, conn: conn}
}

// joinRaw is joinRawWithToken for a rank of startAgent or startAgentOf, with its token token-RANK.
func joinRaw(t testing.TB, a *agent.Agent, rank int) *rawWorker {
	t.Helper()
	return joinRawWithToken(t, a, rank, fmt.Sprintf("token-%d", rank))
}

// joinRawWithToken joins by hand and asks for a segment of 8192 bytes, number 1; a failure ends the
// test. Memory and bells are given back at the end of the test.
func joinRawWithToken(t testing.TB, a *agent.Agent, rank int, token string) *rawWorker {
	t.Helper()
	w := dialRaw(t, a)
	r, fds := w.request(&api.JoinRequest{Protocol: arena.Protocol, Client: "raw",
		Rank: rank, Token: token})
	if r.Type != "joined" || len(fds) != 3 {
		t.Fatalf("join: %+v with %d descriptors", r, len(fds))
	}
	block, err := arena.OpenSegment(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	if w.control, err = arena.OpenControl(block.Mem); err != nil {
		t.Fatal(err)
	}
	w.agent, w.bell, w.joined = arena.OpenBell(fds[1]), arena.OpenBell(fds[2]), r
	r, fds = w.request(&api.SegmentRequest{Bytes: 8192})
	if w.seg, err = arena.OpenSegment(fds[0]); err != nil || r.ID != 1 || r.Bytes != 8192 {
		t.Fatalf("segment: %+v, %v", r, err)
	}
	t.Cleanup(func() {
		for _, close := range []func() error{w.seg.Close, block.Close, w.agent.Close,
			w.bell.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// submit posts a descriptor as it is, under the next ticket, which it returns, and rings the agent.
// It does not wait.
func (w *rawWorker) submit(d arena.Descriptor) uint64 {
	w.ticket++
	d.Ticket = w.ticket
	w.control.WriteDescriptor(&d)
	w.control.SetTail(w.ticket)
	w.agent.Ring()
	return w.ticket
}

// wait blocks until the newest call has ended, and returns how, and why if it failed.
func (w *rawWorker) wait() (arena.Status, string) { return w.waitFor(w.ticket) }

// waitFor is wait for the call of a ticket. Status 0 = the agent has hung up.
func (w *rawWorker) waitFor(ticket uint64) (arena.Status, string) {
	w.t.Helper()
	w.control.SetWorkerParked(true)
	for {
		if s := w.control.Completion(ticket); s != 0 {
			return s, w.control.ErrorText(ticket)
		}
		if err := w.bell.WaitOrHangUp(w.conn); err != nil {
			return 0, err.Error()
		}
	}
}

// validCall returns an all-reduce of four f32 at the start of the segment.
func validCall() arena.Descriptor {
	return arena.Descriptor{Kind: uint8(collective.AllReduce), DType: 2,
		Reduction: uint8(collective.Sum), NDim: 1, Weight: 1,
		In: arena.Ref{Segment: 1, Count: 4}, Out: arena.Ref{Segment: 1, Count: 4},
		Shape: [arena.MaxDims]uint64{4}}
}

// Every wrong field is answered with an error that names the worker and the field, and the worker
// may go on.
func TestWrongDescriptorFields(t *testing.T) {
	w := joinRaw(t, startAgent(t, 1), 0)
	for field, change := range map[string]func(d *arena.Descriptor){
		"kind":      func(d *arena.Descriptor) { d.Kind = 77 },
		"dtype":     func(d *arena.Descriptor) { d.DType = 0 },
		"reduction": func(d *arena.Descriptor) { d.Reduction = 9 },
		"ndim":      func(d *arena.Descriptor) { d.NDim = 200 },
		"group":     func(d *arena.Descriptor) { d.Group = 5 },
		"peer": func(d *arena.Descriptor) {
			d.Kind, d.Peer = uint8(collective.Broadcast), 1<<32-1
		},
		"in.segment":  func(d *arena.Descriptor) { d.In.Segment = 2 },
		"out.segment": func(d *arena.Descriptor) { d.Out.Segment = 0 },
		"in.offset":   func(d *arena.Descriptor) { d.In.Offset = 2 },
		"out.offset":  func(d *arena.Descriptor) { d.Out.Offset = 1 << 63 },
		"in.count":    func(d *arena.Descriptor) { d.In.Count = 1 << 62 },
		"out.count":   func(d *arena.Descriptor) { d.Out.Count = 2049 },
		"shape":       func(d *arena.Descriptor) { d.Shape[0] = 5 },
		"splits.segment": func(d *arena.Descriptor) {
			d.Kind, d.Splits = uint8(collective.AllToAll), arena.Ref{Segment: 9, Count: 1}
		},
		"splits.offset": func(d *arena.Descriptor) {
			d.Kind, d.Splits = uint8(collective.AllToAll),
				arena.Ref{Segment: 1, Offset: 4, Count: 1}
		},
		"weight": func(d *arena.Descriptor) { d.Reduction, d.Weight = uint8(collective.Mean), -1 },
	} {
		d := validCall()
		change(&d)
		w.submit(d)
		if status, text := w.wait(); status != arena.Failed ||
			!strings.HasPrefix(text, "rank 0, "+field+": ") {
			t.Errorf("%s: status %d, %q", field, status, text)
		}
	}
	w.submit(validCall())
	if status, text := w.wait(); status != arena.Done {
		t.Errorf("a sound call after the wrong ones: status %d, %q", status, text)
	}
}

// A worker that asks to take part while it asks already gets an error, and the first time counts.
func TestAsksTwice(t *testing.T) {
	a := startAgent(t, 1)
	member := joinRaw(t, a, 0)
	step := validCall()
	step.Step = true
	member.submit(step)
	if status, text := member.wait(); status != arena.Done {
		t.Fatalf("a step: status %d, %q", status, text)
	}
	if err := a.Resize(2, "the test"); err != nil {
		t.Fatal(err)
	}
	token := a.ExpectWorker(1, true)
	a.WorkerStarted(1)
	late := joinRawWithToken(t, a, 1, token)
	enter := arena.Descriptor{Kind: arena.KindEnter}
	first, second := late.submit(enter), late.submit(enter)
	if status, text := late.waitFor(second); status != arena.Failed ||
		!strings.Contains(text, "already") {
		t.Errorf("asking twice: status %d, %q", status, text)
	}
	member.submit(step)
	if status, text := late.waitFor(first); status != arena.Changed {
		t.Errorf("asking: status %d, %q", status, text)
	}
	if v := late.control.View(); v.Size != 2 || !v.New {
		t.Errorf("the worker is told %+v", v)
	}
}

// A call with the flag more is not complete before the last of its step is posted, also in a job of
// one.
func TestPartOfAStepWaitsForItsEnd(t *testing.T) {
	w := joinRaw(t, startAgent(t, 1), 0)
	d := validCall()
	d.More = true
	part := w.submit(d)
	// the second question is answered after a look at all calls that were there at the first
	for range 2 {
		w.request(&api.FreeRequest{ID: 99})
	}
	if s := w.control.Completion(part); s != 0 {
		t.Errorf("the first part of a step has status %d before the last was posted", s)
	}
	w.submit(validCall())
	for _, ticket := range []uint64{part, w.ticket} {
		if status, text := w.waitFor(ticket); status != arena.Done {
			t.Errorf("call %d has status %d, %q", ticket, status, text)
		}
	}
}

// A worker cannot end a step that goes on for the others, nor keep one open that ends: both hear of
// it, and no step counts before they agree.
func TestLiesAboutTheStep(t *testing.T) {
	a := startAgent(t, 2)
	honest, liar := joinRaw(t, a, 0), joinRaw(t, a, 1)
	step := validCall()
	step.Step = true
	for said, lie := range map[string]func(d *arena.Descriptor){
		"(f32[4], sum)":       func(d *arena.Descriptor) { d.Step = false },
		"(f32[4], sum, more)": func(d *arena.Descriptor) { d.Step, d.More = false, true },
	} {
		d := step
		lie(&d)
		honest.submit(step)
		liar.submit(d)
		for rank, w := range []*rawWorker{honest, liar} {
			status, text := w.wait()
			if status != arena.Failed ||
				!strings.Contains(text,
					"rank 0 called all_reduce(f32[4], sum, step), rank 1 called all_reduce"+said) {
				t.Errorf("rank 1 called all_reduce%s, rank %d gets status %d, %q", said, rank,
					status, text)
			}
		}
	}
	if n := a.Status().Steps; n != 0 {
		t.Errorf("%d steps counted", n)
	}
	for range 2 {
		honest.submit(step)
		liar.submit(step)
		for rank, w := range []*rawWorker{honest, liar} {
			if status, text := w.wait(); status != arena.Done {
				t.Errorf("a sound step: rank %d gets status %d, %q", rank, status, text)
			}
		}
	}
	if n := a.Status().Steps; n != 2 {
		t.Errorf("%d steps counted, not 2", n)
	}
}

// A worker whose bookkeeping makes no sense is cut off; the others hear why, and only what needs it
// fails.
func TestBrokenProtocolCutsTheWorkerOff(t *testing.T) {
	for name, abuse := range map[string]func(w *rawWorker){
		"ticket": func(w *rawWorker) {
			w.submit(validCall())
			d := validCall()
			d.Ticket = 99
			w.control.WriteDescriptor(&d) // in another slot: slot of ticket 2 stays zero
			w.control.SetTail(2)
		},
		"tail": func(w *rawWorker) { w.control.SetTail(1 << 40) },
		"back": func(w *rawWorker) { w.control.SetTail(1<<64 - 1) },
	} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, 2)
			good := joinAs(t, a, 1)
			bad := joinRaw(t, a, 0)
			abuse(bad)
			bad.agent.Ring()
			word, _, _ := bad.conn.Receive(make([]byte, arena.MaxMessage))
			if !strings.HasPrefix(string(word), `{"type":"error","error":"broke the protocol (`) {
				t.Errorf("the broken worker hears %s", word)
			}
			if _, _, err := bad.conn.Receive(make([]byte, 64)); err == nil {
				t.Error("the broken worker is still connected")
			}
			x := []float32{1, 2, 3, 4}
			for range 2 { // the first may have met the sound call of the broken worker
				err := client.AllReduce(context.Background(), good, x, collective.Sum)
				if err != nil && !strings.Contains(err.Error(), "rank 0 broke the protocol") {
					t.Errorf("got %v", err)
				}
			}
			if err := client.AllReduce(context.Background(), good, x, collective.Sum); err == nil {
				t.Error("an all-reduce without rank 0 completed")
			}
		})
	}
}

// Requests that make no sense, or come too early or twice, are refused with a reason.
func TestBadMessages(t *testing.T) {
	a := startAgent(t, 2)
	w := dialRaw(t, a)
	refused := func(message any, want string) {
		t.Helper()
		if r, _ := w.request(message); r.Type != "error" ||
			!strings.Contains(r.Error+" "+r.Field, want) {
			t.Errorf("%v: %+v, want an error with %q", message, r, want)
		}
	}
	join := api.JoinRequest{Protocol: arena.Protocol, Rank: 1, Token: "token-1"}
	refused(&api.SegmentRequest{Bytes: 1}, "before join")
	refused([]int{1}, "no request")
	refused(map[string]any{"type": "join", "protocol": arena.Protocol, "colour": "red"}, "colour")
	refused(strings.Repeat("x", 1000), "no request")
	bad := join
	bad.Protocol, bad.Version, bad.Client = 1, "0.0.9", "python"
	refused(&bad, fmt.Sprintf("(python, shoal 0.0.9) speaks protocol 1, the agent (shoal %s) "+
		"speaks %d: install the same version", version.Version, arena.Protocol))
	bad = join
	bad.Rank = 2
	refused(&bad, "2 is no worker that this host has started and that lives")
	bad = join
	bad.Token = "token-0"
	refused(&bad, "token")
	if r, fds := w.request(&join); r.Type != "joined" {
		t.Fatalf("a sound join after the bad ones: %+v", r)
	} else {
		arena.CloseFDs(fds)
	}
	refused(&join, "joined already")
	refused(map[string]any{"type": "dance"}, "names no message")
	refused(&api.SegmentRequest{Bytes: -5}, "at least one byte")
	refused(&api.SegmentRequest{Bytes: 1 << 45}, "does not fit")
	refused(&api.SegmentRequest{Bytes: 1 << 62}, "out of range")
	refused(&api.FreeRequest{ID: 4}, "no segment of rank 1")
	refused(&api.GroupRequest{Ranks: []int{0}}, "is not in it")
	refused(&api.GroupRequest{Ranks: []int{1, 7}}, "7 is no rank of the job")
	refused(&api.BucketRequest{Now: 1}, "from 1 to 2⁵³ bytes of gradients")
	refused(&api.BucketRequest{Bytes: 1 << 60, Now: 1},
		"from 1 to 2⁵³ bytes of gradients")
	refused(&api.BucketRequest{Bytes: 1, Now: -1}, "a bucket has from 1")
	refused(&api.BucketRequest{Bytes: 1, Now: 1, Seconds: -1},
		"takes no time or some")
	if r, _ := w.request(&api.BucketRequest{Bytes: 1 << 53, Now: 1 << 53,
		Seconds: 1e300}); r.Type != "bucket" || r.Bytes != 0 {
		t.Errorf("where there is no other host: %+v", r)
	}
	other := dialRaw(t, a)
	if r, _ := other.request(&join); !strings.Contains(r.Error, "joined already") {
		t.Errorf("a second worker took rank 1: %+v", r)
	}
}

// The memory is sealed: a worker cannot shrink it under the agent.
func TestSegmentsAreSealed(t *testing.T) {
	w := joinRaw(t, startAgent(t, 1), 0)
	for _, size := range []int64{0, 1 << 20} {
		if err := unix.Ftruncate(w.seg.FD(), size); err == nil {
			t.Errorf("a worker resized its segment to %d", size)
		}
	}
}

// Nobody but the user who runs the agent can connect to its socket.
func TestSocketIsPrivate(t *testing.T) {
	a := startAgent(t, 1)
	info, err := os.Stat(a.Socket())
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o, want 600", mode)
	}
}

// serveAgent runs an agent of one rank, with token token-0, until the end of the fuzzing.
func serveAgent(f *testing.F) *agent.Agent {
	dir := f.TempDir()
	a, err := agent.New(
		agent.Config{Job: "fuzz", Socket: filepath.Join(dir, "s"), Size: 1,
			Tokens: []string{"token-0"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := group.New(context.Background())
	g.Go("agent", func(context.Context) error { return a.Run(ctx) })
	f.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			f.Error(err)
		}
	})
	return a
}

// Whatever bytes a descriptor holds, the agent answers, and goes on serving. A call with the flag
// more is answered when its step is over, so each input is followed by a sound call, which ends the
// step.
func FuzzDescriptor(f *testing.F) {
	for _, flags := range []arena.Flags{{}, {More: true}, {Step: true}, {More: true, Step: true},
		{Aside: true}, {Aside: true, More: true}, {Narrow: true}, {Sparing: true},
		{Sparing: true, Step: true}} {
		var seed [192]byte
		d := validCall()
		d.Flags = flags
		d.Encode(seed[:])
		f.Add(seed[8:])
	}
	var shared [192]byte
	d := validCall()
	d.Out.Segment = 2
	d.Encode(shared[:])
	f.Add(shared[8:])
	f.Add(bytes.Repeat([]byte{0xff}, 184))
	a := serveAgent(f)
	w := joinRaw(f, a, 0)
	if r, fds := w.request(&api.SharedRequest{Name: "result", Bytes: 8192}); r.ID != 2 {
		f.Fatalf("a shared result: %+v", r)
	} else {
		arena.CloseFDs(fds)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w.t = t
		var raw [192]byte
		copy(raw[8:], b)
		var d arena.Descriptor
		d.Decode(&raw)
		ticket := w.submit(d)
		w.submit(validCall())
		if status, text := w.waitFor(ticket); status != arena.Done &&
			(status != arena.Failed || !strings.HasPrefix(text, "rank 0, ")) {
			t.Fatalf("status %d, %q for %+v", status, text, d)
		}
		if status, text := w.wait(); status != arena.Done {
			t.Fatalf("status %d, %q for a sound call after %+v", status, text, d)
		}
	})
}
