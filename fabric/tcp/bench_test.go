package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// discarder is a fabric.Handler that puts all pieces into the same memory, and sends to arrived for
// each piece and message; it blocks when 64 were not received from there.
type discarder struct {
	mem     []byte           // where each piece goes; nobody reads it
	up      chan fabric.Host // gets the peer of an Up; has room for one
	arrived chan struct{}
}

// newDiscarder returns a discarder for pieces of up to n bytes.
func newDiscarder(n int) *discarder {
	return &discarder{make([]byte, n), make(chan fabric.Host, 1), make(chan struct{}, 64)}
}

// Up implements fabric.Handler: it names the peer in d.up.
func (d *discarder) Up(peer fabric.Host) { d.up <- peer }

// Message implements fabric.Handler: it counts as something that arrived.
func (d *discarder) Message(fabric.Host, []byte) { d.arrived <- struct{}{} }

// Place implements fabric.Handler: all pieces go to the same memory.
func (d *discarder) Place(_ fabric.Host, p fabric.Piece) []byte { return d.mem[:p.Length] }

// Arrived implements fabric.Handler: it tells d.arrived.
func (d *discarder) Arrived(_ fabric.Host, _ fabric.Piece) { d.arrived <- struct{}{} }

// Down implements fabric.Handler; nobody asks for it.
func (d *discarder) Down(fabric.Host, error) {}

// linkedPair links two agents over the loopback, until the test ends, for pieces of up to n bytes.
// From sends to the host peer, whose handler is to. What goes wrong fails b.
func linkedPair(b testing.TB, plain bool, n int) (from *Network, to *discarder, peer fabric.Host) {
	b.Helper()
	one, two := newDiscarder(n), newDiscarder(n)
	config := Config{Listen: "127.0.0.1:0", PlainData: plain}
	a, err := Create(config, one)
	if err != nil {
		b.Fatal(err)
	}
	c, err := Join(b.Context(), a.Addr(), a.Token(time.Minute), config, two)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(); a.Close() })
	<-two.up
	return a, two, <-one.up
}

// BenchmarkPieces sends pieces one way, 16 under way at a time.
func BenchmarkPieces(b *testing.B) {
	for _, plain := range []bool{false, true} {
		for _, n := range []int{4 << 10, 64 << 10, fabric.MaxPiece} {
			b.Run(fmt.Sprintf("plain=%v/bytes=%d", plain, n), func(b *testing.B) {
				a, to, peer := linkedPair(b, plain, n)
				payload := make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				const window = 16
				sent := 0
				for b.Loop() {
					a.SendPiece(peer, fabric.Piece{Transfer: 1, Length: uint32(n)}, payload)
					if sent++; sent > window {
						<-to.arrived
					}
				}
				for range min(sent, window) {
					<-to.arrived
				}
			})
		}
	}
}

// BenchmarkMessage measures the time from Send to Message, one message after the other.
func BenchmarkMessage(b *testing.B) {
	a, to, peer := linkedPair(b, false, 0)
	message := make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		a.Send(peer, message)
		<-to.arrived
	}
}

// TestPiecesDoNotAllocate: neither end allocates for a piece. (Under TLS the standard library
// allocates 24 bytes a record.)
func TestPiecesDoNotAllocate(t *testing.T) {
	const n = 100_000
	a, to, peer := linkedPair(t, true, n)
	payload := make([]byte, n)
	if allocations := testing.AllocsPerRun(500, func() {
		a.SendPiece(peer, fabric.Piece{Transfer: 1, Length: n}, payload)
		<-to.arrived
	}); allocations != 0 {
		t.Errorf("%v allocations a piece", allocations)
	}
}
