package tcp

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// wire is a TCP connection as TLS sees it. It reads much at a time, notes when something came, and
// gathers what TLS writes record by record until Flush, because a system call for each record of 16
// KiB costs more than its encryption.
type wire struct {
	*socket
	in    *bufio.Reader
	heard *atomic.Int64 // when something came last on its link, as sinceStart; nil = no link yet

	mu   sync.Mutex // TLS may answer while it reads
	most int        // how many bytes are gathered; 0 = everything is written at once
	out  []byte     // the bytes gathered; nil before the first, as most streams of data have none
}

const (
	readAhead    = 64 << 10
	gatherWords  = 32 << 10 // bytes gathered before they are written to a control stream
	gatherPieces = 64 << 10 // bytes gathered before they are written to a stream of data
)

var start = time.Now()

// sinceStart is the clock of this process: it never goes back.
func sinceStart() time.Duration { return time.Since(start) }

func newWire(c *net.TCPConn) *wire {
	w := &wire{socket: newSocket(c)}
	w.in = bufio.NewReaderSize((*source)(w), readAhead)
	return w
}

// source is the connection below the buffer.
type source wire

func (s *source) Read(b []byte) (int, error) {
	n, err := s.socket.Read(b)
	if n > 0 && s.heard != nil {
		s.heard.Store(int64(sinceStart()))
	}
	return n, err
}

func (w *wire) Read(b []byte) (int, error) { return w.in.Read(b) }

// gather makes Write wait for Flush, or until so many bytes have come together.
func (w *wire) gather(n int) { w.most = n }

func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.out)+len(b) > w.most {
		if err := w.flush(); err != nil {
			return 0, err
		}
		if len(b) > w.most {
			return w.socket.Write(b)
		}
	}
	if w.out == nil {
		w.out = make([]byte, 0, w.most)
	}
	w.out = append(w.out, b...)
	return len(b), nil
}

// Flush writes what was gathered.
func (w *wire) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush()
}

func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.socket.Write(w.out)
	w.out = w.out[:0]
	return err
}

// flushNow writes what was gathered as far as the kernel takes it without waiting, and reports
// whether that was all of it. Of an error the next Flush tells.
func (w *wire) flushNow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.socket.writeNow(w.out)
	w.out = append(w.out[:0], w.out[n:]...)
	return len(w.out) == 0
}
