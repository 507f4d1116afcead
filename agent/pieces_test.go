package agent_test

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// Elements of f32 in a piece, and in a whole window.
const (
	pieceElements  = collective.PieceBytes / 4
	windowElements = collective.PiecesOpen * pieceElements
)

// feeder is a worker whose tensors are in its own memory, and pass through a window. One goroutine
// at a time uses it.
type feeder struct {
	*rawWorker
	window *arena.Segment
	id     uint32 // number of that segment
}

// joinFeeder joins by hand as a rank of startAgent, and makes the window. A failure ends the test,
// whose end unmaps the window.
func joinFeeder(t *testing.T, a *agent.Agent, rank int) *feeder {
	t.Helper()
	f := &feeder{rawWorker: joinRaw(t, a, rank)}
	f.window, f.id = f.newSegment(4 * windowElements)
	return f
}

// newSegment asks for another segment, and returns it with its number; a failure ends the test. It
// is unmapped at the end of the test.
func (w *rawWorker) newSegment(bytes int64) (*arena.Segment, uint32) {
	w.t.Helper()
	r, fds := w.request(&api.SegmentRequest{Bytes: bytes})
	if len(fds) != 1 {
		w.t.Fatalf("segment: %+v", r)
	}
	s, err := arena.OpenSegment(fds[0])
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return s, r.ID
}

// sumCall returns the all-reduce of n f32 in a segment, in pieces or as a whole.
func sumCall(segment uint32, n int, pieces bool) arena.Descriptor {
	at := arena.Ref{Segment: segment, Count: uint64(n)}
	return arena.Descriptor{Kind: uint8(collective.AllReduce), DType: 2,
		Reduction: uint8(collective.Sum), NDim: 1, Weight: 1,
		In: at, Out: at, Shape: [arena.MaxDims]uint64{uint64(n)}, Pieces: pieces}
}

// pieceMemory is where piece i of a call of n elements lies in the window.
func (f *feeder) pieceMemory(i, n int) []byte {
	from := i % collective.PiecesOpen * collective.PieceBytes
	return f.window.Mem[from : from+4*min(pieceElements, n-i*pieceElements)]
}

// feedPiece puts piece i of the n elements of a call into the window, where every element is value
// plus its number, and tells the agent. It does not wait.
func (f *feeder) feedPiece(ticket uint64, i, n int, value float32) {
	fillNumbers(f.pieceMemory(i, n), value+float32(i*pieceElements))
	f.control.SetPiecesFed(ticket, uint64(i)+1)
	f.agent.Ring()
}

// fillNumbers fills memory with f32 that count up from first.
func fillNumbers(mem []byte, first float32) {
	for k := 0; k < len(mem); k += 4 {
		binary.LittleEndian.PutUint32(mem[k:], math.Float32bits(first+float32(k/4)))
	}
}

// awaitPiece blocks until the result of piece i of n elements is there, and ends the test unless
// every element is scale times its number, plus offset.
func (f *feeder) awaitPiece(ticket uint64, i, n int, scale, offset float32) {
	f.t.Helper()
	f.control.SetWorkerParked(true)
	for f.control.PiecesDone(ticket) <= uint64(i) {
		if s := f.control.Completion(ticket); s != 0 {
			f.t.Fatalf("piece %d: status %d, %s", i, s, f.control.ErrorText(ticket))
		}
		if err := f.bell.WaitOrHangUp(f.conn); err != nil {
			f.t.Fatal(err)
		}
	}
	checkNumbers(f.t, f.pieceMemory(i, n), scale, offset+scale*float32(i*pieceElements))
}

// checkNumbers ends the test unless memory has f32 that go up from first by scale.
func checkNumbers(t testing.TB, mem []byte, scale, first float32) {
	t.Helper()
	for k := 0; k < len(mem); k += 4 {
		if got, want := math.Float32frombits(binary.LittleEndian.Uint32(mem[k:])),
			first+scale*float32(k/4); got != want {
			t.Fatalf("element %d is %v, want %v", k/4, got, want)
		}
	}
}

