package node

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/node/proc"
)

// How long workers may take to end by themselves between SIGTERM and SIGKILL: when a person stops the job, and when one
// of them has failed, where the report is promised within a second.
const (
	graceStopped = 2 * time.Second
	graceFailed  = 500 * time.Millisecond
)

// draining bounds the wait for the last output of workers that have ended; only a process that they left running, and
// that holds their output open, uses it up.
const draining = 300 * time.Millisecond

// launch is one run on this host.
type launch struct {
	cfg     RunConfig
	spec    job.Spec
	host    string
	started time.Time
	place   *proc.Place
	dir     *runDir
	agent   *Agent
	console *proc.Console
	outputs []*proc.Output
	workers []hand // by seat
	hosts   hosts

	program string
	around  surroundings
	port    int          // for MASTER_PORT
	group   *group.Group // the workers

	told     chan struct{} // holds a token when there is news
	changed  chan struct{} // holds a token when a worker has joined or ended, or the membership wants something
	mu       sync.Mutex
	ended    []ending
	telling  int          // endings that the membership is being told of
	wanted   []StartOrder // that are not carried out yet
	lost     bool         // no member is left, and none has finished its work
	unwanted []int        // seats of workers that the membership wants to end
	news     []string     // lines for the terminal
	stopping int          // how many had ended when the launcher began to stop the others; -1 = it has not
	reports  map[int]map[string]float64
	farewell farewell
}

// stop ends the workers that still run: politely, then not.
func (l *launch) stop(asked bool) error {
	l.beginStop()
	grace, kill := graceFailed, (<-chan struct{})(nil)
	if asked {
		grace, kill = graceStopped, l.cfg.Kill
	}
	l.signal(syscall.SIGTERM)
	// Only now do the others hear of it: most have ended by then, and the output shows one exception and not one a rank.
	for _, e := range l.endings() {
		l.agent.Lost(e.rank, e.exit.String())
	}
	if l.allEnd(time.After(grace), kill) {
		return nil
	}
	l.signal(syscall.SIGKILL)
	if l.allEnd(time.After(graceStopped), nil) {
		return nil
	}
	return errors.New("node: workers were killed but do not end; look at their state in ps")
}

// beginStop tells apart the workers that end by themselves from those that end because the launcher wants it.
func (l *launch) beginStop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopping < 0 {
		l.stopping = len(l.ended)
	}
}

func (l *launch) signal(sig syscall.Signal) {
	for _, w := range l.workers {
		w.Signal(sig)
	}
}

// allEnd waits until all started workers have ended, or one of the channels says that it has been long enough.
func (l *launch) allEnd(timeout <-chan time.Time, hurry <-chan struct{}) bool {
	for len(l.endings()) < len(l.workers) {
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
	for _, w := range l.workers {
		select {
		case <-w.Silent():
		case <-timeout:
			return
		case <-l.cfg.Kill:
			return
		}
	}
}

// drain waits for the last output, after every process that could write has been swept away.
func (l *launch) drain(workers *group.Group) error {
	for _, w := range l.workers {
		w.Drain(draining)
	}
	err := workers.Wait()
	for _, out := range l.outputs {
		_ = out.Close() // the console has said what is missing from a log
	}
	return err
}

func (l *launch) onJoin(rank int, client string) {
	l.wake()
	if l.cfg.OnJoin != nil {
		l.cfg.OnJoin(rank, client)
	}
}

func (l *launch) onReport(rank int, metrics map[string]float64) {
	// A full disk must not end a training run; what is missing shows in the file.
	_ = l.dir.report(rank, metrics, time.Now())
	l.mu.Lock()
	l.reports[rank] = metrics
	l.mu.Unlock()
	if l.cfg.OnReport != nil {
		l.cfg.OnReport(rank, metrics)
	}
}

func (l *launch) onExit(seat int, e proc.Exit) {
	survived := !e.OK() && l.survives(seat, e)
	l.mu.Lock()
	l.ended = append(l.ended, ending{seat, e, survived})
	stopping := l.stopping >= 0
	l.telling++
	l.mu.Unlock()
	switch {
	case e.OK():
		l.agent.Finished(seat, e.String())
	case survived || stopping:
		l.agent.Lost(seat, e.String())
	} // else stop tells
	l.mu.Lock()
	l.telling--
	l.mu.Unlock()
	l.wake()
	if survived && e.Signal == syscall.SIGKILL && l.isHere(seat) { // which hits one process, and not those that load data for it
		_ = proc.SweepGroup(l.place.Run, e.PID) // what it misses goes with the job
	}
}

// isHere reports whether a worker runs, or ran, on this host.
func (l *launch) isHere(seat int) bool {
	hands := l.hands()
	return seat >= len(hands) || hands[seat].Host() == l.host
}

// judge decides about the workers that have ended, once the membership knows of all of them.
func (l *launch) judge() verdict {
	l.mu.Lock()
	telling, lost, ended := l.telling, l.lost, l.ended[:len(l.ended):len(l.ended)]
	l.mu.Unlock()
	if telling > 0 {
		return verdict{}
	}
	return judge(l.launched(), ended, l.agent.Joined, lost)
}

func (l *launch) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *launch) endings() []ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended[:len(l.ended):len(l.ended)]
}

func (l *launch) failure(v verdict) *Failure {
	w, e := l.workers[v.culprit.rank], v.culprit.exit
	return &Failure{Job: l.spec.Name, Rank: v.culprit.rank, Size: len(l.workers), Host: w.Host(), Exit: e,
		After: e.Ended.Sub(l.started), Early: v.fault == neverJoined, Tail: w.Tail(), Log: w.LogPath()}
}

func (l *launch) result(err error) *Result {
	r := &Result{Job: l.spec.Name, Dir: l.dir.path, OK: err == nil, StoppedBy: l.stoppedBy(), Started: l.started,
		Seconds: time.Since(l.started).Seconds(), Alone: !anyJoined(len(l.workers), l.agent.Joined)}
	if err != nil {
		r.Error = err.Error()
	}
	for i, e := range l.endings() {
		r.Workers = append(r.Workers, WorkerResult{Rank: e.rank, PID: e.exit.PID, How: e.exit.String(), Stopped: i >= l.stopping,
			Seconds: e.exit.Ended.Sub(e.exit.Started).Seconds()})
	}
	return r
}
