package tcp

import "sync"

const (
	// maxUnread is how many bytes of messages may wait for a peer that does not take them.
	maxUnread = 64 << 20
	// chunkBytes is how much is written to a control stream at a time, unless one message is
	// longer.
	chunkBytes = 64 << 10
)

// outbox is what waits to be written to a control stream: whole frames, in chunks of several.
type outbox struct {
	mu      sync.Mutex
	filled  sync.Cond // signals that take may have something to return
	chunks  [][]byte  // frames to be written; no chunk is empty
	waiting int       // bytes in chunks
	spares  [][]byte  // chunks that were written: one can be filled while another is on its way
	last    bool      // whether no frame can be added any more
	claimed bool      // whether a goroutine writes to the stream
	rest    bool      // whether the last writer has left bytes in the stream's buffer
}

// init makes an outbox whose stream is claimed until the first take: before, the link is being
// made.
func (o *outbox) init() { o.filled.L, o.claimed = &o.mu, true }

// put adds a frame; false: more than maxUnread bytes wait. After finish it does nothing.
func (o *outbox) put(k kind, body []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last {
		return true
	}
	if o.waiting > maxUnread {
		return false
	}
	o.add(k, body)
	return true
}

// add adds a frame; o.mu is held.
func (o *outbox) add(k kind, body []byte) {
	n := headBytes + len(body)
	i := len(o.chunks) - 1
	if i < 0 || cap(o.chunks[i])-len(o.chunks[i]) < n {
		o.chunks = append(o.chunks, o.empty(n))
		i++
	}
	o.chunks[i] = append(appendHead(o.chunks[i], k, len(body)), body...)
	o.waiting += n
	o.filled.Signal()
}

// empty returns a chunk with room for n bytes; o.mu is held.
func (o *outbox) empty(n int) []byte {
	if i := len(o.spares) - 1; i >= 0 && n <= chunkBytes {
		chunk := o.spares[i]
		o.spares = o.spares[:i]
		return chunk[:0]
	}
	return make([]byte, 0, max(n, chunkBytes))
}

// claim lets its caller write to the stream at once, until release; false: something waits, or is
// being written.
func (o *outbox) claim() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.claimed || o.rest || len(o.chunks) > 0 || o.last {
		return false
	}
	o.claimed = true
	return true
}

// release ends a claim; rest: something is left in the stream's buffer.
func (o *outbox) release(rest bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claimed, o.rest = false, rest
	o.filled.Signal()
}

// beat adds a sign of life, unless something is queued that is one too, or is just being added: it
// does not wait, for it is called on behalf of all peers.
func (o *outbox) beat() {
	if !o.mu.TryLock() {
		return
	}
	defer o.mu.Unlock()
	if o.waiting == 0 && !o.last {
		o.add(kindBeat, nil)
	}
}

// finish adds a goodbye; nothing can be added after it.
func (o *outbox) finish(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.last {
		o.add(kindGoodbye, []byte(sanitize(reason)))
	}
	o.last = true
}

// close throws away what is queued.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last, o.chunks, o.waiting = true, nil, 0
	o.filled.Signal()
}

// take claims the stream and waits for a chunk of frames, after the one before has been written,
// which is used again. An empty chunk: something is left in the stream's buffer; nil: that was all.
func (o *outbox) take(written []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cap(written) == chunkBytes && len(o.spares) < 2 {
		o.spares = append(o.spares, written)
	}
	o.claimed = false
	for o.claimed || len(o.chunks) == 0 && !o.rest && !o.last {
		o.filled.Wait()
	}
	if o.rest {
		o.rest, o.claimed = false, true
		return []byte{}
	}
	if len(o.chunks) == 0 {
		return nil
	}
	chunk := o.chunks[0]
	n := copy(o.chunks, o.chunks[1:])
	o.chunks[n] = nil
	o.chunks = o.chunks[:n]
	o.waiting -= len(chunk)
	o.claimed = true
	return chunk
}
