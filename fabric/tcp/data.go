package tcp

import (
	"io"

	"github.com/shoal-ml/shoal/fabric"
)

// mostUnsent is how many bytes of pieces the kernel takes before they can leave: 4 ms of 1 Gbit/s.
// It would take megabytes, and the host that begins a transfer first would encrypt them at once,
// while others on its processors have not heard of the transfer yet.
const mostUnsent = 512 << 10

// outgoing is a piece that waits to be sent. One goroutine has it at a time: who puts it into the
// queue of a link, and then the one that sends it.
type outgoing struct {
	fabric.Piece
	payload []byte // the memory of whoever called SendPiece, which is only read
}

// receivePieces reads pieces from a stream of data into the memory that the handler gives, until
// the stream ends. It is a goroutine of the link.
func (l *link) receivePieces(s *stream) error {
	name := make([]byte, headBytes+pieceBytes)
	var scratch []byte // for what nobody wants
	for {
		if _, err := io.ReadFull(s, name); err != nil {
			return err
		}
		p, err := parsePiece(name)
		if err != nil {
			return err
		}
		mem, ok := l.calls.Place(p)
		if !ok {
			return nil
		}
		if mem == nil && p.Length > 0 {
			if scratch == nil {
				scratch = make([]byte, readAhead)
			}
			err = discard(s, scratch, int(p.Length))
		} else {
			_, err = io.ReadFull(s, mem)
		}
		if err != nil || mem == nil {
			l.calls.EndUse()
		} else {
			l.calls.Arrived(p)
		}
		if err != nil {
			return noEOF(err)
		}
	}
}

// discard reads n bytes that nobody needs, into scratch, and blocks until they have come. The
// goroutine of receivePieces calls it.
func discard(from io.Reader, scratch []byte, n int) error {
	for n > 0 {
		step := min(n, len(scratch))
		if _, err := io.ReadFull(from, scratch[:step]); err != nil {
			return err
		}
		n -= step
	}
	return nil
}

// transmitPieces writes pieces to stream i of data until the link ends. It is a goroutine of the
// link. Small pieces that wait are written together.
func (l *link) transmitPieces(i int) error {
	s := l.data[i]
	var w pieceWriter = &plainWriter{to: s.raw}
	if s.secure() {
		w = &secureWriter{to: s}
	}
	for {
		o, ok := l.pieces.take(i)
		if !ok || !l.waitForLimits(i, int(o.Length)) {
			return nil
		}
		if !l.calls.BeginUse() { // from here to EndUse the payloads are there
			return nil
		}
		err, pieces := w.write(o), 1
		for n := int(o.Length); err == nil && n < gatherPieces; n += int(o.Length) {
			if l.isLimited() {
				break // each piece is held by itself
			}
			if o, ok = l.pieces.tryTake(i); !ok {
				break
			}
			err = w.write(o)
			pieces++
		}
		if err == nil {
			err = w.flush()
		}
		if err == nil {
			l.calls.PayloadsSent(pieces)
		}
		l.calls.EndUse()
		if err != nil {
			return err
		}
	}
}

// isLimited reports whether there is a limit of what may be sent. Any goroutine may call it.
func (l *link) isLimited() bool { return l.limit.isSet() || l.network.limit.isSet() }

// waitForLimits blocks until n bytes may be sent on stream i by both limits; false: the link has
// ended. The goroutine that sends on the stream calls it.
func (l *link) waitForLimits(i, n int) bool {
	if !l.isLimited() {
		return true
	}
	begun := sinceStart()
	ok := l.limit.wait(n, l.gone) && l.network.limit.wait(n, l.gone)
	l.heldFor[i].Add(int64(sinceStart() - begun))
	return ok
}

// pieceWriter writes frames of pieces to a stream of data. Only the goroutine of transmitPieces
// that made it uses it; both methods may block until the kernel takes what is written.
type pieceWriter interface {
	// write writes a piece, or keeps it, and its payload, until flush.
	write(o outgoing) error
	// flush writes all that write has kept.
	flush() error
}

// plainWriter is the pieceWriter without TLS: it gives the kernel names and payloads where they
// are, many at once.
type plainWriter struct {
	to      *wire                                       // the stream of data
	names   [maxVectors * (headBytes + pieceBytes)]byte // memory for the names
	used    []byte                                      // the names that wait for flush, in names
	vectors [][]byte                                    // names and payloads in turn, in room
	room    [2 * maxVectors][]byte                      // memory for vectors
}

// maxVectors is how many pieces go into one write.
const maxVectors = 32

// write adds a piece to the vectors, which keep the payload until flush, and flushes where they are
// full.
func (w *plainWriter) write(o outgoing) error {
	if w.vectors == nil {
		w.used, w.vectors = w.names[:0], w.room[:0]
	}
	from := len(w.used)
	w.used = appendPiece(w.used, o.Piece)
	w.vectors = append(w.vectors, w.used[from:], o.payload)
	if len(w.vectors) == cap(w.vectors) {
		return w.flush()
	}
	return nil
}

// flush writes all vectors; it blocks until the kernel has taken them.
func (w *plainWriter) flush() error {
	err := w.to.writeVectors(w.vectors)
	clear(w.room[:])
	w.used, w.vectors = w.names[:0], w.room[:0]
	return err
}

// secureWriter is the pieceWriter under TLS, whose records the stream gathers until flush.
type secureWriter struct {
	to *stream // the stream of data
	// first is memory for the name and the begin of a payload, which go in one record.
	first [16 << 10]byte
}

// write writes a piece to TLS, and may leave the end of it in the stream's buffer.
func (w *secureWriter) write(o outgoing) error {
	name := appendPiece(w.first[:0], o.Piece)
	n := copy(w.first[len(name):], o.payload)
	if _, err := w.to.Write(w.first[:len(name)+n]); err != nil {
		return err
	}
	if n == len(o.payload) {
		return nil
	}
	_, err := w.to.Write(o.payload[n:])
	return err
}

// flush writes what is in the stream's buffer; it blocks until the kernel has taken it.
func (w *secureWriter) flush() error { return w.to.raw.Flush() }
