package tcp

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// serveUntilEnd accepts connections until the test ends, and calls f for each on a goroutine of its
// own; it never fails the test. It takes l over: at the end of the test it closes l and all
// connections, and waits until every f has returned.
func serveUntilEnd(t *testing.T, l net.Listener, f func(net.Conn)) {
	g := group.New(context.Background())
	var mu sync.Mutex // guards open
	var open []net.Conn
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		g.Wait()
	})
	g.Go("accept", func(context.Context) error {
		for {
			c, err := l.Accept()
			if err != nil {
				return nil
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			g.Go("serve", func(context.Context) error {
				defer c.Close()
				f(c)
				return nil
			})
		}
	})
}

// cable is a way to an address that can be cut: then nothing passes in either direction, and nobody
// is told.
type cable struct {
	mu       sync.Mutex   // guards cut
	cut      bool         // whether nothing passes any more
	listener net.Listener // the near end, which leadTo takes over
}

// newCable returns a cable that leads nowhere yet, with its near end on the loopback; leadTo closes
// that when the test ends. Without a port it fails the test.
func newCable(t *testing.T) *cable {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &cable{listener: l}
}

// address returns the HOST:PORT of its near end.
func (c *cable) address() string { return c.listener.Addr().String() }

// leadTo makes the cable lead to an address, until the test ends.
func (c *cable) leadTo(t *testing.T, address string) {
	serveUntilEnd(t, c.listener, func(near net.Conn) { c.connect(near, address) })
}

// connect carries a connection to an address, and blocks until it ends.
func (c *cable) connect(near net.Conn, address string) {
	far, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	g := group.New(context.Background())
	g.Go("there", func(context.Context) error { c.carry(far, near); return nil })
	g.Go("back", func(context.Context) error { c.carry(near, far); return nil })
	g.Wait()
}

// carry copies from one connection to the other and blocks until `from` ends. Then it closes the
// other one too, unless the cable was cut: from the cut on what comes is thrown away.
func (c *cable) carry(to, from net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		c.mu.Lock()
		cut := c.cut
		c.mu.Unlock()
		switch {
		case err != nil && !cut:
			to.Close()
			return
		case err != nil:
			return
		case !cut:
			to.Write(b[:n])
		}
	}
}

// Cut cuts the cable, from any goroutine; connections over it stay open and carry nothing.
func (c *cable) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
}
