package launcher

import (
	"errors"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
)

// stop ends the workers that still run: politely, then not.
func (l *launch) stop(asked bool) error {
	l.beginStop()
	grace, kill := graceFailed, (<-chan struct{})(nil)
	if asked {
		grace, kill = graceStopped, l.cfg.Kill
	}
	l.signal(syscall.SIGTERM)
	if l.allEnd(time.After(grace/2), kill) {
		return nil
	}
	l.confess() // a worker may want to end well and wait for one that is gone
	if l.allEnd(time.After(grace/2), kill) {
		return nil
	}
	l.signal(syscall.SIGKILL)
	if l.allEnd(time.After(graceStopped), nil) {
		return nil
	}
	return errors.New("agent: workers were killed but do not end; look at their state in ps")
}

// confess tells the membership of the workers that have failed. Only some time after they were
// stopped do the others hear of it: most have ended by then, and the output shows one exception and
// not one a rank.
func (l *launch) confess() {
	l.mu.Lock()
	faults := l.faults
	l.faults, l.candid = nil, l.stopping >= 0
	l.mu.Unlock()
	for _, e := range faults {
		l.agent.Lost(e.rank, e.exit.String())
	}
}

// beginStop tells apart the workers that end by themselves from those that end because the launcher
// wants it.
func (l *launch) beginStop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopping < 0 {
		l.stopping = len(l.ended)
	}
}

// signal sends all workers a signal that this host answers for.
func (l *launch) signal(sig syscall.Signal) {
	for _, h := range l.living() {
		l.signalOne(h, sig)
	}
}

// allEnd waits until all started workers have ended, or one of the channels says that it has been
// long enough.
func (l *launch) allEnd(timeout <-chan time.Time, hurry <-chan struct{}) bool {
	for len(l.living()) > 0 {
		select {
		case <-l.changed:
		case <-timeout:
			return false
		case <-hurry:
			return false
		}
	}
	return true
}

// hearOut lets what workers left behind finish writing, such as the tee of a shell script.
func (l *launch) hearOut() {
	timeout := time.After(draining)
	for _, h := range l.near() {
		select {
		case <-h.process.Silent():
		case <-timeout:
			return
		case <-l.cfg.Kill:
			return
		}
	}
}

// drain waits for the last output, after every process that could write has been swept away.
func (l *launch) drain(workers *group.Group) error {
	for _, h := range l.near() {
		h.process.Drain(draining)
	}
	err := workers.Wait()
	for _, h := range l.near() {
		_ = h.output.Close() // the console has said what is missing from a log
	}
	return err
}
