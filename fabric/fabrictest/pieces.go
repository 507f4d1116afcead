package fabrictest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// The functions of the suite expect a cluster without hosts, and leave those that they add to
// hosts.closeAll. They run on the goroutine of their test, wait on Recorders, and fail the test
// where the network does otherwise than their comment says.

// randomBytes draws n bytes.
func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// cutRandomly divides a payload of n bytes into pieces of random sizes, from no byte to the
// largest.
func cutRandomly(random *rand.Rand, transfer uint64, part uint32, n int) (pieces []fabric.Piece) {
	for offset := 0; offset < n; {
		length := random.IntN(fabric.MaxPiece) + 1
		if random.IntN(4) == 0 {
			length = random.IntN(100)
		}
		length = min(length, n-offset)
		pieces = append(pieces,
			fabric.Piece{Transfer: transfer, Part: part, Offset: uint64(offset),
				Length: uint32(length)})
		offset += length
	}
	return pieces
}

// transfers has, by the number of a transfer, the memory that its pieces go to. It does not change
// while place is used, from any goroutine.
type transfers map[uint64][]byte

// place returns the memory of a piece, as Recorder.OnPlace does.
func (f transfers) place(_ fabric.Host, p fabric.Piece) []byte {
	return f[p.Transfer][p.Offset:][:p.Length:p.Length]
}

// piecesInPlace sends pieces of many transfers in a random order: each arrives where Place says.
func piecesInPlace(t *testing.T, h *hosts) {
	random := newSeededRand(t)
	const n, size = 20, 100_000
	r, landing := NewRecorder(t), transfers{}
	for i := range uint64(n) {
		landing[i] = make([]byte, size)
	}
	r.OnPlace = landing.place
	a, b := h.add("a"), h.addWith("b", r)
	sent := map[uint64][]byte{}
	count := map[fabric.Piece]bool{}
	for i := range uint64(n) {
		sent[i] = randomBytes(random, size)
		pieces := cutRandomly(random, i, uint32(i)*7, size)
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		for _, p := range pieces {
			count[p] = true
			p.Streams = uint8(random.IntN(fabric.MaxStreams + 1))
			a.SendPiece(b.Self(), p, sent[i][p.Offset:][:p.Length])
		}
	}
	b.WaitArrived(a.Self(), len(count))
	for i := range uint64(n) {
		if !bytes.Equal(landing[i], sent[i]) {
			t.Errorf("transfer %d came with other bytes", i)
		}
	}
}

// piecesThrownAway has Place return nil for some pieces: these are not told of, and the others
// arrive.
func piecesThrownAway(t *testing.T, h *hosts) {
	r := NewRecorder(t)
	r.OnPlace = func(_ fabric.Host, p fabric.Piece) []byte {
		if p.Part == 1 {
			return nil
		}
		return make([]byte, p.Length)
	}
	a, b := h.add("a"), h.addWith("b", r)
	payload := bytes.Repeat([]byte("shoal"), fabric.MaxPiece/5)
	const n = 20
	for i := range uint64(n) {
		for part := range uint32(2) {
			length := len(payload) >> (i % 8)
			a.SendPiece(b.Self(), fabric.Piece{Transfer: i, Part: part, Length: uint32(length)},
				payload[:length])
		}
	}
	for p, mem := range b.WaitArrived(a.Self(), n) {
		if p.Part == 1 || !bytes.Equal(mem, payload[:p.Length]) {
			t.Errorf("piece %v arrived, with the right bytes: %v", p,
				bytes.Equal(mem, payload[:p.Length]))
		}
	}
}

// emptyPiece sends a piece without payload, which arrives too.
func emptyPiece(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	p := fabric.Piece{Transfer: 1, Part: 2, Offset: 3}
	a.SendPiece(b.Self(), p, nil)
	if _, ok := b.WaitArrived(a.Self(), 1)[p]; !ok {
		t.Error("another piece arrived")
	}
}

// largeTransfer sends many MiB both ways at once, on random streams.
func largeTransfer(t *testing.T, h *hosts) {
	random := newSeededRand(t)
	const size = 64 << 20
	// filled by copying: random bytes one by one take long under the race detector
	source := make([]byte, size)
	block := randomBytes(random, 1<<20-13)
	for n := 0; n < size; {
		n += copy(source[n:], block)
	}
	var all [2]*host
	var landing [2]transfers
	var pieces [2][]fabric.Piece
	for i, name := range []fabric.Host{"a", "b"} {
		r := NewRecorder(t)
		landing[i] = transfers{9: make([]byte, size)}
		r.OnPlace = landing[i].place
		all[i] = h.addWith(name, r)
		pieces[i] = cutRandomly(random, 9, 0, size)
	}
	g := group.New(t.Context())
	for i := range all {
		g.Go("sender", func(context.Context) error {
			for _, p := range pieces[i] {
				if p.Length > 0 {
					p.Streams = uint8(p.Offset % (fabric.MaxStreams + 1))
					all[i].SendPiece(all[1-i].Self(), p, source[p.Offset:][:p.Length])
				}
			}
			return nil
		})
	}
	g.Wait()
	for i := range all {
		n := 0
		for _, p := range pieces[i] {
			if p.Length > 0 {
				n++
			}
		}
		all[1-i].WaitArrived(all[i].Self(), n)
		if !bytes.Equal(landing[1-i][9], source) {
			t.Errorf("what %s sent came with other bytes", all[i].Self())
		}
	}
}

