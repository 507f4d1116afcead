package tcp

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A TCP connection below TLS, for the streams of links.

// wire is a TCP connection as TLS sees it. It reads much at a time, notes when something came, and
// gathers what TLS writes record by record until Flush, because a system call for each record of 16
// KiB costs more than its encryption. One goroutine may read while others call Write and Flush;
// writeVectors is for the only goroutine that writes to a stream without TLS.
type wire struct {
	*socket
	in    *bufio.Reader // reads ahead of TLS; only the goroutine that reads uses it, and begun
	begun []byte        // what was read from the connection before there was a wire
	// heard is when something came last on the stream's link, in nanoseconds of sinceStart; nil =
	// it has no link yet. It is set before the link's goroutines start.
	heard *atomic.Int64

	mu          sync.Mutex // guards the fields below: TLS may write an answer while it reads
	gatherLimit int        // how many bytes are gathered; 0 = all is written at once; set once
	// out is the bytes gathered; nil before the first, as most streams of data have none.
	out []byte
}

const (
	readAhead    = 64 << 10 // bytes read from a connection at a time
	gatherWords  = 32 << 10 // bytes gathered before they are written to a control stream
	gatherPieces = 64 << 10 // bytes gathered before they are written to a stream of data
)

// start is where sinceStart begins.
var start = time.Now()

// sinceStart returns the time since this process began, by a clock that never goes back. Any
// goroutine may call it.
func sinceStart() time.Duration { return time.Since(start) }

// newWire returns a wire that takes over a connection. It is made before other goroutines know the
// connection.
func newWire(c *net.TCPConn) *wire {
	w := &wire{socket: newSocket(c)}
	w.in = bufio.NewReaderSize((*source)(w), readAhead)
	return w
}

// source is a wire as its buffer reads it: from the socket, noting when something came. Only the
// goroutine that reads from the wire uses it.
type source wire

// Read reads from the socket, blocks where nothing is there, and stores in s.heard when something
// came.
func (s *source) Read(b []byte) (int, error) {
	if len(s.begun) > 0 {
		n := copy(b, s.begun)
		s.begun = s.begun[n:]
		return n, nil
	}
	n, err := s.socket.Read(b)
	if n > 0 && s.heard != nil {
		s.heard.Store(int64(sinceStart()))
	}
	return n, err
}

// Read reads what the peer sent, through the buffer, and blocks where there is nothing. One
// goroutine may read while others write.
func (w *wire) Read(b []byte) (int, error) { return w.in.Read(b) }

// setGatherLimit makes Write keep bytes until Flush, or until there are more than n. It is called
// before the first Write of the link.
func (w *wire) setGatherLimit(n int) { w.gatherLimit = n }

// Write keeps b to be written with what follows, or writes it together with what was kept before,
// and then blocks until the kernel has taken it.
func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.out)+len(b) > w.gatherLimit {
		if err := w.flushLocked(); err != nil {
			return 0, err
		}
		if len(b) > w.gatherLimit {
			return w.socket.Write(b)
		}
	}
	if w.out == nil {
		w.out = make([]byte, 0, w.gatherLimit)
	}
	w.out = append(w.out, b...)
	return len(b), nil
}

// Flush writes what was kept, and blocks until the kernel has taken it.
func (w *wire) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flushLocked()
}

// flushLocked is Flush; w.mu is held.
func (w *wire) flushLocked() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.socket.Write(w.out)
	w.out = w.out[:0]
	return err
}

// flushNow writes what was kept as far as the kernel takes it without waiting, and reports whether
// that was all of it. The next Flush returns an error that there was.
func (w *wire) flushNow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.socket.writeNow(w.out)
	w.out = append(w.out[:0], w.out[n:]...)
	return len(w.out) == 0
}
