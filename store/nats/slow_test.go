package nats

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/store"
)

// TestSlow puts a line between client and server that stops to carry anything.
func TestSlow(t *testing.T) {
	e := startElsewhere(t, nil)
	l := newLine(t, strings.TrimPrefix(e.servers.URL, "nats://"))
	s, err := Connect(t.Context(), Servers{URL: "nats://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l.stop()
	ctx, cancel := context.WithCancel(t.Context())
	held := l.held
	g := group.New(t.Context())
	g.Go("who loses patience", func(context.Context) error {
		<-held // the request is under way
		cancel()
		return nil
	})
	if _, err := s.Create(ctx, "a", nil); !errors.Is(err, store.ErrUnavailable) ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("a call that was given up: %v", err)
	}
	l.resume()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	for err = store.ErrUnavailable; errors.Is(err, store.ErrUnavailable); {
		_, err = s.Create(t.Context(), "a", nil)
	}
	if !errors.Is(err, store.ErrExists) { // it was late, and not lost
		t.Errorf("after the delay: %v", err)
	}
}

// line carries bytes from one client to a server and back.
type line struct {
	net.Listener
	held chan struct{} // closed when bytes of the client wait
	mu   sync.Mutex
	open chan struct{} // closed while the line carries
}

// newLine returns a line to the server at an address, which carries until the test ends.
func newLine(t *testing.T, to string) *line {
	t.Helper()
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{Listener: in, held: make(chan struct{}), open: make(chan struct{})}
	close(l.open)
	g := group.New(context.Background())
	g.Go("line", func(context.Context) error {
		a, err := in.Accept()
		if err != nil {
			return nil
		}
		defer a.Close()
		b, err := net.Dial("tcp", to)
		if err != nil {
			return err
		}
		defer b.Close()
		g.Go("line back", func(context.Context) error { io.Copy(a, b); a.Close(); return nil })
		l.copyUntilStopped(b, a)
		return nil
	})
	t.Cleanup(func() {
		in.Close()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// copyUntilStopped copies bytes one way until either side ends; it waits while the line is stopped.
func (l *line) copyUntilStopped(to io.Writer, from io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		open := l.open
		l.mu.Unlock()
		select {
		case <-open:
		default:
			close(l.held)
			<-open
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// stop makes the line carry nothing.
func (l *line) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

// resume makes the line carry again.
func (l *line) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.open)
}