// newGatedRecorder returns a Recorder whose Place waits until the channel is closed, which the test
// must do before its networks are closed.
func newGatedRecorder(t *testing.T) (*Recorder, chan struct{}) {
	r, gate := NewRecorder(t), make(chan struct{})
	r.OnPlace = func(_ fabric.Host, p fabric.Piece) []byte {
		<-gate
		return make([]byte, p.Length)
	}
	return r, gate
}

// unusedPayloads has a network tell when it no longer touches payloads: when they have been sent,
// and when they never will be.
func unusedPayloads(t *testing.T, h *hosts) {
	r, gate := newGatedRecorder(t)
	a, b, c := h.add("a"), h.addWith("b", r), h.add("c")
	unused := func() chan struct{} {
		told := make(chan struct{})
		a.Unused(func() { close(told) })
		return told
	}
	<-unused()
	payload := make([]byte, fabric.MaxPiece)
	flood := func(to *host) {
		for i := range uint64(50) { // more than the network holds
			a.SendPiece(to.Self(), fabric.Piece{Transfer: i, Length: fabric.MaxPiece}, payload)
		}
	}
	flood(b)
	b.Wait(a.Self(), "a Place", isPlacing)
	told := unused()
	flood(c)
	c.WaitArrived(a.Self(), 50)
	select {
	case <-told:
		t.Error("payloads for a peer that takes none are called unused")
	default:
	}
	h.kill(b)
	<-told
	clear(payload) // the race detector sees who reads it still
	close(gate)
	flood(c)
	<-unused()
	clear(payload)
}

// isPlacing reports whether a call of Place is under way. It is for Recorder.Wait.
func isPlacing(s *Seen) bool { return s.Placing > 0 }

// placeBlocks has Place wait: messages, other peers and the other direction go on meanwhile.
func placeBlocks(t *testing.T, h *hosts) {
	r, gate := newGatedRecorder(t)
	a, b, c := h.add("a"), h.addWith("b", r), h.add("c")
	payload := make([]byte, fabric.MaxPiece)
	const n = 10
	for i := range uint64(n) {
		a.SendPiece(b.Self(), fabric.Piece{Transfer: i, Length: fabric.MaxPiece}, payload)
	}
	b.Wait(a.Self(), "a Place", isPlacing)
	// Messages, other peers and the other direction do not wait behind it.
	a.Send(b.Self(), []byte("m"))
	b.WaitMessages(a.Self(), 1)
	for _, to := range []*host{a, c} {
		b.SendPiece(to.Self(), fabric.Piece{Length: fabric.MaxPiece}, payload)
		to.WaitArrived(b.Self(), 1)
	}
	close(gate)
	b.WaitArrived(a.Self(), n)
}

// placeBlocksUntilDown has Place wait for longer than the link lives: Down does not wait for it.
func placeBlocksUntilDown(t *testing.T, h *hosts) {
	r, gate := newGatedRecorder(t)
	a, b := h.add("a"), h.addWith("b", r)
	payload := make([]byte, 1000)
	a.SendPiece(b.Self(), fabric.Piece{Length: 1000}, payload)
	b.Wait(a.Self(), "a Place", isPlacing)
	h.kill(a)
	b.WaitDown(a.Self()) // which does not wait for Place
	close(gate)
	b.Wait(a.Self(), "the end of Place", func(s *Seen) bool { return s.Placing == 0 })
	// That nothing arrives now is checked by the recorder.
}

// placeBlocksUntilClose has Place wait while the network is closed: Down does not wait for it,
// Close does.
func placeBlocksUntilClose(t *testing.T, h *hosts) {
	r, gate := newGatedRecorder(t)
	a, b := h.add("a"), h.addWith("b", r)
	a.SendPiece(b.Self(), fabric.Piece{Length: 1000}, make([]byte, 1000))
	b.Wait(a.Self(), "a Place", isPlacing)
	g := group.New(t.Context())
	g.Go("close", func(context.Context) error { return b.Close() })
	b.WaitDown(a.Self())
	close(gate)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// startTransfer has a send 200 pieces of MaxPiece bytes to b, and returns when 3 have arrived. All
// have the same payload, which is the caller's to clear when the network no longer touches it.
func startTransfer(a, b *host) (payload []byte) {
	payload = make([]byte, fabric.MaxPiece)
	for i := range uint64(200) {
		a.SendPiece(b.Self(), fabric.Piece{Transfer: i, Length: fabric.MaxPiece}, payload)
	}
	b.WaitArrived(a.Self(), 3)
	return payload
}

// peerDiesInTransfer kills a host to which pieces are sent: after Down nobody reads their payloads.
func peerDiesInTransfer(t *testing.T, h *hosts) {
	a, b, c := h.add("a"), h.add("b"), h.add("c")
	payload := startTransfer(a, b)
	h.kill(b)
	a.WaitDown(b.Self())
	clear(payload) // it is the sender's again; the race detector sees who reads it still
	a.Send(c.Self(), []byte("x"))
	c.WaitMessages(a.Self(), 1)
	c.WaitDown(b.Self())
}

// closeInTransfer closes a network that sends and gets pieces: after Close nobody reads its
// payloads.
func closeInTransfer(t *testing.T, h *hosts) {
	a, b := h.add("a"), h.add("b")
	payload := startTransfer(a, b)
	startTransfer(b, a)
	a.setClosed()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	clear(payload)
	b.WaitDown(a.Self())
}
