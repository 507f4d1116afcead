package tcp

import (
	"errors"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/accrual"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// TestSilence cuts the cable between two agents: no end of a connection is seen on either side.
func TestSilence(t *testing.T) {
	for _, plain := range []bool{false, true} {
		way := newCable(t)
		atA, atB, atC := fabrictest.NewRecorder(t), fabrictest.NewRecorder(t),
			fabrictest.NewRecorder(t)
		a, err := Create(Config{Name: "a", Listen: "127.0.0.1:0", Advertise: way.address(),
			PlainData: plain}, atA)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		way.leadTo(t, a.listener.Addr().String())
		join := func(name fabric.Host, through string, h fabric.Handler) *Network {
			m, err := Join(t.Context(), through, a.Token(time.Minute),
				Config{Name: name, Listen: "127.0.0.1:0"}, h)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			return m
		}
		b := join("b", way.address(), atB)
		c := join("c", b.Addr(), atC)
		atB.WaitUp("c")
		atC.WaitUp("a")
		began := time.Now()
		way.Cut()
		for _, lost := range []error{atA.WaitDown("b"), atB.WaitDown("a"), atA.WaitDown("c"),
			atC.WaitDown("a")} {
			if !errors.Is(lost, fabric.ErrSilent) {
				t.Errorf("lost with %v", lost)
			}
		}
		t.Logf("both sides know after %v", time.Since(began).Round(time.Millisecond))
		b.Send("c", []byte("we two have our link"))
		atC.WaitMessages("b", 1)
		if seen := c.link("b"); seen == nil {
			t.Error("c has lost b too")
		}
	}
}

// newJudgedLink returns a link without connections, whose peer was heard at 0, for calls of
// judgeSilence only. Its kernel says nothing of acknowledgements, unless a test replaces acked.
func newJudgedLink() *link {
	return &link{
		ended: make(chan ending, 1), host: accrual.New(beatInterval, 0),
		process: accrual.New(patience*beatInterval, 0), suspect: accrual.New(beatInterval, 0),
		acked: func() (time.Duration, bool) { return 0, false },
	}
}

// hasEnded reports whether the link was ended.
func (l *link) hasEnded() bool { return len(l.ended) > 0 }

// TestJudge plays the monitor's clock: silence of the peer counts, pauses of this process and of
// its handler do not.
func TestJudge(t *testing.T) {
	run := func(l *link, from, to time.Duration) {
		for now := from; now < to; now += tick {
			l.judgeSilence(now, tick)
		}
	}
	t.Run("silence", func(t *testing.T) {
		l := newJudgedLink()
		run(l, 0, 500*time.Millisecond)
		if l.hasEnded() {
			t.Error("dead after half a second")
		}
		run(l, 500*time.Millisecond, time.Second)
		if !l.hasEnded() {
			t.Error("alive after a second of silence")
		}
	})
	t.Run("the host answers, the process does not", func(t *testing.T) {
		l := newJudgedLink()
		l.acked = func() (time.Duration, bool) { return 40 * time.Millisecond, true }
		run(l, 0, 2*time.Second)
		if l.hasEnded() {
			t.Error("dead after two seconds, though its host answers")
		}
		run(l, 2*time.Second, 4*time.Second)
		if !l.hasEnded() {
			t.Error("alive after four seconds without a word of its process")
		}
	})
	t.Run("somebody says that it is gone", func(t *testing.T) {
		l := newJudgedLink()
		l.acked = func() (time.Duration, bool) { return 40 * time.Millisecond, true }
		l.suspectUntil.Store(int64(2 * time.Second))
		for now := tick; now < time.Second; now += tick {
			l.heard.Store(int64(now))
			l.judgeSilence(now, tick)
		}
		run(l, time.Second, 1500*time.Millisecond)
		if l.hasEnded() {
			t.Error("dead after half a second of silence")
		}
		run(l, 1500*time.Millisecond, 2*time.Second)
		if !l.hasEnded() {
			t.Error("alive after a second of silence, though it is said to be gone")
		}
	})
	t.Run("somebody says that it is gone, and this process stood still", func(t *testing.T) {
		l := newJudgedLink()
		l.acked = func() (time.Duration, bool) { return 40 * time.Millisecond, true }
		l.suspectUntil.Store(int64(time.Hour))
		l.judgeSilence(time.Minute, time.Minute)
		if l.hasEnded() {
			t.Error("dead, though nobody could hear it")
		}
	})
	t.Run("somebody said long ago that it is gone", func(t *testing.T) {
		l := newJudgedLink()
		l.acked = func() (time.Duration, bool) { return 40 * time.Millisecond, true }
		l.suspectUntil.Store(int64(100 * time.Millisecond))
		run(l, 0, 2*time.Second)
		if l.hasEnded() {
			t.Error("dead after two seconds, though its host answers")
		}
	})
	t.Run("the host does not answer any more", func(t *testing.T) {
		l := newJudgedLink()
		l.acked = func() (time.Duration, bool) { return 40 * time.Millisecond, true }
		run(l, 0, 400*time.Millisecond)
		last := 360 * time.Millisecond
		for now := 400 * time.Millisecond; now < 1100*time.Millisecond; now += tick {
			l.acked = func() (time.Duration, bool) { return now - last, true }
			l.judgeSilence(now, tick)
		}
		if !l.hasEnded() {
			t.Error("alive after 0.7 s in which its host acknowledged nothing")
		}
	})
	t.Run("signs of life", func(t *testing.T) {
		l := newJudgedLink()
		for now := tick; now < 10*time.Second; now += tick {
			l.heard.Store(int64(now))
			l.judgeSilence(now, tick)
		}
		if l.hasEnded() {
			t.Error("dead though it was heard all the time")
		}
	})
	t.Run("this process stood still", func(t *testing.T) {
		l := newJudgedLink()
		l.judgeSilence(time.Minute, time.Minute)
		run(l, time.Minute, time.Minute+500*time.Millisecond)
		if l.hasEnded() {
			t.Error("dead, though nobody could hear it")
		}
		run(l, time.Minute+500*time.Millisecond, time.Minute+time.Second)
		if !l.hasEnded() {
			t.Error("alive after a second in which it could have been heard")
		}
	})
	t.Run("the handler is slow", func(t *testing.T) {
		l := newJudgedLink()
		l.delivering.Store(true)
		run(l, 0, time.Minute)
		l.delivering.Store(false)
		run(l, time.Minute, time.Minute+500*time.Millisecond)
		if l.hasEnded() {
			t.Error("dead, though the handler kept this side from listening")
		}
		run(l, time.Minute+500*time.Millisecond, time.Minute+time.Second)
		if !l.hasEnded() {
			t.Error("alive after a second of silence")
		}
	})
}
