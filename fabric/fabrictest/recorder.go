package fabrictest

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// What the tests of networks see of one. The network calls the methods of fabric.Handler on its
// goroutines, and the test calls the Wait methods and check on its own; but for seen and expect,
// which say that it is held, all methods take r.mu themselves.

// patience is how long a test waits for what must come before it says what is missing. Nothing
// depends on it that passes.
const patience = time.Minute

// Recorder is a Handler that keeps what it is told and notes every break of the order that Handler
// promises.
type Recorder struct {
	t testing.TB // the test that check and the Wait methods fail

	// mu guards the fields below it up to finished. It is not held while OnUp, OnMessage and
	// OnPlace run.
	mu         sync.Mutex
	news       sync.Cond             // on mu; broadcast when peers changes
	peers      map[fabric.Host]*Seen // by host, all that was heard of
	violations []string              // the broken promises, for people
	finished   bool                  // its network was closed or killed

	// OnUp, OnMessage and OnPlace are called if they are set before the network is made; without
	// OnPlace pieces get memory of their own.
	OnUp      func(peer fabric.Host)
	OnMessage func(from fabric.Host, b []byte)
	OnPlace   func(from fabric.Host, p fabric.Piece) []byte
}

// Seen is what a Recorder knows of a peer. The mutex of the Recorder guards it.
type Seen struct {
	Ups, Downs int                     // calls of Up and Down
	Why        error                   // of Down
	Messages   [][]byte                // copies, the oldest first
	Placing    int                     // calls of Place that are under way
	Placed     map[fabric.Piece][]byte // memory that is being filled
	Arrived    map[fabric.Piece][]byte // memory of the pieces that have arrived

	calling bool // an Up or a Message is under way
}

// NewRecorder returns a Recorder that fails t. Any goroutine may call its methods, but those that
// wait, which fail the test after a minute, are for the goroutine of the test.
func NewRecorder(t testing.TB) *Recorder {
	r := &Recorder{t: t, peers: map[fabric.Host]*Seen{}}
	r.news.L = &r.mu
	return r
}

// seen returns what is known of a peer, which it may have to begin; r.mu is held.
func (r *Recorder) seen(h fabric.Host) *Seen {
	if r.peers[h] == nil {
		r.peers[h] = &Seen{Placed: map[fabric.Piece][]byte{}, Arrived: map[fabric.Piece][]byte{}}
	}
	return r.peers[h]
}

// expect records a break of the promises unless ok; r.mu is held.
func (r *Recorder) expect(ok bool, format string, args ...any) {
	if !ok {
		r.violations = append(r.violations, fmt.Sprintf(format, args...))
	}
}

// update runs f on what is known of a peer, with r.mu held, and wakes those who wait.
func (r *Recorder) update(h fabric.Host, f func(s *Seen)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.seen(h))
	r.news.Broadcast()
}

// Up implements fabric.Handler: it records the call, which must be the only one, and calls OnUp.
func (r *Recorder) Up(peer fabric.Host) {
	r.update(peer, func(s *Seen) {
		r.expect(s.Ups == 0, "a second Up(%s)", peer)
		s.Ups++
		s.calling = true
	})
	if r.OnUp != nil {
		r.OnUp(peer)
	}
	r.update(peer, func(s *Seen) { s.calling = false })
}

// Message implements fabric.Handler: it keeps a copy of the message, and calls OnMessage.
func (r *Recorder) Message(from fabric.Host, b []byte) {
	r.update(from, func(s *Seen) {
		r.expect(s.Ups == 1 && s.Downs == 0, "a message of %s after %d Ups and %d Downs", from,
			s.Ups, s.Downs)
		r.expect(!s.calling, "two calls about messages of %s at once", from)
		s.calling = true
		s.Messages = append(s.Messages, bytes.Clone(b))
	})
	if r.OnMessage != nil {
		r.OnMessage(from, b)
	}
	r.update(from, func(s *Seen) { s.calling = false })
}

// Place implements fabric.Handler: it returns the memory that OnPlace gives, or fresh memory.
func (r *Recorder) Place(from fabric.Host, p fabric.Piece) []byte {
	r.update(from, func(s *Seen) {
		r.expect(s.Ups == 1, "a piece of %s before Up", from)
		s.Placing++
	})
	var mem []byte
	if r.OnPlace != nil {
		mem = r.OnPlace(from, p)
	} else {
		mem = make([]byte, p.Length)
	}
	r.update(from, func(s *Seen) {
		s.Placing--
		if mem != nil {
			s.Placed[p] = mem
		}
	})
	return mem
}

