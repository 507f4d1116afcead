package launcher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/group"
)

// graceAsked is how long workers of a job without steps may take to end by themselves when somebody
// asks for the end of the job. Those of a job in steps have no such limit: after their loop their
// scripts may save a model for minutes.
const graceAsked = 10 * time.Second

// The functions in this file carry out a request to end the job. The methods of launcher run on the
// goroutine of Run or Serve; any goroutine may call those of registry, which lock its mutex for a
// moment.

// shutdown is a request to end the job. The registry's lock guards all but the channels, which are
// made once; the lock is held where they are closed.
type shutdown struct {
	who       string        // person or tool that asked first; "" = nobody
	asked     chan struct{} // closed by the first request
	now       chan struct{} // closed by the first request to end the job at once
	hurried   bool          // now is closed
	members   []int         // workers that were members when the end was asked for, or began
	dismissed []int         // workers that were ended because they were no members
	park      parking       // what has become of the wish to park the job
	drained   bool          // the job goes on without this host
}

// newShutdown returns a shutdown that nobody has asked for.
func newShutdown() shutdown {
	return shutdown{asked: make(chan struct{}), now: make(chan struct{})}
}

// Stopped is the error of a job that was stopped on request, if a worker did not end well. Nobody
// changes it.
type Stopped struct {
	Job, By string   // the name of the job, and the person or tool that asked for its end
	Ends    []string // "worker 3 was killed by SIGTERM"
}

// Error names the first workers that did not end well.
func (s *Stopped) Error() string {
	const most = 4
	ends := s.Ends
	if len(ends) > most {
		ends = append(ends[:most:most], fmt.Sprintf("and %d more", len(s.Ends)-most))
	}
	return fmt.Sprintf("job %s was stopped by %s: %s", s.Job, s.By, strings.Join(ends, ", "))
}

// requestStop registers that who asks for the end of the job, at once with now, and wakes those who
// wait for a request. A second request can only make the end faster.
func (r *registry) requestStop(now bool, who string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &r.shutdown
	if d.who == "" {
		d.who = who
		close(d.asked)
	}
	if now && !d.hurried {
		d.hurried = true
		close(d.now)
	}
}

// stoppedBy is who asked for the end of the job; "" = nobody.
func (r *registry) stoppedBy() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shutdown.who
}

// mustEndAtOnce reports whether somebody asked for the job to end at once.
func (r *registry) mustEndAtOnce() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shutdown.hurried
}

// expectEnd adds workers that are members to those that are to end well. It does not matter how a
// spare ends, or a worker that was just joining.
func (r *registry) expectEnd(members []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shutdown.members = append(r.shutdown.members, members...)
}

// setDismissed registers that a worker is ended because it is not needed.
func (r *registry) setDismissed(worker int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shutdown.dismissed = append(r.shutdown.dismissed, worker)
}

// stoppedError returns the error of a job that was stopped on request, a *Stopped; nil when every
// worker ended well, or nobody asked for the end.
func (r *registry) stoppedError() error {
	name := r.jobName()
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &r.shutdown
	if d.who == "" {
		return nil
	}
	s := &Stopped{Job: name, By: d.who}
	for i, e := range r.endings {
		missed := i >= r.stopping && slices.Contains(d.members, e.worker)
		if !e.exit.OK() && (missed || !e.survived) && !slices.Contains(d.dismissed, e.worker) {
			s.Ends = append(s.Ends, fmt.Sprintf("worker %d %s", e.worker, e.exit))
		}
	}
	if len(r.endings) == 0 {
		s.Ends = []string{"no worker had begun"}
	}
	if len(s.Ends) == 0 {
		return nil
	}
	return s
}

// endOnRequest ends the job: members are let go when their step ends, the workers of a job without
// steps get SIGTERM. It blocks until all have ended, or the end at once is asked for, or without
// steps for graceAsked; after that stopWorkers is to end the others.
func (l *launcher) endOnRequest(ctx context.Context, services *group.Group) error {
	l.beginStop()
	why := l.registry.stoppedBy() + " asked for the end of the job"
	var late <-chan time.Time // nil = workers may take as long as they want
	s := l.agent.Status()
	l.registry.expectEnd(s.Members)
	switch {
	case l.registry.mustEndAtOnce():
		l.reportStop(s, why+", now")
		return nil
	case l.agent.ReleaseWorkers(why):
		members := l.agent.Status().Members // since ReleaseWorkers nobody becomes a member any more
		l.reportFaults()
		l.dismissNonMembers(members)
		l.registry.expectEnd(members)
	default:
		l.reportStop(s, why)
		l.signalWorkers(syscall.SIGTERM)
		late = time.After(graceAsked)
	}
	soon := time.After(graceFailed)
	for len(l.registry.living()) > 0 {
		select {
		case <-l.registry.changed:
		case <-soon:
			l.reportFaults()
		case <-late:
			return nil
		case <-l.registry.shutdown.now:
			return nil
		case <-ctx.Done():
			return l.interruptedError(ctx)
		case <-services.Context().Done():
			return nil // the error comes from services.Wait
		}
	}
	return nil
}

// reportStop reports, in an event, that the job in status s is stopped, and why.
func (l *launcher) reportStop(s agent.Status, why string) {
	l.onEvent(agent.Event{What: "stop", Generation: s.Generation, Size: s.Size, Step: s.Steps,
		OptimizerSteps: s.OptimizerSteps, Because: why})
}

// dismissNonMembers ends the workers that are not among members, and does not wait until they have
// ended.
func (l *launcher) dismissNonMembers(members []int) {
	for _, w := range l.registry.living() {
		if !slices.Contains(members, w.worker) {
			l.dismissWorker(w)
		}
	}
}
