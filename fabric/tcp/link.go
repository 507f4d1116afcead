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

// stream is one connection of a link.
type stream struct {
	net.Conn // what is spoken on: TLS, or for plain data the connection itself
	raw      *wire
	frames   frames
	// unbind is called when the stream becomes one of a link. Until then it is closed when the
	// network closes; later its link has to end in an orderly way.
	unbind func()
}

func newStream(w *wire, c net.Conn) *stream {
	return &stream{Conn: c, raw: w, frames: frames{from: c}}
}

// abandon closes a stream that did not become one of a link.
func (s *stream) abandon() {
	s.unbind()
	s.raw.Close()
}

// secure reports whether the stream is under TLS.
func (s *stream) secure() bool { return s.Conn != net.Conn(s.raw) }

// link is what this agent has with one peer.
type link struct {
	network *Network
	peer    fabric.Host
	calls   *fabric.Calls
	control *stream
	data    []*stream
	words   outbox    // frames that wait for the control stream
	said    []byte    // the last frame that was written to it directly
	pieces  sendQueue // pieces that wait for the streams of data

	// host and process judge the silence of the peer's host and of its process.
	host, process *accrual.Detector[time.Duration]
	// acked is for how long the peer's kernel has acknowledged nothing; false = that is not known.
	acked func() (time.Duration, bool)
	// others are the streams of data over other interfaces than that of the control stream.
	others []*otherPath
	// heard is when something came last, as sinceStart.
	heard atomic.Int64
	// delivering says that the handler is at work, and nobody reads the control stream.
	delivering atomic.Bool

	once  sync.Once
	ended chan ending
}

// ending is why and how a link ends.
type ending struct {
	err     error  // the error that Down is told
	goodbye bool   // whether the peer is told
	reason  string // what the peer is told; "" = the network closes
}

func newLink(m *Network, peer fabric.Host, control *stream, data []*stream) *link {
	now := sinceStart()
	l := &link{
		network: m, peer: peer, calls: fabric.NewCalls(m.handler, peer, &m.payloads),
		control: control,
		data:    data, ended: make(chan ending, 1),
		host: accrual.New(beatInterval, now), process: accrual.New(patience*beatInterval, now),
		acked: func() (time.Duration, bool) { return acked(control.raw.TCPConn) },
	}
	l.heard.Store(int64(now))
	l.words.init()
	l.pieces.init()
	control.raw.gather(gatherWords)
	for _, s := range data {
		s.raw.limit(mostUnsent)
		if s.secure() {
			s.raw.gather(gatherPieces)
		}
		if !s.raw.RemoteAddr().(*net.TCPAddr).IP.Equal(control.raw.RemoteAddr().(*net.TCPAddr).IP) {
			l.others = append(l.others,
				&otherPath{accrual.New(patience*beatInterval, now), func() time.Duration {
					return owed(s.raw.TCPConn)
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

func (l *link) streams() []*stream { return append([]*stream{l.control}, l.data...) }

// start lets the link live; it has been met.
func (l *link) start() { l.network.group.Go("link with "+string(l.peer), l.run) }

// end ends the link and does not wait; the first reason counts.
func (l *link) end(e ending) { l.once.Do(func() { l.ended <- e }) }

// send writes a frame to the control stream, or queues it where that would have to wait.
func (l *link) send(k kind, body []byte) {
	if len(body) <= directBytes && l.words.claim() {
		l.say(k, body)
	} else if !l.words.put(k, body) {
		l.end(ending{err: fmt.Errorf("it leaves more than %d MiB of messages unread",
			maxUnread>>20), goodbye: true, reason: "too many unread messages"})
	}
}

// directBytes is how long a frame may be that is not left to who talks.
const directBytes = 8 << 10

// say writes a frame to the control stream, which it has claimed. Waking who talks takes longer
// than writing, and what its caller sends next, such as pieces, must not get ahead. What the kernel
// does not take at once is left to who talks.
func (l *link) say(k kind, body []byte) {
	l.said = append(appendHead(l.said[:0], k, len(body)), body...)
	_, err := l.control.Write(l.said)
	l.words.release(err == nil && !l.control.raw.flushNow())
	l.lose(err)
}

// run is the life of a link.
func (l *link) run(ctx context.Context) error {
	l.network.config.Log.Info("linked", "agent", string(l.peer), "address",
		l.control.RemoteAddr().String())
	l.delivering.Store(true)
	l.calls.Up()
	l.delivering.Store(false)
	talk, data := group.New(ctx), group.New(ctx)
	talk.Go("listens", l.listen)
	talk.Go("talks", l.talk)
	for i, s := range l.data {
		data.Go("receives", func(context.Context) error { l.lose(l.receive(s)); return nil })
		data.Go("sends", func(context.Context) error { l.lose(l.transmit(i)); return nil })
	}

	e := <-l.ended
	l.network.config.Log.Info("link ended", "agent", string(l.peer), "reason", e.err)
	l.network.lost(l)
	// stops who works on them; closing them now could look to the peer like a crash
	for _, s := range l.data {
		s.raw.SetDeadline(time.Unix(1, 0))
	}
	l.pieces.close()
	if e.goodbye {
		l.words.finish(e.reason)
		l.control.raw.SetDeadline(time.Now().Add(goodbyeTime))
	} else {
		l.words.close()
		l.control.raw.Close()
	}
	l.calls.Down(e.err)
	talk.Wait()
	for _, s := range l.streams() {
		s.raw.Close()
	}
	return data.Wait()
}

// lose ends the link because of an error on one of its streams.
func (l *link) lose(err error) {
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

// listen reads the control stream until the peer hangs up. After the end of the link it only waits
// for that.
func (l *link) listen(context.Context) error {
	for {
		k, body, err := l.control.frames.next(kindMessage, kindBeat, kindGoodbye)
		switch {
		case err != nil:
			l.lose(err)
			if errors.Is(err, errFrame) { // it is told so, and hangs up
				io.Copy(io.Discard, l.control)
			}
			l.words.close()
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
			l.words.close()
			return nil
		}
	}
}

// talk writes what is queued for the control stream.
func (l *link) talk(context.Context) error {
	var chunk []byte
	for {
		if chunk = l.words.take(chunk); chunk == nil {
			l.control.raw.CloseWrite()
			return nil
		}
		if err := l.write(chunk); err != nil {
			l.lose(err)
			return nil
		}
	}
}

func (l *link) write(chunk []byte) error {
	if len(chunk) > 0 {
		if _, err := l.control.Write(chunk); err != nil {
			return err
		}
	}
	return l.control.raw.Flush()
}
