package launcher

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/member"
)

// The methods of launcher in this file speak with the launchers of the job's other hosts. Those
// called onX run on the engine's thread, and do not wait for it; a task is a function in the queue
// l.tasks, whose one goroutine may wait for that thread. Neither thread nor task waits for another
// host.

// sendTo sends a message to the launcher of another host. It waits for the engine's thread, and not
// for that host.
func (l *launcher) sendTo(host string, m *message) { l.agent.SendToLauncher(host, m.encode()) }

// reportWorker sends a message about a worker of this host to the host that leads, and then
// registers it here. It waits for the engine's thread, and writes files of the run.
func (l *launcher) reportWorker(m *message) {
	leader, here := l.registry.whoLeads()
	if leader != "" && !here {
		l.sendTo(leader, m)
	}
	// only now: once the last end of a worker is registered, this host may leave
	l.registerMessage(l.registry.hostName(), m)
	// One that has come to lead meanwhile was told what was registered before.
	if next, here := l.registry.whoLeads(); next != leader && next != "" && !here {
		l.sendTo(next, m)
	}
}

// registerMessage registers what a host says of a worker, and writes what the files of the run must
// have of it. Any goroutine may call it that may do I/O.
func (l *launcher) registerMessage(host string, m *message) {
	if m.Ended != nil {
		l.reporter.closeLog(m.Ended.Worker) // also for an end that is known: a line may have come
	}
	if !l.registry.register(host, m) {
		return
	}
	if m.Park != nil {
		l.reportPark()
	}
	if m.Report != nil {
		l.reporter.appendMetrics(m.Report.Worker, m.Report.Metrics)
	}
	if m.Ended != nil {
		// What was told before has nothing to do with a change that is on trial now.
		if m.Ended.Survived && m.Ended.Code != 0 && !m.Ended.Told && l.registry.leads() {
			l.agent.ReportFailedWorker(fmt.Sprintf("worker %d ended with code %d", m.Ended.Worker,
				m.Ended.Code))
		}
	}
}

// forwardLine sends the line of a worker to the host that leads, if that is another one, for the
// terminal there. It waits for the engine's thread, and runs on the goroutine that has read or made
// the line.
func (l *launcher) forwardLine(worker int, stderr bool, line string) {
	if leader, here := l.registry.whoLeads(); leader != "" && !here {
		l.sendTo(leader, &message{Line: &lineMessage{worker, stderr, line}})
	}
}

// onMessage reads a message of the launcher of another host on the engine's thread, and leaves the
// rest to a task. An error ends the link.
func (l *launcher) onMessage(from string, b []byte) error {
	m, err := decodeMessage(b)
	if err == nil {
		l.tasks.add(func() { l.handleMessage(from, m) })
	}
	return err
}

// handleMessage carries out a message of another host, as a task. If neither host leads, the
// message is from before another host led, and is ignored.
func (l *launcher) handleMessage(from string, m *message) {
	leader, leads := l.registry.whoLeads()
	heeds := leader == from
	switch {
	case m.Job != nil && heeds:
		l.beginJob(*m.Job)
	case m.Signal != nil && heeds:
		if w, known := l.registry.worker(m.Signal.Worker); known {
			l.signalWorker(w, syscall.Signal(m.Signal.Signal))
			l.reportFaults()
		}
	case m.Over != nil && heeds:
		l.reporter.endJob(l.agent.Status(), true)
		l.leaveJob(failedElsewhereError(l.registry.jobName(), m.Over.Why))
	case m.WhyNot != nil && heeds:
		_ = l.storeWhyNotsOfLeader(m.WhyNot.List) // as with events
	case m.Limit != nil && heeds:
		// a host with others has a network
		_ = l.applyLimit(m.Limit.Bytes, "host "+from, func() {})
	case m.Stays != nil && heeds:
		l.console.Note("this host cannot leave: " + m.Stays.Why)
	case !leads:
	case m.Offer != nil:
		l.acceptOffer(from, *m.Offer)
	case m.Leaving != nil:
		err, gone := l.agent.Drain(from, from), new(member.UnknownHostError)
		if errors.Is(err, head.ErrNotHead) {
			l.retryLater(func() { l.handleMessage(from, m) })
		} else if err != nil && !errors.As(err, &gone) { // else it has left, as it wished
			l.console.Note(fmt.Sprintf(
				"host %s asks to leave (%s), but its workers cannot be released: %v", from,
				m.Leaving.Why, err))
			l.registry.setNeeded(from, true)
			l.sendTo(from, &message{Stays: &reasonMessage{err.Error()}})
		}
	case m.Line != nil:
		if l.registry.registerAndCheckHost(from, m.Line.Worker) {
			l.reporter.showWorkerLine(m.Line.Worker, m.Line.Error, m.Line.Text)
		}
	default:
		l.registerMessage(from, m)
	}
}

