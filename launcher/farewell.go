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

// graceAsked is how long workers may take to end by themselves when somebody asks for the end of
// the job.
const graceAsked = 10 * time.Second

// farewell is a request to end the job. The launch's mutex guards what is not a channel.
type farewell struct {
	who       string
	asked     chan struct{} // closed by the first request
	now       chan struct{} // closed by the first that has no patience
	hurried   bool
	members   []int // seats, when the end was asked for or began
	dismissed []int // seats of workers that were ended because they were no members
}

func newFarewell() farewell {
	return farewell{asked: make(chan struct{}), now: make(chan struct{})}
}

// Stopped is the error of a job that was stopped on request, if a worker did not end well.
type Stopped struct {
	Job, By string
	Ends    []string // "worker 3 was killed by SIGTERM"
}

func (s *Stopped) Error() string {
	const most = 4
	ends := s.Ends
	if len(ends) > most {
		ends = append(ends[:most:most], fmt.Sprintf("and %d more", len(s.Ends)-most))
	}
	return fmt.Sprintf("job %s was stopped by %s: %s", s.Job, s.By, strings.Join(ends, ", "))
}

// askToStop notes a request to end the job. A second one can only make it faster.
func (l *launch) askToStop(now bool, who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &l.farewell
	if f.who == "" {
		f.who = who
		close(f.asked)
	}
	if now && !f.hurried {
		f.hurried = true
		close(f.now)
	}
}

// stoppedBy is who asked for the end of the job; "" = nobody.
func (l *launch) stoppedBy() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.farewell.who
}

// part ends the job on request: members are let go when their step ends, the workers of a job
// without steps get SIGTERM. It returns when all have ended, or when it has been long enough for
// stop to end the others.
func (l *launch) part(ctx context.Context, house *group.Group) error {
	l.beginStop()
	why := l.stoppedBy() + " asked for the end of the job"
	s := l.agent.Status()
	l.expectEnd(s.Seats)
	switch {
	case l.impatient():
		l.noteStop(s, why+", now")
		return nil
	case l.agent.Release(why):
		seats := l.agent.Status().Seats // asked now: nobody becomes a member any more
		l.confess()
		l.dismissOthers(seats)
		l.expectEnd(seats)
	default:
		l.noteStop(s, why)
		l.signal(syscall.SIGTERM)
	}
	soon, late := time.After(graceFailed), time.After(graceAsked)
	for len(l.living()) > 0 {
		select {
		case <-l.changed:
		case <-soon:
			l.confess()
		case <-late:
			return nil
		case <-l.farewell.now:
			return nil
		case <-ctx.Done():
			return l.interrupted(ctx)
		case <-house.Context().Done():
			return nil // the error comes from house.Wait
		}
	}
	return nil
}

// expectEnd notes the members that are to end well. How a spare ends, or a worker that was just
// coming, is no matter.
func (l *launch) expectEnd(members []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.farewell.members = append(l.farewell.members, members...)
}

func (l *launch) impatient() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.farewell.hurried
}

func (l *launch) noteStop(s agent.Status, why string) {
	l.onEvent(agent.Event{What: "stop", Generation: s.Generation, Size: s.Size, Step: s.Steps,
		Because: why})
}

// dismissOthers ends the workers that have not entered yet.
func (l *launch) dismissOthers(members []int) {
	for _, h := range l.living() {
		if !slices.Contains(members, h.seat) {
			l.dismiss(h)
		}
	}
}

// dismiss ends a worker that holds nothing. How it ends is no matter, nor what it says to it.
func (l *launch) dismiss(h *hand) {
	l.mu.Lock()
	l.farewell.dismissed = append(l.farewell.dismissed, h.seat)
	output := h.output
	l.mu.Unlock()
	if output != nil {
		output.Mute()
	}
	l.signalOne(h, syscall.SIGTERM)
}

// outcome is what to say of a job that was stopped on request: nothing when every worker ended
// well.
func (l *launch) outcome() error {
	s := &Stopped{Job: l.name(), By: l.stoppedBy()}
	if s.By == "" {
		return nil
	}
	for i, e := range l.endings() {
		missed := i >= l.stopping && slices.Contains(l.farewell.members, e.rank)
		if !e.exit.OK() && (missed || !e.survived) &&
			!slices.Contains(l.farewell.dismissed, e.rank) {
			s.Ends = append(s.Ends, fmt.Sprintf("worker %d %s", e.rank, e.exit))
		}
	}
	if len(l.endings()) == 0 {
		s.Ends = []string{"no worker had begun"}
	}
	if len(s.Ends) == 0 {
		return nil
	}
	return s
}
