package launcher

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

// The functions in this file end the workers once it is decided that the job, or this host's part
// in it, is over. The methods of launcher run on the goroutine of Run or Serve, unless they say
// another; any goroutine may call those of registry, which lock its mutex for a moment.

// stopWorkers ends the workers that still run: first with SIGTERM, then with SIGKILL. asked says
// that somebody asked for the end, which leaves workers more time. It blocks until they have ended,
// and has an error if some do not even then.
func (l *launcher) stopWorkers(asked bool) error {
	l.beginStop()
	grace, kill := graceFailed, (<-chan struct{})(nil)
	if asked {
		grace, kill = graceStopped, l.cfg.Kill
	}
	l.signalWorkers(syscall.SIGTERM)
	if l.awaitAllEnded(time.After(grace/2), kill) {
		return nil
	}
	l.reportFaults() // a worker may want to end well and wait for one that is gone
	if l.awaitAllEnded(time.After(grace/2), kill) {
		return nil
	}
	l.signalWorkers(syscall.SIGKILL)
	if l.awaitAllEnded(time.After(graceStopped), nil) {
		return nil
	}
	return errors.New("launcher: workers were killed but do not end; look at their state in ps")
}

// beginStop registers that workers which end from now on do so because the launcher ends them.
func (l *launcher) beginStop() {
	l.reporter.beginStop()
	l.registry.beginStop()
	l.supervisor.stopTemplate()
}

// beginStop registers that later endings are those of workers that the launcher ends.
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

// reportFaults tells the membership of the workers that have failed, and waits for the engine's
// thread. It also runs as a task. While the launcher stops the workers, the others hear of a
// failure late on purpose: most have ended by then, and the output shows one exception and not one
// for each rank.
func (l *launcher) reportFaults() {
	for _, e := range l.supervisor.popFaults(l.registry.isStopping()) {
		l.agent.WorkerLost(e.worker, e.exit.String())
	}
}

// awaitAllEnded blocks until all started workers have ended of whose ends this host hears, and
// returns true; or false when one of the channels says that it has been long enough. A nil channel
// never does.
func (l *launcher) awaitAllEnded(timeout <-chan time.Time, hurry <-chan struct{}) bool {
	for len(l.awaitedWorkers()) > 0 {
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

// awaitedWorkers lists the workers that run as far as this host knows, and of whose ends it hears:
// where its agent has ended, only its own.
func (l *launcher) awaitedWorkers() []workerRecord {
	list := l.registry.living()
	if l.agent.Status().Ended {
		own := l.registry.hostName()
		list = slices.DeleteFunc(list, func(w workerRecord) bool { return w.host != own })
	}
	return list
}

// awaitOutput blocks, up to outputWait, until processes that workers left behind have finished
// writing, such as the tee of a shell script.
func (l *launcher) awaitOutput() {
	timeout := time.After(outputWait)
	for _, p := range l.supervisor.allProcesses() {
		select {
		case <-p.Silent():
		case <-timeout:
			return
		case <-l.cfg.Kill:
			return
		}
	}
}

// awaitReaders blocks until the last output is read and all goroutines of the workers have ended,
// after every process that could write was killed. Its error is the first one of these goroutines;
// those that wait for a time end at once.
func (l *launcher) awaitReaders() error {
	for _, p := range l.supervisor.allProcesses() {
		p.StopReadingAfter(outputWait)
	}
	l.group.Stop(nil)
	return l.group.Wait()
}
