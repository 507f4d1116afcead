package tcp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

var _ fabric.Limiter = (*Network)(nil)

// Limit implements fabric.Limiter. Any goroutine may call it, and it does not wait.
func (m *Network) Limit(peer fabric.Host, bytesPerSecond float64) {
	if peer == "" {
		m.limit.set(bytesPerSecond)
	} else if l := m.link(peer); l != nil {
		l.limit.set(bytesPerSecond)
	}
}

// bucketTime is how long a bucket gathers credit that nobody uses, so that who wakes late from its
// wait makes up for it.
const bucketTime = 20 * time.Millisecond

// bucket is a token bucket, for the bytes of pieces and for strangers. Who has waited for it may
// send a piece, and the next one has to wait until that is paid for, so a piece may be larger than
// the bucket. The zero value holds nobody. Any goroutine may call its methods; only wait blocks.
type bucket struct {
	limited atomic.Bool   // whether rate is above 0; who sends asks this alone where it is not
	mu      sync.Mutex    // guards what follows
	rate    float64       // tokens, as bytes, a second; 0 = there is no limit
	credit  float64       // tokens to take at the time at; below 0 = that are to be paid for
	at      time.Duration // of sinceStart
	changed chan struct{} // closed and replaced when rate changes; nil = nobody has waited yet
}

// set makes the rate another one; 0 or less = no limit. It wakes those who wait.
func (b *bucket) set(rate float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rate = max(rate, 0); rate == b.rate {
		return
	}
	b.rate, b.credit, b.at = rate, 0, sinceStart()
	b.limited.Store(rate > 0)
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// isSet reports whether there is a limit.
func (b *bucket) isSet() bool { return b.limited.Load() }

// spend takes n tokens at the time now, if nothing is to be paid or there is no limit: then wait is
// 0. Else it takes nothing, and says how long to wait, and what is closed if the rate changes
// before.
func (b *bucket) spend(n int, now time.Duration) (wait time.Duration, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate == 0 {
		return 0, nil
	}
	b.gather(now)
	if b.credit >= 0 {
		b.credit -= float64(n)
		return 0, nil
	}
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	const longest = 1e6 // seconds; longer ones are no time.Duration
	return max(time.Duration(min(-b.credit/b.rate, longest)*float64(time.Second)), 1), b.changed
}

// charge takes n tokens at the time now, also where others are still to be paid for.
func (b *bucket) charge(n int, now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gather(now)
	b.credit -= float64(n)
}

// gather adds the credit of the time since it was called last. The caller holds mu.
func (b *bucket) gather(now time.Duration) {
	b.credit = min(b.credit+b.rate*(now-b.at).Seconds(), b.rate*bucketTime.Seconds())
	b.at = now
}

// wait blocks until n tokens could be taken, and takes them; false: ended was closed before.
func (b *bucket) wait(n int, ended <-chan struct{}) bool {
	for {
		wait, changed := b.spend(n, sinceStart())
		if wait == 0 {
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ended:
		}
		timer.Stop()
		select {
		case <-ended:
			return false
		default:
		}
	}
}
