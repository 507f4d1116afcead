package launcher

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/numa"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// hand is a worker process that a launcher knows of: its own, and on the host that leads those of
// other hosts.
type hand struct {
	seat     int
	host     string
	pid      int        // 0 while it starts
	home     *numa.Node // memory node that it is bound to; nil = none, or it runs on another host
	joined   bool
	exit     *proc.Exit // nil = it runs
	survived bool       // the job goes on without it
	needless bool       // shoal has ended it, since it was not needed
	bereft   string     // why its last call failed that waited for one who is gone
	because  string     // that, where it has ended of it
	tail     []string   // of its output, and
	log      string     // the file with all of it, where it runs on another host
	process  *proc.Worker
	output   *proc.Output // both nil on another host
}

// attend runs errands, one after the other, until the end.
func (l *launch) attend(ctx context.Context) error {
	for {
		select {
		case <-l.due:
		case <-ctx.Done():
			return nil
		}
		l.mu.Lock()
		errands := l.errands
		l.errands = nil
		l.mu.Unlock()
		for _, errand := range errands {
			errand()
		}
		l.wake()
	}
}

// later has attend do something: what the engine's thread must not wait for.
func (l *launch) later(errand func()) {
	l.mu.Lock()
	l.errands = append(l.errands, errand)
	l.mu.Unlock()
	select {
	case l.due <- struct{}{}:
	default:
	}
}

// fail ends this host's part in the job.
func (l *launch) fail(err error) {
	l.mu.Lock()
	if l.fatal == nil {
		l.fatal = err
	}
	l.mu.Unlock()
	l.wake()
}

// surround is the environment of the workers of this host.
func (l *launch) surround(j jobNote) surroundings {
	here := j.Spec.Workers
	if f := l.cfg.Fleet; f != nil {
		here = min(here, f.Slots)
	}
	return surroundings{base: os.Environ(), spec: j.Spec, socket: l.place.Socket(),
		mark: l.place.Mark(), cores: runtime.GOMAXPROCS(0),
		here: here, addr: j.Addr, port: j.Port}
}

func (l *launch) onStart(o agent.StartOrder) {
	l.mu.Lock()
	l.ordered += o.Count
	l.mu.Unlock()
	l.later(func() { l.startAll(o) })
}

// startAll starts workers that the membership has ordered, once it is known what they are.
func (l *launch) startAll(o agent.StartOrder) {
	l.mu.Lock()
	wait := l.job == nil
	if wait {
		l.orders = append(l.orders, o)
	}
	l.mu.Unlock()
	if wait {
		return
	}
	for seat := o.First; seat < o.First+o.Count; seat++ {
		l.mu.Lock()
		stopping := l.stopping >= 0
		l.mu.Unlock()
		if stopping {
			return
		}
		if err := l.start(seat); err != nil {
			l.cannotStart(seat, err)
		}
	}
	if where := l.whereabouts(o); where != "" {
		l.console.Note(where)
	}
}

