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

// onStart takes an order of the membership to start workers, on the engine's thread.
func (l *launcher) onStart(o agent.StartOrder) {
	l.registry.order(o.Count)
	l.tasks.add(func() { l.startAll(o) })
}

// startAll starts workers that the membership has ordered, as a task. If it is not known yet what
// to run, the order waits for that.
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
	if where := l.supervisor.bindings(o); where != "" {
		l.console.Note(where)
	}
}

// start starts the process of a worker.
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
	if stopping { // the signal for all workers may have come before this one was registered
		p.Signal(syscall.SIGTERM)
	}
	return nil
}

// cannotStart deals with a worker whose process cannot be started: it ends the job, unless the job
// is well without the worker.
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

// onStop takes an order of the membership to end a worker that is no member, on the engine's
// thread.
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
			// wait first: a program that was turned away would go on behind its training loop
			case <-p.Silent():
			case <-time.After(graceStopped):
				l.agent.TurnAway(worker)
			}
			return nil
		})
	})
}

// onJoin takes that a worker of this host has joined, on the goroutine of its session.
func (l *launcher) onJoin(worker int, client string) {
	l.report(&message{Joined: &workerMessage{worker}})
	if l.cfg.OnJoin != nil {
		l.cfg.OnJoin(worker, client)
	}
}

// onReport takes what a worker of this host reports, on the goroutine of its session.
func (l *launcher) onReport(worker int, metrics map[string]float64) {
	l.report(&message{Report: &reportMessage{worker, metrics}})
	if l.cfg.OnReport != nil {
		l.cfg.OnReport(worker, metrics)
	}
}

// onSave puts a line about a checkpoint among the output of the worker whose part of the checkpoint
// it is about, even if the worker is gone.
func (l *launcher) onSave(worker int, line string) {
	line = "shoal: " + line
	l.reporter.line(worker, true, line)
	l.forward(worker, true, line)
}

// onEvent takes an event of the job, mostly on the engine's thread.
func (l *launcher) onEvent(e agent.Event) {
	if e.What == "generation" && len(l.registry.needed()) > 0 {
		l.tasks.add(l.releaseDenied)
	}
	l.reporter.event(e)
}

// onExit deals with the end of a worker of this host, on the goroutine that waited for its process.
// Where the job is led the registry notes the end first, so that endings are in their order: the
// membership can end other workers because of it. On other hosts the membership hears of the end
// first, since the registry that counts is on the host that leads.
func (l *launcher) onExit(p *process, e proc.Exit) {
	// in an elastic job, which survives losses, a lost peer is not why a worker ends
	elastic := l.agent.Status().Elastic
	survived := survives(l.registry.spec(), p.worker, e, elastic) &&
		(!e.OK() || l.registry.unusedSpare(p.worker))
	w, leads := l.registry.beginExit(p.worker)
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
	l.registry.endExit()
	if leads {
		l.registry.wake()
	} else {
		l.tasks.add(func() {
			p.Drain(outputWait)
			end.Tail = p.output.Tail()
			l.report(&message{Ended: end})
		})
	}
	// SIGKILL ends one process, and not the processes that load data for it
	if survived && e.Signal == syscall.SIGKILL {
		_ = proc.SweepGroup(l.place.Run, e.PID) // the end of the job sweeps what this misses
	}
}

// survives reports whether the job goes on without a worker that ended like this. An elastic job
// survives that a worker is killed. A worker that fails by itself is a fault that somebody should
// see, unless the user said how many workers are enough, or the worker came late and the job was
// well without it.
func survives(spec job.Spec, worker int, e proc.Exit, elastic bool) bool {
	return elastic && (e.Signal != 0 || e.Lost != "" || spec.Min > 0 || worker >= spec.Workers)
}

// dismiss ends a worker that holds nothing of the job. Neither the way in which it ends nor its
// last output matters.
func (l *launcher) dismiss(w workerRecord) {
	l.registry.dismiss(w.worker)
	if p := l.supervisor.process(w.worker); p != nil {
		p.output.Mute()
	}
	l.signal(w, syscall.SIGTERM)
}
