package tcp

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// TestPendingIsBounded: one more than there is room for closes the oldest, and is not served before
// somebody has let go of a descriptor.
func TestPendingIsBounded(t *testing.T) {
	p := newPending(2 * descriptorsPerPending)
	var ends [3]net.Conn
	var places [2]*pendingConn
	enter := func(i int) (*pendingConn, bool) {
		var near net.Conn
		near, ends[i] = net.Pipe()
		return p.enter(t.Context(), near)
	}
	for i := range places {
		places[i], _ = enter(i)
	}
	entered := make(chan *pendingConn)
	g := group.New(t.Context())
	g.Go("third", func(context.Context) error {
		at, _ := enter(2)
		entered <- at
		return nil
	})
	if _, err := ends[0].Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the oldest was not closed: %v", err)
	}
	select {
	case <-entered:
		t.Fatal("a third connection is served, and nobody has left")
	default:
	}
	if p.leave(places[0]) || p.leave(places[0]) {
		t.Error("the connection that was closed counts as kept")
	}
	if !p.leave(<-entered) || !p.leave(places[1]) || !p.leave(places[1]) {
		t.Error("a connection that nobody closed does not count as kept")
	}
	if err := g.Wait(); err != nil || len(p.slots) > 0 || p.conns.Len() > 0 {
		t.Errorf("%d are counted and %d known when all have left, %v", len(p.slots),
			p.conns.Len(), err)
	}
}

// TestPendingLeavesDescriptors: where a process may have few descriptors, connections in the
// handshake take a quarter of them.
func TestPendingLeavesDescriptors(t *testing.T) {
	for descriptors, want := range map[uint64]int{
		0: maxPending, 1 << 20: maxPending, 128: 32, 2: 1,
	} {
		if got := cap(newPending(descriptors).slots); got != want {
			t.Errorf("%d of %d descriptors", got, descriptors)
		}
	}
}