// beginJob makes this host, which joins a job, ready to run workers of it, once it is told what the
// job is, and starts those that were ordered before. It is a task.
func (l *launcher) beginJob(j jobMessage) {
	if l.registry.knownJob() != nil {
		return
	}
	program, err := findProgram(j.Spec)
	if err == nil {
		err = l.setJob(j, program, "@"+l.registry.hostName())
	}
	if err != nil {
		l.failJob(fmt.Errorf("job %s cannot run on this host: %w", j.Spec.Name, err))
		return
	}
	if j.Spec.FixedRoutes {
		l.agent.FixRoutes()
	}
	l.agent.LearnMeshes(j.Spec.Redundant, j.Spec.Schedule.MeshesBySize())
	l.startPolicyLoop(j.Spec)
	l.agent.CountGenerationsFrom(j.After)
	if l.record != nil && j.Record != nil {
		l.record.setRecord(*j.Record, j.After, l.stores(j.Record.URL))
	}
	if l.cfg.OnStart != nil {
		l.cfg.OnStart(j.Spec.Name, l.reporter.directoryPath())
	}
	for _, o := range l.supervisor.popPostponed() {
		l.starts.add(func() { l.startOrdered(o) })
	}
}

// acceptOffer registers the offer of a host that joins, or that follows a new head, and tells it
// what the job is. It is a task.
func (l *launcher) acceptOffer(host string, o offerMessage) {
	job := l.registry.addOffer(host, o)
	if job == nil {
		return // this host leads, and has not heard of the job: then nobody has
	}
	if !o.Known {
		l.sendTo(host, &message{Job: job})
		l.console.Note(fmt.Sprintf("host %s has joined; slots: %d", host, o.Slots))
	}
	l.tellLimit(host, o.Known)
	l.reportMissingRoom()
	l.drainNeededHosts()
	l.registry.signalChange()
}

// reportMissingRoom calls Fleet.Need with the number of first workers that have no place yet; 0
// when the job has begun, or is over. It is part of a task, or runs on the goroutine of Run or
// Serve.
func (l *launcher) reportMissingRoom() {
	f := l.cfg.Fleet
	if f == nil || f.Need == nil {
		return
	}
	s := l.agent.Status()
	if s.Generation > 0 || l.reporter.isJobOver() {
		s.Short = 0
	}
	f.Need(s.Short)
}

// onLeaderChange has a task follow the host that leads the job now. It runs on the engine's thread.
func (l *launcher) onLeaderChange(host string) { l.tasks.add(func() { l.followLeader(host) }) }

// followLeader makes a host the one that leads, and tells it what it must know of this host. It is
// a task.
func (l *launcher) followLeader(leader string) {
	now := l.agent.Status()
	s, changed := l.registry.setLeader(leader, now.HostNames())
	if !changed {
		return
	}
	if l.cfg.Fleet != nil {
		s.offer.Slots = l.cfg.Fleet.Slots
	}
	switch {
	case s.over:
	case leader == l.registry.hostName():
		l.console.Note("this host leads the job now")
	default:
		if s.offer.Known {
			l.console.Note(fmt.Sprintf("host %s leads the job now", leader))
		}
		for _, w := range s.workers {
			l.introduceWorker(leader, w)
		}
		// the last, since that host waits for it until it judges by all workers
		l.sendTo(leader, &message{Offer: &s.offer})
	}
	if s.leaving && !s.over {
		l.askToLeave()
	}
	l.registry.signalChange()
}

