package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// landing is a Handler that gives all pieces one place and counts them.
type landing struct {
	mem     []byte
	up      chan fabric.Host
	arrived chan struct{}
}

// newLanding returns a landing for pieces of up to n bytes.
func newLanding(n int) *landing {
	return &landing{make([]byte, n), make(chan fabric.Host, 1), make(chan struct{}, 64)}
}

// Up implements fabric.Handler: it names the peer in l.up.
func (l *landing) Up(peer fabric.Host) { l.up <- peer }

// Message implements fabric.Handler: it counts as something that arrived.
func (l *landing) Message(fabric.Host, []byte) { l.arrived <- struct{}{} }

// Place implements fabric.Handler: all pieces go to the same memory.
func (l *landing) Place(_ fabric.Host, p fabric.Piece) []byte { return l.mem[:p.Length] }

// Arrived implements fabric.Handler: it tells l.arrived.
func (l *landing) Arrived(_ fabric.Host, _ fabric.Piece) { l.arrived <- struct{}{} }

// Down implements fabric.Handler; nobody asks for it.
func (l *landing) Down(fabric.Host, error) {}

// linkedPair links two agents over the loopback, until the test ends. From sends to the host peer,
// whose handler is to.
func linkedPair(b testing.TB, plain bool, n int) (from *Network, to *landing, peer fabric.Host) {
	b.Helper()
	one, two := newLanding(n), newLanding(n)
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
