package launcher

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// The methods of launcher in this file start the workers of this host, and register what becomes of
// them. The functions in the queue l.starts run one after the other on one goroutine, which may
// wait for the engine's thread.

// onStartOrder counts the workers that the membership orders, and has them started, in the queue of
// starts. It runs on the engine's thread.
func (l *launcher) onStartOrder(o agent.StartOrder) {
	l.registry.addOrdered(o.Count)
	l.starts.add(func() { l.startOrdered(o) })
}

// slowImport is how long workers wait for what --prefork imports until people are told.
const slowImport = 10 * time.Second

// startTemplate starts the process from which workers are forked, if the job wants one, in the
// queue of starts: before the workers that are to be forked. The console shows why it has ended,
// and that its import takes long.
func (l *launcher) startTemplate() {
	ended := func(why string) {
		if !l.registry.isStopping() {
			l.console.Note("workers are started without --prefork from now on: " + why)
		}
	}
	log := l.reporter.directory().TemplateLog()
	slow := func() {
		l.console.Note(fmt.Sprintf("workers wait for the import of %s (--prefork), which has "+
			"taken more than %v; its output is in %s",
			strings.Join(l.registry.jobSpec().Prefork, ", "), l.supervisor.slowImport, log))
	}
	if err := l.supervisor.startTemplate(l.group, log, slow, ended); err != nil {
		ended(err.Error())
	}
}

// startOrdered starts workers that the membership has ordered, in the queue of starts. It waits
// while their template imports. If it is not known yet what to run, the order waits for that.
func (l *launcher) startOrdered(o agent.StartOrder) {
	if l.supervisor.postponeOrder(o) {
		return
	}
	l.supervisor.countFirst(o)
	for worker := o.First; worker < o.First+o.Count; worker++ {
		if l.registry.isStopping() {
			return
		}
		if err := l.startWorker(worker); err != nil {
			l.cannotStart(worker, err)
		}
	}
	for _, where := range []string{l.supervisor.bindingsText(o), l.supervisor.gpusText(o)} {
		if where != "" {
			l.console.Note(where)
		}
	}
}

// startWorker starts the process of a worker, and tells the agent and the host that leads. It runs
// in the queue of starts, and waits for the engine's thread, and while a template imports.
func (l *launcher) startWorker(worker int) error {
	late := worker >= l.registry.jobSpec().Workers
	token := l.agent.ExpectWorker(worker, late)
	l.agent.WorkerStarted(worker)
	output := func() (*proc.Output, error) {
		return proc.NewOutput(l.console, worker, l.reporter.directory().LogPath(worker))
	}
	p, err := l.supervisor.startProcess(l.group, worker, late, token, output)
	if err != nil {
		return err
	}
	stopping := l.registry.setRunning(worker, p.PID(), late)
	l.reportWorker(&message{Started: &startedMessage{worker, p.PID()}})
	l.group.Go(fmt.Sprintf("wait for worker %d", worker), func(context.Context) error {
		l.onProcessExit(p, p.Wait())
		p.ReapGroup()
		return nil
	})
	if stopping { // the signal for all workers may have come before this one was registered
		p.Signal(syscall.SIGTERM)
	}
	return nil
}

// cannotStart registers that a worker's process cannot be started because of err. That ends the
// job, unless the job is well without the worker. It runs in the queue of starts, and waits for the
// engine's thread.
func (l *launcher) cannotStart(worker int, err error) {
	survived := jobSurvives(l.registry.jobSpec(), worker, proc.Exit{Code: 127}, l.agent.Status())
	if l.registry.leads() && !survived {
		l.failJob(err)
		return
	}
	l.registry.addOrdered(-1)
	l.reportWorker(&message{Ended: &endedMessage{Worker: worker, Code: 127, Survived: survived,
		Tail: []string{err.Error()}}})
	if survived {
		l.console.Note(fmt.Sprintf("worker %d cannot be started: %v", worker, err))
		l.agent.WorkerLost(worker, "could not be started")
	}
}

// onStopOrder ends a worker that is no member, as the membership orders, in the queue of starts:
// not before it has started. It runs on the engine's thread.
func (l *launcher) onStopOrder(worker int, _ string) {
	l.starts.add(func() {
		w, _ := l.registry.worker(worker)
		p := l.supervisor.processOf(worker)
		if p == nil {
			l.agent.TurnAway(worker)
			return
		}
		l.dismissWorker(w)
		l.group.Go("turn away", func(context.Context) error {
			select {
			// wait first: a program that was turned away would go on after its training loop
			case <-p.Silent():
			case <-time.After(graceStopped):
				l.agent.TurnAway(worker)
			}
			return nil
		})
	})
}

