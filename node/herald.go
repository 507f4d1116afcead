package node

import (
	"context"
	"time"
)

// onEvent tells of a change: on the terminal, unless only who looks for it cares, in the run's ledger, and to who asked for it.
func (l *launch) onEvent(e Event) {
	l.mu.Lock()
	muted, dir := l.muted, l.dir
	// Once this launcher ends the workers, that they are lost is no news.
	if !muted && l.stopping < 0 && e.What != "route" && (e.What != "generation" || !e.first && len(e.Joined)+len(e.Lost)+len(e.Released)+len(e.Again) > 0) {
		line := e.String()
		if e.What == "wait" && l.job != nil {
			line += "; shoal explain " + l.job.Spec.Name + " says what can be done"
		}
		l.news = append(l.news, line)
	}
	l.mu.Unlock()
	if dir == nil || muted && e.What != "waited" { // in the ledger every wait has its end
		return
	}
	select {
	case l.told <- struct{}{}:
	default:
	}
	_ = dir.event(e, time.Now()) // as with reports
	if l.cfg.OnEvent != nil {
		l.cfg.OnEvent(e)
	}
}

// herald writes what there is to tell, until the end. It has a goroutine of its own: a terminal that takes no more, as that
// of a pager does, must not hold up who tells, which is the engine's thread.
func (l *launch) herald(ctx context.Context) error {
	for last := false; !last; {
		select {
		case <-l.told:
		case <-ctx.Done():
			last = true
		}
		l.mu.Lock()
		news := l.news
		l.news = nil
		l.mu.Unlock()
		for _, line := range news {
			l.console.Note(line)
		}
	}
	return nil
}

// quote shows a line of a worker of another host, and keeps it.
func (l *launch) quote(host string, n *lineNote) {
	l.console.Line(n.Worker, n.Error, n.Text)
	l.mu.Lock()
	h, dir := l.hands[n.Worker], l.dir
	l.mu.Unlock()
	if dir != nil && (h == nil || h.host == host) {
		_ = dir.line(n.Worker, n.Text) // as with reports
	}
}
