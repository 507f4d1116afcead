package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/accrual"
	"github.com/shoal-ml/shoal/internal/group"
)

// goodbyeTime is how long a link that this side ends may take to get rid of its messages and its
// goodbye.
const goodbyeTime = 2 * time.Second

// stream is one connection of a link, or one that may become that. One goroutine may read from it
// while another one writes.
type stream struct {
	net.Conn        // carries the frames: TLS, or for plain data the wire itself
	raw      *wire  // the connection itself, under TLS or without
	frames   frames // reads frames from Conn
	// unbind is called when the stream becomes one of a link. Until then it is closed when the
	// network closes; later its link has to end in an orderly way.
	unbind func()
}

// newStream returns a stream over a wire that carries its frames in c: the wire itself, or TLS on
// it. The goroutine that has opened or accepted the connection calls it, before others know the
// stream.
func newStream(w *wire, c net.Conn) *stream {
	return &stream{Conn: c, raw: w, frames: frames{from: c}}
}

// abandon closes a stream that did not become one of a link. Whoever opened it calls it.
func (s *stream) abandon() {
	s.unbind()
	s.raw.Close()
}

// secure reports whether the stream is under TLS.
func (s *stream) secure() bool { return s.Conn != net.Conn(s.raw) }

// link is what this agent has with one peer. A method says so if it is one of the goroutines of the
// link, or if any goroutine may call it. Fields without a word on who uses them are set in newLink,
// and lock themselves where they change.
type link struct {
	network *Network      // the Network of this agent
	peer    fabric.Host   // the host at the other end
	calls   *fabric.Calls // calls the handler of the network
	control *stream       // the stream of messages and signs of life
	data    []*stream     // the streams of data; fabric.MaxStreams of them
	outbox  outbox        // frames that wait for the control stream
	pieces  sendQueue     // pieces that wait for the streams of data
	limit   bucket        // holds the pieces of this link
	// heldFor is for how long a limit has held each stream of data, in nanoseconds.
	heldFor [fabric.MaxStreams]atomic.Int64
	gone    chan struct{} // closed with pieces
	// directFrame is the last frame that writeDirect has written. Who has claimed the outbox uses
	// it; its memory is used again.
	directFrame []byte

	// host and process judge the silence of the peer's host and of its process, and suspect that of
	// the process while somebody says that it is gone: until suspectUntil, in nanoseconds of
	// sinceStart.
	host, process, suspect *accrual.Detector[time.Duration]
	suspectUntil           atomic.Int64
	// acked returns for how long the peer's kernel has acknowledged nothing; false: that is not
	// known.
	acked func() (time.Duration, bool)
	// others are the streams of data over other interfaces than that of the control stream. Like
	// host and process, only monitor uses them.
	others []*otherPath
	// heard is when something came last on any stream, in nanoseconds of sinceStart.
	heard atomic.Int64
	// delivering says that the handler is at work, so that nobody reads the control stream.
	delivering atomic.Bool

	once  sync.Once   // lets the first end count
	ended chan ending // how the link ends; has room for one
}

// ending is why and how a link ends.
type ending struct {
	err     error  // the error that Down is told
	goodbye bool   // whether the peer is told
	reason  string // what the peer is told; "" = the network closes
}

// newLink makes a link of streams that are open, and takes them over. It starts no goroutine.
func newLink(m *Network, peer fabric.Host, control *stream, data []*stream) *link {
	now := sinceStart()
	l := &link{
		network: m, peer: peer, calls: fabric.NewCalls(m.handler, peer, &m.payloads),
		control: control,
		data:    data, ended: make(chan ending, 1), gone: make(chan struct{}),
		host: accrual.New(beatInterval, now), process: accrual.New(patience*beatInterval, now),
		suspect: accrual.New(beatInterval, now),
		acked:   func() (time.Duration, bool) { return timeSinceAck(control.raw.TCPConn) },
	}
	l.heard.Store(int64(now))
	l.outbox.init()
	l.pieces.init()
	control.raw.setGatherLimit(gatherWords)
	for _, s := range data {
		s.raw.limitUnsent(mostUnsent)
		if s.secure() {
			s.raw.setGatherLimit(gatherPieces)
		}
		if !s.raw.RemoteAddr().(*net.TCPAddr).IP.Equal(control.raw.RemoteAddr().(*net.TCPAddr).IP) {
			l.others = append(l.others,
				&otherPath{accrual.New(patience*beatInterval, now), func() time.Duration {
					return ackOwedFor(s.raw.TCPConn)
				}})
		}
	}
	for _, s := range l.streams() {
		s.unbind()
		s.raw.heard = &l.heard
		s.SetDeadline(time.Time{})
	}
	return l
}

// streams returns all streams of the link, the control stream first, in a new list. They never
// change, so any goroutine may call it.
func (l *link) streams() []*stream { return append([]*stream{l.control}, l.data...) }

// start starts the goroutine of run. Whoever made the link calls it once, after setLinked has
// recorded the link.
func (l *link) start() { l.network.group.Go("link with "+string(l.peer), l.run) }