// feedAll feeds the calls of feeders, of n elements each, from their first piece to their last, and
// checks the results of all but the last pieces, which fit into the window: the function that it
// returns checks piece i. A wrong result ends the test.
func feedAll(n int, tickets []uint64, feeders ...*feeder) (results func(i int)) {
	pieces := (n + pieceElements - 1) / pieceElements
	scale, offset := float32(len(feeders)), float32(len(feeders)-1)*float32(len(feeders))/2
	results = func(i int) {
		for k, f := range feeders {
			f.awaitPiece(tickets[k], i, n, scale, offset)
		}
	}
	for i := range pieces {
		if i >= collective.PiecesOpen {
			results(i - collective.PiecesOpen)
		}
		for k, f := range feeders {
			f.feedPiece(tickets[k], i, n, float32(k))
		}
	}
	return results
}

// mustEnd blocks until a call has ended, and fails the test unless it ends with a status, and with
// an error that contains says.
func (w *rawWorker) mustEnd(ticket uint64, status arena.Status, says string) {
	w.t.Helper()
	if s, text := w.waitFor(ticket); s != status || !strings.Contains(text, says) {
		w.t.Errorf("status %d, %q; want %d, %q", s, text, status, says)
	}
}

// Memory that passes through a window comes to the same sums, whatever the length.
func TestCallsInPieces(t *testing.T) {
	a := startAgent(t, 2)
	zero, one := joinFeeder(t, a, 0), joinFeeder(t, a, 1)
	if zero.joined.PieceBytes != collective.PieceBytes ||
		zero.joined.PiecesOpen != collective.PiecesOpen {
		t.Errorf("a worker is told %+v", zero.joined)
	}
	for _, n := range []int{1, pieceElements - 1, pieceElements, pieceElements + 1, windowElements,
		3*pieceElements + 5} {
		tickets := []uint64{zero.submit(sumCall(zero.id, n, true)),
			one.submit(sumCall(one.id, n, true))}
		last := (n+pieceElements-1)/pieceElements - 1
		feedAll(n, tickets, zero, one)(last)
		zero.mustEnd(tickets[0], arena.Done, "")
		one.mustEnd(tickets[1], arena.Done, "")
	}
}

// Of one call, some ranks have their memory in the arena; and what such a rank calls next waits for
// it.
func TestSomeRanksInPieces(t *testing.T) {
	a := startAgent(t, 2)
	zero, one := joinFeeder(t, a, 0), joinFeeder(t, a, 1)
	n := 2*pieceElements + 3
	whole, id := one.newSegment(int64(4 * n))
	fillNumbers(whole.Mem[:4*n], 1)
	first := zero.submit(sumCall(zero.id, n, true))
	theirs := one.submit(sumCall(id, n, false))
	again := one.submit(sumCall(id, n, false))
	for i := range 3 {
		if i >= collective.PiecesOpen {
			zero.awaitPiece(first, i-collective.PiecesOpen, n, 2, 1)
		}
		if s := one.control.Completion(theirs); s != 0 {
			t.Fatalf("the call of the other ended before piece %d, status %d", i, s)
		}
		zero.feedPiece(first, i, n, 0)
	}
	one.mustEnd(theirs, arena.Done, "")
	zero.mustEnd(first, arena.Done, "")
	checkNumbers(t, whole.Mem[:4*n], 2, 1)

	second := zero.submit(sumCall(zero.id, n, true))
	for i := range 3 {
		if i >= collective.PiecesOpen {
			zero.awaitPiece(second, i-collective.PiecesOpen, n, 3, 1)
		}
		zero.feedPiece(second, i, n, 0)
	}
	one.mustEnd(again, arena.Done, "")
	zero.mustEnd(second, arena.Done, "")
	checkNumbers(t, whole.Mem[:4*n], 3, 1)
}

// Who gives up in the middle, or is gone, fails the others' call; they can go on.
func TestPiecesThatDoNotCome(t *testing.T) {
	n := 3 * pieceElements
	a := startAgent(t, 2)
	zero, one := joinFeeder(t, a, 0), joinFeeder(t, a, 1)
	begin := func() (uint64, uint64) {
		mine, theirs := zero.submit(sumCall(zero.id, n, true)), one.submit(sumCall(one.id, n, true))
		zero.feedPiece(mine, 0, n, 0)
		one.feedPiece(theirs, 0, n, 1)
		zero.awaitPiece(mine, 0, n, 2, 1)
		zero.feedPiece(mine, 1, n, 0)
		return mine, theirs
	}
	mine, theirs := begin()
	one.control.SetPiecesFed(theirs, arena.GivenUp)
	one.agent.Ring()
	zero.mustEnd(mine, arena.Failed, "given up")
	one.mustEnd(theirs, arena.Failed, "given up")
	for _, w := range []*feeder{zero, one} {
		w.submit(validCall())
	}
	zero.mustEnd(zero.ticket, arena.Done, "")

	mine, _ = begin()
	a.WorkerLost(1, "was killed")
	zero.mustEnd(mine, arena.Lost,
		"rank 1 was killed, while rank 0 waits for it in all_reduce(f32[786432], sum)")
}

