package launcher

import (
	"context"
	"time"

	"github.com/shoal-ml/shoal/agent"
)

// onEvent tells of a change: on the terminal, unless only who looks for it cares, in the run's
// ledger, and to who asked for it.
func (l *launch) onEvent(e agent.Event) {
	l.mu.Lock()
	muted, dir, denied := l.muted, l.dir, len(l.denied) > 0
	// once this launcher ends the workers, that they are lost is no news
	if !muted && l.stopping < 0 {
		l.announce(e)
	}
	l.mu.Unlock()
	if denied && e.What == "generation" {
		l.later(l.releaseDenied)
	}
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

// announce has the terminal show a change that people care about. That workers have finished is one
// only when the others have made steps since: at the end of a job all of them do. l.mu is held.
func (l *launch) announce(e agent.Event) {
	change := e.What == "generation"
	if change && len(l.finished) > 0 && e.Step > l.finished[0].Step {
		for _, before := range l.finished {
			l.news = append(l.news, before.String())
		}
		l.finished = nil
	}
	switch line := e.String(); {
	case e.What == "route":
	case !change || !e.First && len(e.Joined)+len(e.Lost)+len(e.Released)+len(e.Again) > 0:
		if (e.What == "wait" || e.What == "pause") && l.job != nil {
			line += "; shoal explain " + l.job.Spec.Name + " says what can be done"
		}
		l.news = append(l.news, line)
	case len(e.Finished) > 0:
		l.finished = append(l.finished, e)
	}
}

// herald writes what there is to tell, until the end. It has a goroutine of its own: a terminal
// that takes no more, as that of a pager does, must not hold up who tells, which is the engine's
// thread.
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

// quote shows a line of a worker of another host, and keeps it. No host speaks for the workers of
// another one.
func (l *launch) quote(host string, n *lineNote) {
	l.mu.Lock()
	h, dir := l.book(n.Worker, host), l.dir
	l.mu.Unlock()
	if h.host != host {
		return
	}
	l.console.Line(n.Worker, n.Error, n.Text)
	if dir != nil {
		_ = dir.line(n.Worker, n.Text) // as with reports
	}
}