// end has run end the link and does not wait; the first reason counts. Any goroutine may call it.
func (l *link) end(e ending) { l.once.Do(func() { l.ended <- e }) }

// send writes a frame to the control stream, or queues a copy of it where that would have to wait.
// Where more than maxUnread bytes wait already, it ends the link. Any goroutine may call it.
func (l *link) send(k kind, body []byte) {
	if len(body) <= directBytes && l.outbox.tryClaim() {
		l.writeDirect(k, body)
	} else if !l.outbox.put(k, body) {
		l.end(ending{err: fmt.Errorf("it leaves more than %d MiB of messages unread",
			maxUnread>>20), goodbye: true, reason: "too many unread messages"})
	}
}

// directBytes is how long a frame may be, in bytes, that send writes itself.
const directBytes = 8 << 10

// writeDirect writes a frame to the control stream, which its caller has claimed. Waking the
// goroutine of writeQueued takes longer than writing, and what the caller sends next, such as
// pieces, must not get ahead. What the kernel does not take at once is left to writeQueued.
func (l *link) writeDirect(k kind, body []byte) {
	l.directFrame = append(appendHead(l.directFrame[:0], k, len(body)), body...)
	_, err := l.control.Write(l.directFrame)
	l.outbox.releaseClaim(err == nil && !l.control.raw.flushNow())
	l.endByError(err)
}

// run is the goroutine of a link: it tells the handler of Up, starts those that read and write,
// waits for the end, and tells it of Down. It returns when all streams are closed.
func (l *link) run(ctx context.Context) error {
	l.network.config.Log.Info("linked", "agent", string(l.peer), "address",
		l.control.RemoteAddr().String())
	l.delivering.Store(true)
	l.calls.Up()
	l.delivering.Store(false)
	talk, data := group.New(ctx), group.New(ctx)
	talk.Go("listens", l.readControl)
	talk.Go("talks", l.writeQueued)
	for i, s := range l.data {
		data.Go("receives", func(context.Context) error {
			l.endByError(l.receivePieces(s))
			return nil
		})
		data.Go("sends", func(context.Context) error {
			l.endByError(l.transmitPieces(i))
			return nil
		})
	}

	e := <-l.ended
	l.network.config.Log.Info("link ended", "agent", string(l.peer), "reason", e.err)
	l.network.setLinkLost(l)
	// A deadline in the past stops all goroutines that use the streams of data. To close them now
	// could look to the peer like a crash.
	for _, s := range l.data {
		s.raw.SetDeadline(time.Unix(1, 0))
	}
	l.pieces.close()
	close(l.gone)
	if e.goodbye {
		l.outbox.finish(e.reason)
		l.control.raw.SetDeadline(time.Now().Add(goodbyeTime))
	} else {
		l.outbox.close()
		l.control.raw.Close()
	}
	l.calls.Down(e.err)
	talk.Wait()
	for _, s := range l.streams() {
		s.raw.Close()
	}
	return data.Wait()
}

// endByError ends the link because of an error on one of its streams, unless err is nil. Any
// goroutine may call it.
func (l *link) endByError(err error) {
	if err == nil {
		return
	}
	if errors.Is(err, errFrame) {
		l.end(ending{err: err, goodbye: true, reason: err.Error()})
		return
	}
	l.end(ending{err: fmt.Errorf(
		"%w without a goodbye: its process is gone, or the connection broke (%v)", fabric.ErrClosed,
		err)})
}

// readControl reads the control stream until the peer hangs up, and calls the handler. It is a
// goroutine of the link. After the end of the link it only waits for the peer to hang up.
func (l *link) readControl(context.Context) error {
	for {
		k, body, err := l.control.frames.nextFrame(kindMessage, kindBeat, kindGoodbye)
		switch {
		case err != nil:
			l.endByError(err)
			if errors.Is(err, errFrame) { // the peer is told so, and hangs up
				io.Copy(io.Discard, l.control)
			}
			l.outbox.close()
			l.control.raw.Close()
			return nil
		case k == kindMessage:
			l.delivering.Store(true)
			l.calls.Message(body)
			l.delivering.Store(false)
		case k == kindGoodbye:
			err := fabric.ErrClosed
			if len(body) > 0 {
				err = fmt.Errorf("%w: %s", fabric.ErrClosed, sanitize(string(body)))
			}
			l.end(ending{err: err})
			l.outbox.close()
			return nil
		}
	}
}

// writeQueued writes what is queued for the control stream until the link ends. It is a goroutine
// of the link.
func (l *link) writeQueued(context.Context) error {
	var chunk []byte
	for {
		if chunk = l.outbox.takeChunk(chunk); chunk == nil {
			l.control.raw.CloseWrite()
			return nil
		}
		if err := l.writeChunk(chunk); err != nil {
			l.endByError(err)
			return nil
		}
	}
}

// writeChunk writes frames, which may be none, and all that is in the stream's buffer, and blocks
// until the kernel has taken it. Its caller has claimed the stream.
func (l *link) writeChunk(chunk []byte) error {
	if len(chunk) > 0 {
		if _, err := l.control.Write(chunk); err != nil {
			return err
		}
	}
	return l.control.raw.Flush()
}
