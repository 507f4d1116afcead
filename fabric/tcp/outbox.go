package tcp

import "sync"

const (
	// maxUnread is how many bytes of messages may wait for a peer that does not take them.
	maxUnread = 64 << 20
	// chunkBytes is how much is written to a control stream at a time, unless one message is
	// longer.
	chunkBytes = 64 << 10
)

// outbox is what waits to be written to a control stream: whole frames, in chunks of several. Any
// goroutine may call its methods, but for init and takeChunk; only takeChunk blocks, and no method
// writes to the stream.
type outbox struct {
	mu      sync.Mutex // guards the fields below it
	filled  sync.Cond  // signals that takeChunk may have something to return
	chunks  [][]byte   // frames to be written; no chunk is empty
	waiting int        // bytes in chunks
	spares  [][]byte   // chunks that were written: one can be filled while another is on its way
	ended   bool       // whether no frame can be added any more
	claimed bool       // whether a goroutine writes to the stream
	rest    bool       // whether the last writer has left bytes in the stream's buffer
}

// init prepares an outbox whose stream is claimed until the first takeChunk: before, the link is
// being made.
func (o *outbox) init() { o.filled.L, o.claimed = &o.mu, true }

// put adds a frame, which it copies; false: more than maxUnread bytes wait. After finish or close
// it does nothing, and returns true.
func (o *outbox) put(k kind, body []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return true
	}
	if o.waiting > maxUnread {
		return false
	}
	o.addFrame(k, body)
	return true
}

// addFrame adds a copy of a frame to the chunks; o.mu is held.
func (o *outbox) addFrame(k kind, body []byte) {
	n := headBytes + len(body)
	i := len(o.chunks) - 1
	if i < 0 || cap(o.chunks[i])-len(o.chunks[i]) < n {
		o.chunks = append(o.chunks, o.emptyChunk(n))
		i++
	}
	o.chunks[i] = append(appendHead(o.chunks[i], k, len(body)), body...)
	o.waiting += n
	o.filled.Signal()
}

// emptyChunk returns a chunk with room for n bytes, one that was written if there is one; o.mu is
// held.
func (o *outbox) emptyChunk(n int) []byte {
	if i := len(o.spares) - 1; i >= 0 && n <= chunkBytes {
		chunk := o.spares[i]
		o.spares = o.spares[:i]
		return chunk[:0]
	}
	return make([]byte, 0, max(n, chunkBytes))
}

// tryClaim lets its caller write to the stream at once, until releaseClaim; false: something waits
// or is being written, or the link ends. It does not wait.
func (o *outbox) tryClaim() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.claimed || o.rest || len(o.chunks) > 0 || o.ended {
		return false
	}
	o.claimed = true
	return true
}

// releaseClaim ends a claim; rest is whether something is left in the stream's buffer, which
// takeChunk's caller then writes.
func (o *outbox) releaseClaim(rest bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claimed, o.rest = false, rest
	o.filled.Signal()
}

// addBeat adds a sign of life, unless something is queued that is one too, or is just being added:
// it does not wait, for it is called on behalf of all peers.
func (o *outbox) addBeat() {
	if !o.mu.TryLock() {
		return
	}
	defer o.mu.Unlock()
	if o.waiting == 0 && !o.ended {
		o.addFrame(kindBeat, nil)
	}
}

// finish adds a goodbye; nothing can be added after it, and takeChunk ends when it is written.
func (o *outbox) finish(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.addFrame(kindGoodbye, []byte(sanitize(reason)))
	}
	o.ended = true
}

// close throws away what is queued; nothing can be added after it, and takeChunk ends.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.chunks, o.waiting = true, nil, 0
	o.filled.Signal()
}

// takeChunk claims the stream and blocks until there is a chunk of frames. It takes back the chunk
// that its caller has written, to be used again. An empty chunk: something is left in the stream's
// buffer; nil: that was all. Only writeQueued calls it.
func (o *outbox) takeChunk(written []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cap(written) == chunkBytes && len(o.spares) < 2 {
		o.spares = append(o.spares, written)
	}
	o.claimed = false
	for o.claimed || len(o.chunks) == 0 && !o.rest && !o.ended {
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
