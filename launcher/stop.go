package launcher

import (
	"errors"
	"syscall"
	"time"
)

// stop ends the workers that still run: politely, then not.
func (l *launcher) stop(asked bool) error {
	l.beginStop()
	grace, kill := graceFailed, (<-chan struct{})(nil)
	if asked {
		grace, kill = graceStopped, l.cfg.Kill
	}
	l.signalAll(syscall.SIGTERM)
	if l.allEnd(time.After(grace/2), kill) {
		return nil
	}
	l.reportFaults() // a worker may want to end well and wait for one that is gone
	if l.allEnd(time.After(grace/2), kill) {
		return nil
	}
	l.signalAll(syscall.SIGKILL)
	if l.allEnd(time.After(graceStopped), nil) {
		return nil
	}
	return errors.New("launcher: workers were killed but do not end; look at their state in ps")
}

// beginStop tells apart the workers that end by themselves from those that end because the launcher
// wants it.
func (l *launcher) beginStop() {
	l.reporter.beginStop()
	l.registry.beginStop()
}

func (r *registry) beginStop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping < 0 {
		r.stopping = len(r.endings)
	}
}

// isStopping reports whether the launcher stops its workers.
func (r *registry) isStopping() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopping >= 0
}

// reportFaults tells the membership of the workers that have failed. Only some time after they were
// stopped do the others hear of it: most have ended by then, and the output shows one exception and
// not one a rank.
func (l *launcher) reportFaults() {
	for _, e := range l.supervisor.takeFaults(l.registry.isStopping()) {
		l.agent.Lost(e.worker, e.exit.String())
	}
}

// allEnd waits until all started workers have ended, or one of the channels says that it has been
// long enough.
func (l *launcher) allEnd(timeout <-chan time.Time, hurry <-chan struct{}) bool {
	for len(l.registry.living()) > 0 {
		select {
		case <-l.registry.changed:
		case <-timeout:
			return false
		case <-hurry:
			return false
		}
	}
	return true
}

// awaitOutput lets what workers left behind finish writing, such as the tee of a shell script.
func (l *launcher) awaitOutput() {
	timeout := time.After(draining)
	for _, p := range l.supervisor.all() {
		select {
		case <-p.Silent():
		case <-timeout:
			return
		case <-l.cfg.Kill:
			return
		}
	}
}

// drain waits for the last output, after every process that could write has been swept away.
func (l *launcher) drain() error {
	for _, p := range l.supervisor.all() {
		p.Drain(draining)
	}
	return l.group.Wait()
}