// start runs the process of one seat.
func (l *launch) start(seat int) error {
	l.mu.Lock()
	spec, around, dir, local := l.job.Spec, l.around, l.dir, 0
	for _, h := range l.hands {
		if h.host == l.host {
			local++
		}
	}
	var home *numa.Node
	home, around.cores = l.home(around)
	l.mu.Unlock()
	late := seat >= spec.Workers
	at := place{seat: seat, token: l.agent.Expect(seat, late), rank: seat, size: spec.Workers,
		local: local, here: around.here, port: around.port}
	if late {
		at = place{seat: seat, token: at.token, size: 1, port: freePort()}
		around.addr = "127.0.0.1"
	}
	l.agent.Started(seat)
	out, err := proc.NewOutput(l.console, seat, dir.log(seat))
	if err != nil {
		return err
	}
	noted := make(chan struct{}) // it may end before it is in the books
	command := proc.Command{Path: l.program, Args: spec.Command, Env: around.environment(at)}
	if home != nil {
		command.CPUs = home.CPUs
	}
	process, err := proc.Start(l.group, command, out, func(e proc.Exit) {
		<-noted
		l.onExit(seat, e)
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.ordered--
	h := l.book(seat, l.host)
	h.pid, h.process, h.output = process.PID(), process, out
	if process.Bound() {
		h.home = home
	}
	stopping := l.stopping >= 0 // the signal for all may have come before
	if stopping && late {
		l.farewell.dismissed = append(l.farewell.dismissed, seat)
	}
	l.mu.Unlock()
	close(noted)
	l.tell(&note{Started: &startedNote{seat, process.PID()}})
	if stopping {
		process.Signal(syscall.SIGTERM)
	}
	return nil
}

// cannotStart ends the job, whose program cannot run on this host, unless the job is well without
// the worker.
func (l *launch) cannotStart(seat int, err error) {
	survived := l.survives(seat, proc.Exit{Code: 127})
	if l.leads() && !survived {
		l.fail(err)
		return
	}
	l.mu.Lock()
	l.ordered--
	l.mu.Unlock()
	l.tell(&note{Ended: &endedNote{Worker: seat, Code: 127, Survived: survived,
		Tail: []string{err.Error()}}})
	if survived {
		l.console.Note(fmt.Sprintf("worker %d cannot be started: %v", seat, err))
		l.agent.Lost(seat, "could not be started")
	}
}

func (l *launch) onStop(seat int, _ string) {
	l.later(func() {
		h := l.hand(seat)
		if h == nil || h.process == nil {
			l.agent.TurnAway(seat)
			return
		}
		l.dismiss(h)
		l.group.Go("turn away", func(context.Context) error {
			select {
			// so that no program goes on behind a loop that it was not in
			case <-h.process.Silent():
			case <-time.After(graceStopped):
				l.agent.TurnAway(seat)
			}
			return nil
		})
	})
}

func (l *launch) onJoin(seat int, client string) {
	l.tell(&note{Joined: &workerNote{seat}})
	if l.cfg.OnJoin != nil {
		l.cfg.OnJoin(seat, client)
	}
}

func (l *launch) onReport(seat int, metrics map[string]float64) {
	l.tell(&note{Report: &reportNote{seat, metrics}})
	if l.cfg.OnReport != nil {
		l.cfg.OnReport(seat, metrics)
	}
}

// onBereft notes that a worker has waited in vain for one that is gone: it mostly ends of that.
func (l *launch) onBereft(seat int, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.hands[seat]; h != nil {
		h.bereft = why
	}
}

// onSave has what becomes of a checkpoint among the lines of the worker whose part it was, which
// may be gone.
func (l *launch) onSave(seat int, line string) {
	line = "shoal: " + line
	l.console.Line(seat, true, line)
	l.mu.Lock()
	dir := l.dir
	l.mu.Unlock()
	_ = dir.line(seat, line) // as with reports
	l.forward(seat, true, line)
}

// onExit deals with the end of a worker of this host. Where the job is led it is in the books
// first, in the order of the endings: what the membership makes of it can end others. Elsewhere the
// membership hears it first, since the books are kept on another host.
func (l *launch) onExit(seat int, e proc.Exit) {
	elastic := l.agent.Status().Elastic // where a loss is survived, and an end has other reasons
	survived := l.survives(seat, e) && (!e.OK() || l.vain(seat))
	l.mu.Lock()
	candid, leads, h := l.candid, l.leader == l.host, l.hands[seat]
	if !e.OK() && !survived && !candid {
		l.faults = append(l.faults, ending{seat, e, false}) // confess tells
	}
	l.telling++
	because := ""
	if e.Code != 0 && !elastic {
		because = h.bereft
	}
	needless := slices.Contains(l.farewell.dismissed, seat)
	l.mu.Unlock()
	n := endOf(seat, e, survived)
	n.Needless = needless
	n.Log, n.Because = h.output.LogPath(), because
	if leads {
		l.tell(&note{Ended: n})
	}
	switch {
	case e.OK():
		l.agent.Finished(seat, e.String())
	case survived || candid:
		l.agent.Lost(seat, e.String())
	}
	l.mu.Lock()
	l.telling--
	l.mu.Unlock()
	if leads {
		l.wake()
	} else {
		l.later(func() {
			h.process.Drain(draining)
			n.Tail = h.output.Tail()
			l.tell(&note{Ended: n})
		})
	}
	// which hits one process, and not those that load data for it
	if survived && e.Signal == syscall.SIGKILL {
		_ = proc.SweepGroup(l.place.Run, e.PID) // what it misses goes with the job
	}
}

// survives reports whether the job goes on without a worker that ended like this: a worker that was
// killed is weather; one that failed by itself is a fault that somebody should see, unless the user
// said how many workers are enough, or it came late and the job was well without it.
func (l *launch) survives(seat int, e proc.Exit) bool {
	spec := l.spec()
	return (e.Signal != 0 || e.Lost != "" || spec.Min > 0 || seat >= spec.Workers) &&
		l.agent.Status().Elastic
}

// vain reports whether a worker that has ended well was a spare that never joined: nobody counts on
// it.
func (l *launch) vain(seat int) bool {
	spec := l.spec()
	l.mu.Lock()
	defer l.mu.Unlock()
	return spec.Spares > 0 && seat >= spec.Workers && !l.hasJoined(seat)
}

func (l *launch) hand(seat int) *hand {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hands[seat]
}

// living lists the workers that run and that this host answers for.
func (l *launch) living() []*hand { return l.which(func(h *hand) bool { return h.exit == nil }) }

// near lists the workers whose processes were started here.
func (l *launch) near() []*hand { return l.which(func(h *hand) bool { return h.process != nil }) }

func (l *launch) which(is func(h *hand) bool) (list []*hand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seat := range slices.Sorted(maps.Keys(l.hands)) {
		if is(l.hands[seat]) {
			list = append(list, l.hands[seat])
		}
	}
	return list
}

// signalOne sends a worker a signal, or has its host do it. One of this host that is being started
// gets it from start.
func (l *launch) signalOne(h *hand, sig syscall.Signal) {
	l.mu.Lock()
	process := h.process
	l.mu.Unlock()
	switch {
	case process != nil:
		process.Signal(sig)
	case h.host != l.host:
		l.agent.Tell(h.host, (&note{Signal: &signalNote{h.seat, int(sig)}}).encode())
	}
}

// hasJoined and anyJoined are asked with the lock held.
func (l *launch) hasJoined(seat int) bool { return l.hands[seat] != nil && l.hands[seat].joined }

func (l *launch) anyJoined() bool {
	for _, h := range l.hands {
		if h.joined {
			return true
		}
	}
	return false
}
