package launcher

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

func (l *launcher) onStart(o agent.StartOrder) {
	l.registry.order(o.Count)
	l.tasks.add(func() { l.startAll(o) })
}

// startAll starts workers that the membership has ordered, once it is known what they are.
func (l *launcher) startAll(o agent.StartOrder) {
	if l.supervisor.postpone(o) {
		return
	}
	for worker := o.First; worker < o.First+o.Count; worker++ {
		if l.registry.isStopping() {
			return
		}
		if err := l.start(worker); err != nil {
			l.cannotStart(worker, err)
		}
	}
	if where := l.supervisor.whereabouts(o); where != "" {
		l.console.Note(where)
	}
}

// start runs the process of a worker.
func (l *launcher) start(worker int) error {
	late := worker >= l.registry.spec().Workers
	token := l.agent.Expect(worker, late)
	l.agent.Started(worker)
	registered := make(chan struct{}) // the process may end before it is in the registry
	output := func() (*proc.Output, error) {
		return proc.NewOutput(l.console, worker, l.reporter.files().log(worker))
	}
	p, err := l.supervisor.start(l.group, worker, late, token, output,
		func(p *process, e proc.Exit) {
			<-registered
			l.onExit(p, e)
		})
	if err != nil {
		return err
	}
	stopping := l.registry.begun(worker, p.PID(), late)
	close(registered)
	l.report(&message{Started: &startedMessage{worker, p.PID()}})
	if stopping { // the signal for all may have come before
		p.Signal(syscall.SIGTERM)
	}
	return nil
}

// cannotStart ends the job, whose program cannot run on this host, unless the job is well without
// the worker.
func (l *launcher) cannotStart(worker int, err error) {
	survived := survives(l.registry.spec(), worker, proc.Exit{Code: 127}, l.agent.Status().Elastic)
	if l.registry.leads() && !survived {
		l.fail(err)
		return
	}
	l.registry.order(-1)
	l.report(&message{Ended: &endedMessage{Worker: worker, Code: 127, Survived: survived,
		Tail: []string{err.Error()}}})
	if survived {
		l.console.Note(fmt.Sprintf("worker %d cannot be started: %v", worker, err))
		l.agent.Lost(worker, "could not be started")
	}
}

func (l *launcher) onStop(worker int, _ string) {
	l.tasks.add(func() {
		w, _ := l.registry.worker(worker)
		p := l.supervisor.process(worker)
		if p == nil {
			l.agent.TurnAway(worker)
			return
		}
		l.dismiss(w)
		l.group.Go("turn away", func(context.Context) error {
			select {
			// so that no program goes on behind a loop that it was not in
			case <-p.Silent():
			case <-time.After(graceStopped):
				l.agent.TurnAway(worker)
			}
			return nil
		})
	})
}

func (l *launcher) onJoin(worker int, client string) {
	l.report(&message{Joined: &workerMessage{worker}})
	if l.cfg.OnJoin != nil {
		l.cfg.OnJoin(worker, client)
	}
}

func (l *launcher) onReport(worker int, metrics map[string]float64) {
	l.report(&message{Report: &reportMessage{worker, metrics}})
	if l.cfg.OnReport != nil {
		l.cfg.OnReport(worker, metrics)
	}
}

// onSave has what becomes of a checkpoint among the lines of the worker whose part it was, which
// may be gone.
func (l *launcher) onSave(worker int, line string) {
	line = "shoal: " + line
	l.reporter.line(worker, true, line)
	l.forward(worker, true, line)
}

func (l *launcher) onEvent(e agent.Event) {
	if e.What == "generation" && len(l.registry.needed()) > 0 {
		l.tasks.add(l.releaseDenied)
	}
	l.reporter.event(e)
}

// onExit deals with the end of a worker of this host. Where the job is led the registry has it
// first, in the order of the endings: what the membership makes of it can end others. Elsewhere the
// membership hears it first, since the registry that counts is on another host.
func (l *launcher) onExit(p *process, e proc.Exit) {
	// where a loss is survived, an end has other reasons than a lost peer
	elastic := l.agent.Status().Elastic
	survived := survives(l.registry.spec(), p.worker, e, elastic) &&
		(!e.OK() || l.registry.unusedSpare(p.worker))
	w, leads := l.registry.exiting(p.worker)
	atOnce := l.supervisor.ended(p, ending{p.worker, e, survived})
	end := endOf(p.worker, e, survived)
	end.Dismissed, end.Log = w.dismissed, p.output.LogPath()
	if e.Code != 0 && !elastic {
		end.Because = w.lostPeer
	}
	if leads {
		l.report(&message{Ended: end})
	}
	switch {
	case e.OK():
		l.agent.Finished(p.worker, e.String())
	case survived || atOnce:
		l.agent.Lost(p.worker, e.String())
	}
	l.registry.told()
	if leads {
		l.registry.wake()
	} else {
		l.tasks.add(func() {
			p.Drain(draining)
			end.Tail = p.output.Tail()
			l.report(&message{Ended: end})
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
func survives(spec job.Spec, worker int, e proc.Exit, elastic bool) bool {
	return elastic && (e.Signal != 0 || e.Lost != "" || spec.Min > 0 || worker >= spec.Workers)
}

// dismiss ends a worker that holds nothing. How it ends is no matter, nor what it says to it.
func (l *launcher) dismiss(w workerRecord) {
	l.registry.dismiss(w.worker)
	if p := l.supervisor.process(w.worker); p != nil {
		p.output.Mute()
	}
	l.signal(w, syscall.SIGTERM)
}