// Arrived implements fabric.Handler: it records where the piece is.
func (r *Recorder) Arrived(from fabric.Host, p fabric.Piece) {
	r.update(from, func(s *Seen) {
		mem, ok := s.Placed[p]
		r.expect(ok, "piece %v of %s arrived without a place", p, from)
		r.expect(s.Downs == 0, "piece %v of %s arrived after Down", p, from)
		s.Arrived[p] = mem
		delete(s.Placed, p)
	})
}

// Down implements fabric.Handler: it records the reason, and overwrites the memory that Place gave
// for what has not arrived, so that the race detector sees who still writes there.
func (r *Recorder) Down(peer fabric.Host, err error) {
	r.update(peer, func(s *Seen) {
		r.expect(s.Ups == 1 && s.Downs == 0, "Down(%s) after %d Ups and %d Downs", peer, s.Ups,
			s.Downs)
		r.expect(!s.calling, "Down(%s) during another call", peer)
		r.expect(err != nil, "Down(%s) without a reason", peer)
		s.Downs++
		s.Why = err
		for _, mem := range s.Placed {
			// the memory is the handler's again; the race detector sees who writes to it still
			clear(mem)
		}
	})
}

// Wait blocks until what is known of a peer satisfies cond, which is called with r.mu held; what
// names it where it takes too long.
func (r *Recorder) Wait(peer fabric.Host, what string, cond func(s *Seen) bool) {
	r.t.Helper()
	expired := false
	timer := time.AfterFunc(patience, func() { r.update(peer, func(*Seen) { expired = true }) })
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !cond(r.seen(peer)) {
		if expired {
			s := r.seen(peer)
			r.t.Fatalf("waited in vain for %s from %s: %d Ups, %d Downs (%v), %d messages, %d "+
				"pieces arrived, %d placed, %d being placed; broken promises: %q",
				what, peer, s.Ups, s.Downs, s.Why, len(s.Messages), len(s.Arrived), len(s.Placed),
				s.Placing, r.violations)
		}
		r.news.Wait()
	}
}

// WaitUp blocks until Up was told of a peer.
func (r *Recorder) WaitUp(peer fabric.Host) {
	r.t.Helper()
	r.Wait(peer, "Up", func(s *Seen) bool { return s.Ups > 0 })
}

// WaitDown blocks until Down was told of a peer, and returns its reason.
func (r *Recorder) WaitDown(peer fabric.Host) (why error) {
	r.t.Helper()
	r.Wait(peer, "Down", func(s *Seen) bool { why = s.Why; return s.Downs > 0 })
	return why
}

// WaitMessages blocks until n messages of a peer have come and returns all that have; with 0 it
// does not wait. The caller must not change them.
func (r *Recorder) WaitMessages(peer fabric.Host, n int) (messages [][]byte) {
	r.t.Helper()
	r.Wait(peer, fmt.Sprint(n, " messages"), func(s *Seen) bool {
		messages = s.Messages
		return len(messages) >= n
	})
	return messages
}

// WaitArrived blocks until n pieces of a peer have come and returns where they are: the map of the
// Recorder, to be read when no more pieces come.
func (r *Recorder) WaitArrived(peer fabric.Host, n int) (pieces map[fabric.Piece][]byte) {
	r.t.Helper()
	r.Wait(peer, fmt.Sprint(n, " pieces"), func(s *Seen) bool {
		pieces = s.Arrived
		return len(pieces) >= n
	})
	return pieces
}

// isClosed reports whether its network was closed or killed.
func (r *Recorder) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished
}

// setClosed records that its network is closed or killed.
func (r *Recorder) setClosed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
}

// check fails the test for every broken promise, and for an Up without a Down; the network is
// closed.
func (r *Recorder) check() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for peer, s := range r.peers {
		r.expect(s.Ups == s.Downs, "%d Ups and %d Downs of %s after Close", s.Ups, s.Downs, peer)
	}
	for _, v := range r.violations {
		r.t.Errorf("a broken promise: %s", v)
	}
}
