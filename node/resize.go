package node

import (
	"context"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/node/proc"
)

// start runs the process of one seat on this host.
func (l *launch) start(seat int, env []string) error {
	out, err := proc.NewOutput(l.console, seat, l.dir.log(seat))
	if err != nil {
		return err
	}
	l.outputs = append(l.outputs, out)
	w, err := proc.Start(l.group, proc.Command{Path: l.program, Args: l.spec.Command, Env: env}, out, func(e proc.Exit) { l.onExit(seat, e) })
	if err != nil {
		return err
	}
	l.add(near{w, out, l.host})
	return nil
}

// add notes a worker process. They are added in the order of their seats.
func (l *launch) add(h hand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.workers = append(l.workers, h)
}

// obey starts and stops the workers that the membership wants started and stopped.
func (l *launch) obey() error {
	l.mu.Lock()
	wanted, unwanted := l.wanted, l.unwanted
	l.wanted, l.unwanted = nil, nil
	l.mu.Unlock()
	for _, o := range wanted {
		for seat := o.First; seat < o.First+o.Count; seat++ {
			if err := l.startAt(seat, o.Host); err != nil {
				return err
			}
		}
	}
	for _, seat := range unwanted {
		l.workers[seat].Signal(syscall.SIGTERM)
	}
	return nil
}

// startAt starts a worker on a host; "" is this one.
func (l *launch) startAt(seat int, host string) error {
	late := seat >= l.spec.Workers
	if host != "" && host != l.host {
		l.startFar(seat, host, late)
		return nil
	}
	at := place{seat: seat, token: l.agent.Expect(seat, late), rank: seat, size: l.spec.Workers, local: seat, here: l.around.here, port: l.port}
	around := l.around
	if late {
		at = place{seat: seat, token: at.token, size: 1, port: freePort()}
		around.addr = "127.0.0.1"
	}
	l.agent.Started(seat, "")
	return l.start(seat, around.environment(at))
}

func (l *launch) onStart(o StartOrder) {
	l.mu.Lock()
	l.wanted = append(l.wanted, o)
	l.mu.Unlock()
	l.wake()
}

func (l *launch) onStop(seat int, _ string) {
	l.mu.Lock()
	l.unwanted = append(l.unwanted, seat)
	l.mu.Unlock()
	l.wake()
}

func (l *launch) onEnd(ok bool, _ string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = !ok
}

// onEvent tells of a change of the membership: on the terminal, in the run's ledger, and to who asked for it.
func (l *launch) onEvent(e Event) {
	if e.What != "generation" || e.Generation > 1 && len(e.Joined)+len(e.Lost)+len(e.Released)+len(e.Again) > 0 {
		l.mu.Lock()
		l.news = append(l.news, e.String())
		l.mu.Unlock()
		l.announce()
	}
	_ = l.dir.event(e, time.Now()) // as with reports
	if l.cfg.OnEvent != nil {
		l.cfg.OnEvent(e)
	}
}

func (l *launch) announce() {
	select {
	case l.told <- struct{}{}:
	default:
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

// survives reports whether the job goes on without a worker that ended like this: a worker that was killed is weather; one
// that failed by itself is a fault that somebody should see, unless the user said how many workers are enough, or it came
// late and the job was well without it.
func (l *launch) survives(seat int, e proc.Exit) bool {
	return (e.Signal != 0 || e.Lost != "" || l.spec.Min > 0 || seat >= l.spec.Workers) && l.agent.Status().Elastic
}

// launched is the number of workers that were started or are about to be.
func (l *launch) launched() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.workers)
	for _, o := range l.wanted {
		n += o.Count
	}
	return max(n, l.spec.Workers) // the first ones are started when there is room for them
}
