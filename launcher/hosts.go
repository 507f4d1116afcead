package launcher

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/member"
)

// tell sends a message to the launcher of another host.
func (l *launcher) tell(host string, m *message) { l.agent.Send(host, m.encode()) }

// report sends a message about a worker of this host to the host that leads, and registers it here.
func (l *launcher) report(m *message) {
	if leader, here := l.registry.whoLeads(); leader != "" && !here {
		l.tell(leader, m)
	}
	// only now: once the last end of a worker is registered, this host may leave
	l.update(l.registry.self(), m)
}

// update registers what a host says of a worker.
func (l *launcher) update(host string, m *message) {
	if l.registry.update(host, m) {
		l.reporter.metrics(m.Report.Worker, m.Report.Metrics)
	}
	if m.Ended != nil {
		l.reporter.ended(m.Ended.Worker)
	}
}

// forward sends the line of a worker to the host that leads, for the terminal there.
func (l *launcher) forward(worker int, stderr bool, line string) {
	if leader, here := l.registry.whoLeads(); leader != "" && !here {
		l.tell(leader, &message{Line: &lineMessage{worker, stderr, line}})
	}
}

// onMessage takes a message of the launcher of another host, on the engine's thread.
func (l *launcher) onMessage(from string, b []byte) error {
	m, err := decodeMessage(b)
	if err == nil {
		l.tasks.add(func() { l.receive(from, m) })
	}
	return err
}

// receive deals with a message of another host, as a task. If neither host leads, the message is
// from before another host led, and is ignored.
func (l *launcher) receive(from string, m *message) {
	leader, leads := l.registry.whoLeads()
	heeds := leader == from
	switch {
	case m.Job != nil && heeds:
		l.begin(*m.Job)
	case m.Signal != nil && heeds:
		if w, known := l.registry.worker(m.Signal.Worker); known {
			l.signal(w, syscall.Signal(m.Signal.Signal))
			l.reportFaults()
		}
	case m.Over != nil && heeds:
		l.leave(failedElsewhere(l.registry.name(), m.Over.Why))
	case m.Stays != nil && heeds:
		l.console.Note("this host cannot leave: " + m.Stays.Why)
	case !leads:
	case m.Offer != nil:
		l.welcome(from, *m.Offer)
	case m.Leaving != nil:
		if err := l.agent.Drain(from, from); errors.Is(err, head.ErrNotHead) {
			l.retry(func() { l.receive(from, m) })
		} else if err != nil {
			l.console.Note(fmt.Sprintf(
				"host %s asks to leave (%s), but its workers cannot be released: %v", from,
				m.Leaving.Why, err))
			l.registry.deny(from, true)
			l.tell(from, &message{Stays: &reasonMessage{err.Error()}})
		}
	case m.Line != nil:
		if l.registry.answersFor(from, m.Line.Worker) {
			l.reporter.line(m.Line.Worker, m.Line.Error, m.Line.Text)
		}
	default:
		l.update(from, m)
	}
}

// begin takes what the job is, on a host that joins it.
func (l *launcher) begin(j jobMessage) {
	if l.registry.whatJob() != nil {
		return
	}
	program, err := find(j.Spec)
	if err == nil {
		err = l.learn(j, program, "@"+l.registry.self())
	}
	if err != nil {
		l.fail(fmt.Errorf("job %s cannot run on this host: %w", j.Spec.Name, err))
		return
	}
	if j.Spec.FixedRoutes {
		l.agent.FixRoutes()
	}
	if j.Spec.Redundant {
		l.agent.KeepRedundant()
	}
	l.agent.CountFrom(j.After)
	if l.record != nil && j.Record != nil {
		l.record.learn(*j.Record, j.After, l.stores(j.Record.URL))
	}
	if l.cfg.OnStart != nil {
		l.cfg.OnStart(j.Spec.Name, l.reporter.path())
	}
	for _, o := range l.supervisor.postponed() {
		l.startAll(o)
	}
}

