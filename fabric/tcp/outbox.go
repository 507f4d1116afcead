package tcp

import "sync"

// maxUnread is how many bytes of messages may wait for a peer that does not take them.
const maxUnread = 64 << 20

// outbox is what waits to be written to a control stream: whole frames, one behind the other.
type outbox struct {
	mu     sync.Mutex
	filled sync.Cond
	frames []byte
	spare  []byte // was written, and is used again
	last   bool   // nothing more comes
}

func (o *outbox) init() { o.filled.L = &o.mu }

// put adds a frame; false: there is too much.
func (o *outbox) put(k kind, body []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last {
		return true
	}
	if len(o.frames) > maxUnread {
		return false
	}
	o.frames = append(appendHead(o.frames, k, len(body)), body...)
	o.filled.Signal()
	return true
}

// beat adds a sign of life, unless something is queued that is one too.
func (o *outbox) beat() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.frames) == 0 && !o.last {
		o.frames = appendHead(o.frames, kindBeat, 0)
		o.filled.Signal()
	}
}

// finish adds a goodbye; nothing can be added after it.
func (o *outbox) finish(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.last {
		reason = clean(reason)
		o.frames = append(appendHead(o.frames, kindGoodbye, len(reason)), reason...)
	}
	o.last = true
	o.filled.Signal()
}

// close throws away what is queued.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last, o.frames = true, nil
	o.filled.Signal()
}

// take waits for frames; they are the caller's until the next take. last: they are the end.
func (o *outbox) take() (frames []byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.frames) == 0 && !o.last {
		o.filled.Wait()
	}
	frames = o.frames
	o.frames, o.spare = o.spare[:0], frames
	if cap(o.frames) > 1<<20 { // after a rush: do not hold on to the memory
		o.frames = nil
	}
	return frames, o.last
}