// introduceWorker tells a host that leads all that is known of a worker of this host. It is part of
// a task.
func (l *launcher) introduceWorker(leader string, w workerRecord) {
	l.sendTo(leader, &message{Started: &startedMessage{w.worker, w.pid}})
	if w.joined {
		l.sendTo(leader, &message{Joined: &workerMessage{w.worker}})
	}
	if w.metrics != nil {
		l.sendTo(leader, &message{Report: &reportMessage{w.worker, w.metrics}})
	}
	if w.exit != nil {
		end := endMessage(w.worker, *w.exit, w.survived)
		end.Because, end.Tail, end.Log, end.Dismissed = w.because, w.tail, w.log, w.dismissed
		end.Told = w.told
		l.sendTo(leader, &message{Ended: end})
	}
}

// onHostGone has a task register that a host is lost, or has left: its workers have ended. It runs
// on the engine's thread.
func (l *launcher) onHostGone(host, how string) {
	l.tasks.add(func() {
		workers, led := l.registry.forgetHost(host)
		over, elastic := l.reporter.isJobOver(), l.agent.Status().Elastic
		for _, w := range workers {
			now := time.Now()
			lost := proc.Exit{PID: w.pid, Lost: "was lost with its host " + host, Started: now,
				Ended: now}
			l.registerMessage(host, &message{Ended: endMessage(w.worker, lost, elastic)})
		}
		if led && !over {
			l.console.Note(fmt.Sprintf("host %s, which led the job, %s", host, how))
		}
		if !over {
			l.reportStuckOnce()
			l.reportMissingRoom()
		}
		l.registry.signalChange()
	})
}

// reportStuckOnce notes on the console, once, that too few hosts are left to decide how the job
// goes on: on the host that leads as well as on others. It is part of a task.
func (l *launcher) reportStuckOnce() {
	s := l.agent.Status()
	if s.Stuck && s.Generation > 0 && l.registry.beginStuck(s.Generation) {
		l.console.Note(fmt.Sprintf("too few hosts are left to be sure that no others go on; if "+
			"you know that the others are gone for good, say so: shoal recover %s --force",
			l.registry.jobName()))
	}
}

// onThisHostLeft has a task end this host's part in the job, which goes on without it. It runs on
// the engine's thread.
func (l *launcher) onThisHostLeft(why string, drained bool) {
	l.tasks.add(func() {
		switch {
		case drained:
			if !l.reporter.isJobOver() { // else nobody goes on with the job
				l.registry.setDrained()
			}
			l.leaveJob(nil)
		case l.registry.knownJob() == nil:
			l.leaveJob(&untoldError{why})
		default:
			l.leaveJob(fmt.Errorf("this host is no part of job %s any more: %s",
				l.registry.jobName(), why))
		}
	})
}

// untoldError is why a host that has joined a job is no part of it any more before it was told what
// to run. It can join again as if it had not come yet.
type untoldError struct{ why string }

// Error says why as a person reads it.
func (e *untoldError) Error() string {
	return "this host is no part of the job that it has joined: " + e.why
}

// failedElsewhereError is the error with which this host's part in the failed job called name ends;
// nil if why is "", since the job has not failed.
func failedElsewhereError(name, why string) error {
	if why == "" {
		return nil
	}
	return fmt.Errorf("job %s failed, and this host has left it: %s", name, why)
}

// leaveJob has run end this host's part in the job: with an error if there is one, else when its
// workers have ended. It does not wait, and any goroutine may call it.
func (l *launcher) leaveJob(err error) {
	l.registry.setHostNotNeeded(err)
	l.registry.signalChange()
}

// onJobEnd registers that no worker is left to carry on, and wakes awaitVerdict; ok says that they
// have finished their work. It runs on the engine's thread.
func (l *launcher) onJobEnd(ok bool, why string) {
	if follows := l.registry.setJobEnd(ok); follows {
		// that the head goes now is no news
		l.reporter.endJob(l.agent.Status(), true)
		if !ok { // the head says next whether the job failed, or was stopped
			l.group.Go("wait for the end of the job", func(ctx context.Context) error {
				select {
				case <-time.After(leaveWait):
					l.leaveJob(failedElsewhereError(l.registry.jobName(), why))
				case <-ctx.Done():
				}
				return nil
			})
		}
	}
	l.registry.signalChange()
}