// welcome takes the offer of a host that joins, or that follows a new head.
func (l *launcher) welcome(host string, o offerMessage) {
	job := l.registry.welcome(host, o)
	if job == nil {
		return // this host leads, and has not heard of the job: then nobody has
	}
	if !o.Known {
		l.tell(host, &message{Job: job})
		l.console.Note(fmt.Sprintf("host %s has joined; slots: %d", host, o.Slots))
	}
	l.needRoom()
	l.releaseDenied()
	l.registry.wake()
}

// needRoom calls Fleet.Need with the number of first workers that have no place yet; 0 when the job
// has begun, or is over.
func (l *launcher) needRoom() {
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

// onLead takes which host leads the job, on the engine's thread.
func (l *launcher) onLead(host string) { l.tasks.add(func() { l.follow(host) }) }

// follow turns to a host that leads, and tells it what it must know of this host.
func (l *launcher) follow(leader string) {
	s, changed := l.registry.follow(leader, l.agent.Status().Hosts)
	if !changed {
		return
	}
	if l.cfg.Fleet != nil {
		s.offer.Slots = l.cfg.Fleet.Slots
	}
	switch {
	case s.over:
	case leader == l.registry.self():
		l.console.Note("this host leads the job now")
	default:
		if s.offer.Known {
			l.console.Note(fmt.Sprintf("host %s leads the job now", leader))
		}
		l.tell(leader, &message{Offer: &s.offer})
		for _, w := range s.workers {
			l.introduce(leader, w)
		}
	}
	if s.leaving && !s.over {
		l.askToLeave()
	}
	l.registry.wake()
}

// introduce tells a host that leads all that is known of a worker of this host.
func (l *launcher) introduce(leader string, w workerRecord) {
	l.tell(leader, &message{Started: &startedMessage{w.worker, w.pid}})
	if w.joined {
		l.tell(leader, &message{Joined: &workerMessage{w.worker}})
	}
	if w.metrics != nil {
		l.tell(leader, &message{Report: &reportMessage{w.worker, w.metrics}})
	}
	if w.exit != nil {
		end := endOf(w.worker, *w.exit, w.survived)
		end.Because, end.Tail, end.Log, end.Dismissed = w.because, w.tail, w.log, w.dismissed
		l.tell(leader, &message{Ended: end})
	}
}

// onGone takes that a host is lost, or has left, on the engine's thread: its workers have ended.
func (l *launcher) onGone(host, how string) {
	l.tasks.add(func() {
		workers, led := l.registry.forgetHost(host)
		over, elastic := l.reporter.isJobOver(), l.agent.Status().Elastic
		for _, w := range workers {
			now := time.Now()
			lost := proc.Exit{PID: w.pid, Lost: "was lost with its host " + host, Started: now,
				Ended: now}
			l.update(host, &message{Ended: endOf(w.worker, lost, elastic)})
		}
		if led && !over {
			l.console.Note(fmt.Sprintf("host %s, which led the job, %s", host, how))
		}
		if !over {
			l.sayStuck()
			l.needRoom()
		}
		l.registry.wake()
	})
}

// sayStuck notes on the console, once, that nobody can lead the job after the host that did. This
// may turn out only when further hosts are lost.
func (l *launcher) sayStuck() {
	if s := l.agent.Status(); !s.Stuck || s.Generation == 0 {
		return
	}
	if host := l.registry.takeLostLeader(); host != "" {
		l.console.Note(fmt.Sprintf("too few hosts are left to be sure that no others go on; if "+
			"you know that %s is gone for good, say so: shoal recover %s --force", host,
			l.registry.name()))
	}
}

// onLeave takes that this host is no part of the job any more, on the engine's thread.
func (l *launcher) onLeave(why string, drained bool) {
	l.tasks.add(func() {
		if drained {
			l.leave(nil)
		} else {
			l.leave(fmt.Errorf("this host is no part of job %s any more: %s", l.registry.name(),
				why))
		}
	})
}

// failedElsewhere is why this host's part in a failed job ends; nil if why is "", since the job has
// not failed.
func failedElsewhere(name, why string) error {
	if why == "" {
		return nil
	}
	return fmt.Errorf("job %s failed, and this host has left it: %s", name, why)
}

// leave ends this host's part in the job: with an error if there is one, else when its workers have
// ended.
func (l *launcher) leave(err error) {
	l.registry.leave(err)
	l.registry.wake()
}

// onEnd takes that no worker is left to carry on, on the engine's thread.
func (l *launcher) onEnd(ok bool, why string) {
	if follows := l.registry.endJob(ok); follows {
		l.reporter.endJob() // that the head goes now is no news
		if !ok {            // the head says next whether the job failed, or was stopped
			l.group.Go("last words", func(ctx context.Context) error {
				select {
				case <-time.After(leaveWait):
					l.leave(failedElsewhere(l.registry.name(), why))
				case <-ctx.Done():
				}
				return nil
			})
		}
	}
	l.registry.wake()
}

// askToLeave asks the host that leads to do without this host. If no host leads, or the one that
// leads is lost before it has heard, follow asks the next. A job that has no other host ends; a job
// whose state the other hosts cannot hold trains on.
func (l *launcher) askToLeave() {
	leader, here := l.registry.askToLeave()
	switch {
	case leader == "": // follow asks
	case here:
		if err := l.agent.Drain(leader, leader); errors.Is(err, head.ErrNotHead) {
			l.retry(l.askToLeave)
		} else if err != nil {
			l.console.Note(fmt.Sprintf("this host cannot leave: %v", err))
			unfit, needed := new(head.UnfitError), new(member.NeededError)
			if l.cfg.CannotLeave != nil && !errors.As(err, &unfit) && !errors.As(err, &needed) {
				l.cfg.CannotLeave(err)
			} else {
				l.registry.deny(leader, true)
			}
		}
	default:
		l.tell(leader, &message{Leaving: &reasonMessage{"it was asked to stop"}})
	}
}

// releaseDenied drains the hosts that were asked to leave and were needed, as far as the job can do
// without them now: it has other members, or another host. A new head is asked by the hosts.
func (l *launcher) releaseDenied() {
	for _, host := range l.registry.needed() {
		if l.agent.Drain(host, host) != nil {
			continue
		}
		l.registry.deny(host, false)
		l.console.Note(fmt.Sprintf("host %s, which was asked to leave, is not needed any more",
			host))
	}
}

// retryAfter is how long a new head gets to take in what others report, before it is asked again.
const retryAfter = 50 * time.Millisecond

// retry does a task again, after a while, for which this host must first learn, as a new head, what
// was decided before.
func (l *launcher) retry(task func()) {
	l.group.Go("ask again", func(ctx context.Context) error {
		select {
		case <-time.After(retryAfter):
			l.tasks.add(task)
		case <-ctx.Done():
		}
		return nil
	})
}

// drainHost lets the workers of a host go when their step ends. name is that of the host in the
// job, or what the host calls itself.
func (l *launcher) drainHost(name, who string) error {
	host, err := l.registry.hostNamed(name, l.registry.hosts(l.agent.Status().Hosts))
	if err != nil {
		return err
	}
	return l.agent.Drain(host, who)
}

// leaveWait is how long other hosts may take to leave a job that is over.
const leaveWait = 3 * time.Second

// endJob tells the other hosts that the job is over, and why if it has failed, and waits up to
// leaveWait until they have left.
func (l *launcher) endJob(why string) {
	l.reporter.endJob()
	hosts := l.registry.others()
	if !l.registry.leads() {
		return
	}
	l.needRoom()
	for _, host := range hosts {
		l.tell(host, &message{Over: &reasonMessage{why}})
	}
	late, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	for len(l.registry.others()) > 0 {
		select {
		case <-l.registry.changed:
		case <-late.Done():
			return
		}
	}
}
