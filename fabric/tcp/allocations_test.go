//go:build !race

package tcp

import (
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// told is a handler that sends to itself for each Up and Message, and blocks until its test
// receives that or there is room for it.
type told chan struct{}

// Up implements fabric.Handler: it sends to t.
func (t told) Up(fabric.Host) { t <- struct{}{} }

// Message implements fabric.Handler: it sends to t.
func (t told) Message(fabric.Host, []byte) { t <- struct{}{} }

// Place implements fabric.Handler; no piece is wanted.
func (t told) Place(fabric.Host, fabric.Piece) []byte { return nil }

// Arrived implements fabric.Handler; no piece arrives.
func (t told) Arrived(fabric.Host, fabric.Piece) {}

// Down implements fabric.Handler; nobody asks for it.
func (t told) Down(fabric.Host, error) {}

// Neither end allocates for a message but the 24 bytes of TLS for the record that comes.
func TestMessagesAllocateOnce(t *testing.T) {
	at := told(make(chan struct{}, 1))
	a, err := Create(Config{Name: "a", Listen: "127.0.0.1:0"}, told(make(chan struct{}, 1)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := Join(t.Context(), a.Addr(), a.Token(time.Hour),
		Config{Name: "b", Listen: "127.0.0.1:0"}, at)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	<-at
	words := make([]byte, 100)
	if n := testing.AllocsPerRun(500, func() {
		a.Send("b", words)
		<-at
	}); n > 1 {
		t.Errorf("%v allocations a message", n)
	}
}
