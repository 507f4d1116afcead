package tcp

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/accrual"
)

// How a network finds out that a peer is silent. The functions of this file run on the goroutine of
// monitor.

const (
	beatInterval = 50 * time.Millisecond // from one sign of life to the next
	tick         = beatInterval / 2      // from one look at the links to the next
	// standstill is a time between two ticks from which on this process was not running.
	standstill = 2 * beatInterval
	// patience is how many times longer a process may be silent whose host answers.
	patience = 4
	// suspicion is for how long a process has no longer patience than its host after Suspect.
	suspicion = 10 * time.Second
)

// monitor gives signs of life to all peers and judges the silence of each, until the network
// closes. It is a goroutine of the network.
func (m *Network) monitor(context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	before := sinceStart()
	for n := 0; ; n++ {
		select {
		case <-ticker.C:
		case <-m.ctx.Done():
			return nil
		}
		now := sinceStart()
		m.judgeLinks(now, now-before, n%int(beatInterval/tick) == 0)
		before = now
	}
}

// judgeLinks judges all links, and sends a sign of life on each if beat. Nothing in it waits, but
// for linksMu. Now is sinceStart, and passed the time since the last call. Only monitor calls it.
func (m *Network) judgeLinks(now, passed time.Duration, beat bool) {
	m.linksMu.RLock()
	defer m.linksMu.RUnlock()
	for _, l := range m.links {
		if beat {
			l.outbox.addBeat()
		}
		l.judgeSilence(now, passed)
	}
}

// judgeSilence ends the link if the peer is suspicious. Now is sinceStart, and passed the time
// since the last call. Silence while this side did not listen is not held against the peer.
//
// A host that is lost is told from a process that is slow: as long as the peer's kernel
// acknowledges what it gets, its process has the longer patience, but for a while after Suspect.
// Only monitor calls it.
func (l *link) judgeSilence(now, passed time.Duration) {
	if l.delivering.Load() || passed > standstill {
		l.host.ExcludePause(passed)
		l.process.ExcludePause(passed)
		l.suspect.ExcludePause(passed)
	}
	heard := min(now, time.Duration(l.heard.Load()))
	l.process.Heard(heard)
	l.suspect.Heard(heard)
	if now-heard > beatInterval {
		if ago, ok := l.acked(); ok {
			heard = max(heard, now-ago)
		}
	}
	l.host.Heard(heard)
	for _, a := range l.others {
		if a.judgeOwedAcks(now, passed) {
			err := fmt.Errorf(
				"%w: on another network interface than the one that control goes over",
				fabric.ErrSilent)
			l.end(ending{err: err, goodbye: true,
				reason: "a network interface between us was silent for too long"})
		}
	}
	switch {
	case l.host.Suspect(now):
		l.end(ending{err: fabric.ErrSilent, goodbye: true,
			reason: "this host was silent for too long"})
	case l.process.Suspect(now),
		now < time.Duration(l.suspectUntil.Load()) && l.suspect.Suspect(now):
		err := fmt.Errorf("%w, though its host answers: its process stands still", fabric.ErrSilent)
		l.end(ending{err: err, goodbye: true, reason: "this agent was silent for too long"})
	}
}

// otherPath is a stream of data over another interface. Only monitor uses it, but for tests. No
// beats go over it, and an interface can die alone: what has left must be acknowledged, in the
// patience that a process gets, since packets that are lost are sent again after a while.
type otherPath struct {
	silence *accrual.Detector[time.Duration] // judges how long an acknowledgement is owed
	// owed returns for how long at most the peer's kernel has owed an acknowledgement, as
	// ackOwedFor does; 0 = it owes none.
	owed func() time.Duration
}

// judgeOwedAcks records in a.silence what is owed now, and reports whether the other interface is
// dead. Now is sinceStart, and passed the time since the last call. The goroutine of monitor calls
// it.
func (a *otherPath) judgeOwedAcks(now, passed time.Duration) bool {
	if passed > standstill {
		a.silence.ExcludePause(passed)
	}
	a.silence.Heard(now - a.owed())
	return a.silence.Suspect(now)
}
