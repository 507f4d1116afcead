package tcp

import (
	"context"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

const (
	beatInterval = 50 * time.Millisecond
	tick         = beatInterval / 2
)

// monitor gives signs of life to all peers and judges the silence of each.
func (m *Mesh) monitor(context.Context) error {
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
		passed := now - before
		before = now
		for _, l := range m.all() {
			if n%int(beatInterval/tick) == 0 {
				l.words.beat()
			}
			l.judge(now, passed)
		}
	}
}

// judge ends the link if the peer is suspicious. passed is the time since it was asked last: far more than a tick means that this
// process was not running, and so could not have heard anybody.
func (l *link) judge(now, passed time.Duration) {
	switch {
	case l.delivering.Load():
		l.detector.Excuse(passed)
	case passed > 2*tick:
		l.detector.Excuse(passed - tick)
	}
	l.detector.Heard(min(now, time.Duration(l.heard.Load())))
	if l.detector.Suspect(now) {
		l.end(ending{err: fabric.ErrSilent, goodbye: true, reason: "this agent was silent for too long"})
	}
}
