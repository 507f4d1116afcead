package tcp

import (
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// TestFlood: connections that say nothing are bounded in number, and keep nobody out.
func TestFlood(t *testing.T) {
	j := newJob(t, Config{})
	first := j.dialRaw()
	for range maxPending + 10 {
		j.dialRaw()
	}
	if n, err := first.Read(make([]byte, 1)); err == nil {
		t.Errorf("the oldest of too many got %d bytes", n)
	}
	j.join(j.newcomerConfig(), fabrictest.NewRecorder(t))
	j.checkUnhurt()
}

// TestStrangersAreHeldUp: a connection that ends without having shown who it is delays those after
// it. One that shows a token or a certificate does not.
func TestStrangersAreHeldUp(t *testing.T) {
	j := newJob(t, Config{})
	const perSecond = 1e-6 // a stranger is not paid for while the test runs
	j.a.strangers.set(perSecond)
	join := func(name string) {
		c := j.newcomerConfig()
		c.Name = fabric.Host(name)
		j.join(c, fabrictest.NewRecorder(t))
	}
	join("c")
	join("d")
	waits := func() bool {
		j.a.strangers.mu.Lock()
		defer j.a.strangers.mu.Unlock()
		return j.a.strangers.changed != nil
	}
	for !waits() { // until the listener has let a connection in, and waits before the next one
		j.dialRaw().Close()
	}
	j.a.strangers.set(0)
	join("e")
	j.checkUnhurt()
}