// askToLeave asks the host that leads to do without this host, as a task. If no host leads, or the
// one that leads is lost before it has heard, followLeader asks the next. A job that has no other
// host ends; a job whose state the other hosts cannot hold trains on.
func (l *launcher) askToLeave() {
	leader, here := l.registry.setLeaving()
	switch {
	case leader == "": // followLeader asks
	case here && l.cfg.Manager != "":
		l.parkForManager()
	case here:
		if err := l.agent.Drain(leader, leader); errors.Is(err, head.ErrNotHead) {
			l.retryLater(l.askToLeave)
		} else if err != nil {
			unfit, needed := new(meshes.UnfitError), new(member.NeededError)
			ends := l.cfg.CannotLeave != nil && !errors.As(err, &unfit) && !errors.As(err, &needed)
			if alone := new(member.AloneError); ends && errors.As(err, &alone) {
				l.console.Note("no other host can go on with the job, so it ends")
			} else {
				l.console.Note(fmt.Sprintf("this host cannot leave: %v", err))
			}
			if ends {
				l.cfg.CannotLeave(err)
			} else {
				l.registry.setNeeded(leader, true)
			}
		}
	default:
		l.sendTo(leader, &message{Leaving: &reasonMessage{"it was asked to stop"}})
	}
}

// drainNeededHosts drains the hosts that were asked to leave and were needed, as far as the job can
// do without them now: it has other members, or another host. A new head is asked by the hosts. It
// is a task, where this host leads.
func (l *launcher) drainNeededHosts() {
	for _, host := range l.registry.neededHosts() {
		if l.agent.Drain(host, host) != nil {
			continue
		}
		l.registry.setNeeded(host, false)
		l.console.Note(fmt.Sprintf("host %s, which was asked to leave, is not needed any more",
			host))
	}
}

// retryAfter is how long a new head gets to take in what others report, before it is asked again.
const retryAfter = 50 * time.Millisecond

// retryLater has a task run again, after retryAfter, for which this host must first learn, as a new
// head, what was decided before. It starts a goroutine, and does not wait. A task calls it.
func (l *launcher) retryLater(task func()) {
	l.group.Go("ask again", func(ctx context.Context) error {
		select {
		case <-time.After(retryAfter):
			l.tasks.add(task)
		case <-ctx.Done():
		}
		return nil
	})
}

// drainHost has the workers of a host let go when their step ends, because who asks for it, and
// waits for the engine's thread. name is that of the host in the job, or what the host calls
// itself. It runs on the goroutine of a request to the control socket.
func (l *launcher) drainHost(name, who string) error {
	now := l.agent.Status()
	host, err := l.registry.findHost(name, l.registry.allHosts(now.HostNames()))
	if err != nil {
		return err
	}
	return l.agent.Drain(host, who)
}

// leaveWait is how long other hosts may take to leave a job that is over.
const leaveWait = 3 * time.Second

// endJob tells the other hosts that the job is over, and why if it has failed, and waits up to
// leaveWait until they have left. It runs on the goroutine of Run or Serve; where another host
// leads it tells and waits for nobody.
func (l *launcher) endJob(why string) {
	if !l.registry.leads() {
		l.reporter.setJobOver()
		return
	}
	s := l.agent.Status()
	l.reporter.endJob(s, false)
	if l.registry.jobSpec().Auto != job.AutoOff && !s.Elastic && s.Generation > 0 && why == "" &&
		l.registry.stoppedBy() == "" {
		l.console.Note("--auto had nothing to change: the program takes no steps that shoal " +
			"knows of, as with shoal.torch.loader, job.steps or client.Train")
	}
	hosts := l.registry.offeringHosts()
	l.reportMissingRoom()
	_ = l.publishWhyNots() // as with events
	for _, host := range hosts {
		l.sendTo(host, &message{Over: &reasonMessage{why}})
	}
	late, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	for len(l.registry.offeringHosts()) > 0 {
		select {
		case <-l.registry.changed:
		case <-late.Done():
			return
		}
	}
}