// onWorkerJoined registers that a worker of this host has joined, and tells the host that leads. It
// runs on the goroutine of the worker's session.
func (l *launcher) onWorkerJoined(worker int, client string) {
	l.reportWorker(&message{Joined: &workerMessage{worker}})
	if l.cfg.OnJoin != nil {
		l.cfg.OnJoin(worker, client)
	}
}

// onMetrics keeps what a worker of this host reports, and tells the host that leads. It runs on the
// goroutine of the worker's session.
func (l *launcher) onMetrics(worker int, metrics map[string]float64) {
	l.reportWorker(&message{Report: &reportMessage{worker, metrics}})
	if l.cfg.OnReport != nil {
		l.cfg.OnReport(worker, metrics)
	}
}

// onCheckpointLine shows a line about a checkpoint among the output of the worker whose part of the
// checkpoint it is about, even if the worker is gone, here and on the host that leads. It runs on
// the agent's goroutines that write checkpoints, and may block on the terminal.
func (l *launcher) onCheckpointLine(worker int, line string) {
	line = "shoal: " + line
	l.reporter.showHostLine(worker, line)
	l.forwardLine(worker, true, line)
}

// onEvent reports an event of the job. It mostly runs on the engine's thread, and does not wait for
// that or for the terminal.
func (l *launcher) onEvent(e agent.Event) {
	if e.What == "generation" && len(l.registry.neededHosts()) > 0 {
		l.tasks.add(l.drainNeededHosts)
	}
	l.supervisor.releaseGPUs(e.Released...)
	l.reporter.reportEvent(e)
}

// onProcessExit registers the end of a worker of this host, and tells the agent and the host that
// leads. It runs on the goroutine that has waited for the process, and waits for the engine's
// thread. Where the job is led the registry has the end first, so that endings are in their order:
// the membership can end other workers because of it. On other hosts the membership hears of the
// end first, since the registry that counts is on the host that leads; it hears of it when the last
// output is read, or after outputWait.
func (l *launcher) onProcessExit(p *process, e proc.Exit) {
	// in an elastic job, which survives losses, a lost peer is not why a worker ends
	status := l.agent.Status()
	elastic := status.Elastic
	e.Parked = l.registry.hasParked(p.worker)
	survived := jobSurvives(l.registry.jobSpec(), p.worker, e, status) &&
		(!e.OK() || l.registry.unusedSpare(p.worker))
	w, leads := l.registry.beginExit(p.worker)
	atOnce := l.supervisor.setEnded(p, ending{p.worker, e, survived})
	end := endMessage(p.worker, e, survived)
	end.Dismissed, end.Log = w.dismissed, p.output.LogPath()
	if e.Code != 0 && !elastic {
		end.Because = w.lostPeer
	}
	if leads {
		l.reportWorker(&message{Ended: end})
	}
	switch {
	case e.OK():
		l.agent.WorkerFinished(p.worker, e.String())
	case survived || atOnce:
		l.agent.WorkerLost(p.worker, e.String())
	}
	l.registry.endExit()
	if leads {
		l.registry.signalChange()
	}
	// a signal ends one process, and not the processes that load data for it
	if survived && e.Signal != 0 {
		_ = proc.SweepGroup(l.place.Run, e.PID) // the end of the job sweeps what this misses
	}
	if !leads {
		p.StopReadingAfter(outputWait)
		select { // the last words say why the worker has ended, and may not be read yet
		case <-p.Silent():
		case <-time.After(outputWait):
		}
		l.tasks.add(func() { // as what a new head is told, so that it misses nothing
			end.Tail = p.output.Tail()
			l.reportWorker(&message{Ended: end})
		})
	}
}

// jobSurvives reports whether a job, as it is in the status s, goes on without a worker that ended
// like this. An elastic job survives that a worker is killed. A worker that fails by itself is a
// fault that somebody should see, unless the user said how many workers are enough, or the worker
// came late and the job was well without it, or a policy has just changed how the job trains: then
// that may be why, and is taken back.
func jobSurvives(spec job.Spec, worker int, e proc.Exit, s agent.Status) bool {
	return s.Elastic && (e.Signal != 0 || e.Lost != "" || spec.Min > 0 || worker >= spec.Workers ||
		s.Trying)
}

// dismissWorker ends a worker that holds nothing of the job, by SIGTERM, and does not wait for the
// end. Neither the way in which it ends nor its last output matters. It is not for the engine's
// thread, for which it waits where the worker runs on another host.
func (l *launcher) dismissWorker(w workerRecord) {
	l.registry.setDismissed(w.worker)
	if p := l.supervisor.processOf(w.worker); p != nil {
		p.output.Mute()
	}
	l.signalWorker(w, syscall.SIGTERM)
}
