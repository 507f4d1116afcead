package fabrictest

import (
	"testing"

	"github.com/shoal-ml/shoal/fabric"
)

// The test of limits of what is sent, one of the suite of Run. It runs on the goroutine of its
// test, waits on Recorders, and fails the test where the network does otherwise than the comment
// says.

// limited holds the pieces to a peer so that the second one would take years: it does not come
// before the limit is gone, while messages and what goes to others are not held. A limit of all
// peers together holds what goes to each of them, and its end may come with pieces held.
func limited(t *testing.T, h *hosts) {
	a := h.add("a")
	limiter, is := a.Network.(fabric.Limiter)
	if !is {
		return // it has no limits
	}
	b, c := h.add("b"), h.add("c")
	payload, transfer := make([]byte, 1000), uint64(0)
	const held, never = 3, 1e-6 // pieces, and bytes a second
	send := func(to *host) {
		for range held {
			transfer++
			a.SendPiece(to.Self(), fabric.Piece{Transfer: transfer, Length: 1000}, payload)
		}
	}
	// checkArrived checks that a host has got so many pieces in all, and no more, before a message
	// that was sent after them.
	messages := map[*host]int{}
	checkArrived := func(to *host, arrived int) {
		to.WaitArrived(a.Self(), arrived)
		a.Send(to.Self(), []byte("later"))
		messages[to]++
		to.WaitMessages(a.Self(), messages[to])
		if n := len(to.WaitArrived(a.Self(), arrived)); n != arrived {
			t.Errorf("%d pieces have come to %s, not %d", n, to.Self(), arrived)
		}
	}
	limiter.Limit(b.Self(), never)
	send(b)
	checkArrived(b, 1)
	send(c)
	c.WaitArrived(a.Self(), held)
	limiter.Limit(b.Self(), 0)
	b.WaitArrived(a.Self(), held)
	if counter, is := a.Network.(fabric.Counter); is {
		for peer, streams := range counter.Sent() {
			if (streams[0].Held > 0) != (peer == b.Self()) {
				t.Errorf("what goes to %s was held for %v", peer, streams[0].Held)
			}
		}
	}

	limiter.Limit("", never)
	send(b)
	checkArrived(b, held+1)
	send(c)
	checkArrived(c, held) // b has got the one piece that the limit of all lets pass
	limiter.Limit("", 1e12)
	b.WaitArrived(a.Self(), 2*held)
	c.WaitArrived(a.Self(), 2*held)

	limiter.Limit("nobody", never)
	limiter.Limit("", never)
	send(b)
	checkArrived(b, 2*held+1)
	a.Drop(b.Self(), fabric.ErrClosed)
	b.WaitDown(a.Self())
	a.WaitDown(b.Self())
	send(c)
}
