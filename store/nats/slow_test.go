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

// TestSlow: a call that waits for a server ends with its context, and what it has sent still counts
// once the server goes on. A proxy between client and server stops carrying anything.
func TestSlow(t *testing.T) {
	e := startElsewhere(t, nil)
	l := startProxy(t, strings.TrimPrefix(e.servers.URL, "nats://"))
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

// proxy carries bytes from one client to a server and back. It can be stopped once.
type proxy struct {
	net.Listener               // where the client connects
	held         chan struct{} // closed when bytes of the client wait
	mu           sync.Mutex    // guards open
	open         chan struct{} // closed while the proxy carries
}

// startProxy returns a proxy to the server at an address, HOST:PORT. The cleanup of the test waits
// until both sides have hung up, which the test must bring about.
func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &proxy{Listener: in, held: make(chan struct{}), open: make(chan struct{})}
	close(l.open)
	g := group.New(context.Background())
	g.Go("proxy", func(context.Context) error {
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
		g.Go("proxy back", func(context.Context) error { io.Copy(a, b); a.Close(); return nil })
		l.copyUntilEnd(b, a)
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

// copyUntilEnd copies bytes one way until either side ends, on a goroutine of the proxy; while the
// proxy is stopped it closes l.held, and waits.
func (l *proxy) copyUntilEnd(to io.Writer, from io.Reader) {
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

// stop makes the proxy carry nothing from the client to the server until resume.
func (l *proxy) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

// resume makes the proxy carry again.
func (l *proxy) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.open)
}
