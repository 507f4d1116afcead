package dash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// What all servers here have in common: they read, they listen where they were told, and who asks
// too much gets less. A server accepts connections on one goroutine, and answers each on its own.

const (
	// maxConnections is how many connections are open at a time; more are closed at once.
	maxConnections = 128
	// maxBurst is how many connections are taken in burstPeriod, so that a flood of them, at some
	// 75 microseconds each, costs 1 % of a processor. What comes beyond that waits.
	maxBurst    = 64
	burstPeriod = time.Second / 2
	// maxHeader is how many bytes the head of a request has, beside the 4 KiB that net/http adds.
	maxHeader = 4 << 10
	// headPatience is how long the head and the body of a request may take to come.
	headPatience = 5 * time.Second
)

// limited is a listener that closes connections above a number at once, and takes no more than some
// a second.
type limited struct {
	*net.TCPListener
	open atomic.Int64
	// For Accept alone: when the period began, and how many connections were taken in it.
	began time.Time
	burst int
}

// Accept waits for a connection. One goroutine at a time calls it.
func (l *limited) Accept() (net.Conn, error) {
	for {
		if l.burst >= maxBurst {
			time.Sleep(time.Until(l.began.Add(burstPeriod)))
		}
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if now := time.Now(); now.Sub(l.began) >= burstPeriod {
			l.began, l.burst = now, 0
		}
		l.burst++
		if l.open.Add(1) <= maxConnections {
			return &counted{TCPConn: c, open: &l.open}, nil
		}
		l.open.Add(-1)
		c.Close()
	}
}

// counted is a connection that is counted until it is closed. The goroutine of its request uses it.
type counted struct {
	*net.TCPConn
	open   *atomic.Int64
	closed atomic.Bool
}

// Close implements net.Conn: it closes the connection, and counts it no more. A second call only
// fails.
func (c *counted) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.TCPConn.Close()
}

// listen listens on HOST:PORT. flag is how the user has named the address, for the error. serve
// closes the listener.
func listen(flag, address string) (*limited, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		way := "give HOST:PORT of this host, such as 127.0.0.1:0 for any port"
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
			way = "choose another port, or 0 for any"
		}
		return nil, fmt.Errorf("%s %s: %w; %s", flag, address, err, way)
	}
	tcp := l.(*net.TCPListener)
	if raw, err := tcp.SyscallConn(); err == nil { // a longer queue would outlast a flood by far
		_ = raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), maxConnections) })
	}
	return &limited{TCPListener: tcp}, nil
}

// serve serves on a listener until ctx ends, for which it waits, and closes it. What still waits
// then is cut off. A connection is for one request, so that what bounds connections bounds requests
// too: those that come on one that is kept would be as many as somebody can send.
func serve(ctx context.Context, l *limited, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headPatience,
		ReadTimeout: headPatience, WriteTimeout: sendPatience,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       log.New(io.Discard, "", 0), // who hangs up early is no news
		BaseContext:    func(net.Listener) context.Context { return ctx }}
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// hostGuard refuses requests to names that are not those of this server: a page elsewhere whose
// name comes to mean this machine (DNS rebinding) would else read what is here. Nobody changes it,
// so the goroutines of requests may use it at once.
type hostGuard struct {
	names    []string // in lower case
	loopback bool     // it can be reached from this machine alone
	next     http.Handler
}

// newHostGuard guards a server that was told to listen at HOST:PORT.
func newHostGuard(address string, next http.Handler) *hostGuard {
	g := &hostGuard{names: []string{"localhost", "127.0.0.1", "::1"}, next: next}
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	g.loopback = host == "localhost" || ip != nil && ip.IsLoopback()
	if host != "" {
		g.names = append(g.names, strings.ToLower(host))
	}
	if name, err := os.Hostname(); err == nil && !g.loopback {
		g.names = append(g.names, strings.ToLower(name))
	}
	return g
}

// isOwnName reports whether a Host of a request is a name of this server. Where others may come
// from elsewhere, so is any address, of which no page elsewhere can dispose, and this machine's
// name with any domain, which such a page would have to know.
func (g *hostGuard) isOwnName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	for _, name := range g.names {
		if host == name || !g.loopback && name != "localhost" && net.ParseIP(name) == nil &&
			strings.HasPrefix(host, name+".") {
			return true
		}
	}
	return !g.loopback && net.ParseIP(host) != nil
}

// ServeHTTP implements http.Handler: it refuses a request to another name, and leaves others to
// next. It runs on the goroutine of the request.
func (g *hostGuard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.isOwnName(r.Host) {
		w.Header().Set("Connection", "close")
		http.Error(w, "this server has another name: ask by the address that it has printed, or "+
			"name it where you start it", http.StatusMisdirectedRequest)
		return
	}
	if path.Clean(r.URL.Path) != r.URL.Path { // net/http would say where that leads
		http.NotFound(w, r)
		return
	}
	g.next.ServeHTTP(w, r)
}