// What a worker says of its window is checked: the error of a wrong call names the field.
func TestWrongWindows(t *testing.T) {
	f := joinFeeder(t, startAgent(t, 1), 0)
	for field, change := range map[string]func(d *arena.Descriptor){
		"in.count: a call in pieces states its 0": func(d *arena.Descriptor) {
			d.In.Count, d.Out.Count = 0, 0
		},
		"in.count: a call in pieces states its": func(d *arena.Descriptor) { d.Out.Offset = 64 },
		"in.count: 524288 elements of 4 bytes": func(d *arena.Descriptor) {
			d.In.Offset, d.Out.Offset = 4, 4
		},
		"in.segment": func(d *arena.Descriptor) {
			d.In.Segment, d.Out.Segment = 77, 77
		},
		"shape":                     func(d *arena.Descriptor) { d.Shape[0]++ },
		"flags: only an all_reduce": func(d *arena.Descriptor) { d.Step = true },
		"flags: only an all_reduce that": func(d *arena.Descriptor) {
			d.Kind = uint8(collective.Broadcast)
		},
		"flags: only an all_reduce that is": func(d *arena.Descriptor) {
			d.Kind = uint8(collective.Barrier)
		},
		"in.count: 2305843009213693952 elements": func(d *arena.Descriptor) {
			d.In.Count, d.Out.Count, d.Shape[0] = 1<<61, 1<<61, 1<<61
		},
	} {
		d := sumCall(f.id, 3*pieceElements, true)
		change(&d)
		f.mustEnd(f.submit(d), arena.Failed, "rank 0, "+field)
	}
	ticket := f.submit(sumCall(f.id, windowElements, true))
	f.control.SetPiecesFed(ticket, collective.PiecesOpen+1)
	f.agent.Ring()
	f.mustEnd(ticket, arena.Failed, "more pieces into its window than the 2")
}

// Hosts exchange whole tensors: in a job of several, a call in pieces fails.
func TestNoPiecesOnSeveralHosts(t *testing.T) {
	c := startHosts(t, 2, []int{1, 1}, agent.Orders{})
	s := <-c.started
	w := joinRawWithToken(t, s.agent, s.number, s.token)
	if w.joined.PieceBytes != 0 {
		t.Errorf("a worker is told %+v", w.joined)
	}
	segment, id := w.newSegment(4 * windowElements)
	clear(segment.Mem)
	w.mustEnd(w.submit(sumCall(id, windowElements, true)), arena.Failed,
		"flags: calls come in pieces only in a job of one host")
}

// A rank that hangs in the middle of a call is named, as one that has not called is.
func TestWhoIsWaitedForInTheMiddle(t *testing.T) {
	t.Parallel()
	events := make(chan agent.Event, 100)
	a := startAgentWithOrders(t, t.Context(), 2, agent.Orders{Event: func(e agent.Event) {
		events <- e
	}})
	zero, one := joinFeeder(t, a, 0), joinFeeder(t, a, 1)
	n := 2 * pieceElements
	tickets := []uint64{zero.submit(sumCall(zero.id, n, true)),
		one.submit(sumCall(one.id, n, true))}
	zero.feedPiece(tickets[0], 0, n, 0)
	for e := range events {
		if e.What == "wait" {
			if !slices.Equal(e.Awaited, []int{1}) ||
				!strings.HasSuffix(e.Because, "in all_reduce(f32[524288], sum)") {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	one.feedPiece(tickets[1], 0, n, 1)
	for i, f := range []*feeder{zero, one} {
		f.feedPiece(tickets[i], 1, n, float32(i))
	}
	zero.mustEnd(tickets[0], arena.Done, "")
	one.mustEnd(tickets[1], arena.Done, "")
}
