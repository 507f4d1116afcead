package launcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/group"
)

// A job is parked: at the end of a step its workers make a checkpoint, and when that is sealed each
// host ends its own, which wait for that. So nothing behind their loops runs, and the job goes on
// with the next sample when it is started again. Where the checkpoint is not sealed, training goes
// on. All workers have agreed on which it is, so no host that is lost then can change it.
//
// Any goroutine may call the methods of registry in this file, which lock its mutex for a moment
// unless they say that it is held. A task is a function in the queue l.tasks, whose one goroutine
// may wait for the engine's thread.

// graceParked is how long a parked worker may take to end, after its checkpoint is sealed.
const graceParked = 10 * time.Second

// parking is what has become of the wish to park the job. The registry's lock guards it.
type parking struct {
	who      string // who wants it; "" = nobody does, or nothing has come of it
	asked    string // who wanted it last
	done     bool   // it is sealed, and the workers are being ended
	problem  string // why nothing has come of the last wish; "" = nothing speaks against it
	reported bool   // people have been told what has come of it
	// after is how many steps were committed when it was asked for: the workers are told when more
	// are.
	after uint64
	// earlier says what came of a wish before this one while this one is open; nil = nothing has.
	earlier *parkMessage
}

// setOutcome registers what a worker says, as it may be shown on a terminal. All of them say the
// same. What speaks against an earlier wish than the one that is open says nothing of that.
func (p *parking) setOutcome(m *parkMessage) {
	if p.who != "" && m.Problem != "" && m.Steps <= p.after {
		p.earlier = m
		return
	}
	if p.who == "" && !p.done && p.problem == "" { // asked for under another head
		p.reported = false
	}
	p.done, p.problem, p.who = m.Problem == "", printableText(m.Problem), ""
}

// requestPark registers who wants the job to be parked, after so many committed steps. Where the
// agent refuses that, refuse puts back what was there before, with what has come of it since.
func (r *registry) requestPark(who string, after uint64) (refuse func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, wish := r.shutdown.park, parking{who: who, asked: who, after: after}
	r.shutdown.park = wish
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		p := &r.shutdown.park
		earlier := p.earlier
		if p.earlier = nil; *p != wish {
			return
		}
		if *p = before; earlier != nil {
			p.setOutcome(earlier)
		}
	}
}

// popParkOutcome returns, once, what has become of the wish to park the job; false = it was taken,
// or there is none.
func (r *registry) popParkOutcome() (p parking, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := &r.shutdown.park
	is = (kept.done || kept.problem != "") && !kept.reported
	kept.reported = kept.reported || is
	return *kept, is
}

// describePark returns, for tools, what has become of the wish to park the job.
func (r *registry) describePark() api.ParkStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.shutdown.park
	return api.ParkStatus{Parked: p.done, ParkedBy: p.who, ParkError: p.problem}
}

// hasParked reports whether a worker of this host waits for its end after a checkpoint.
func (r *registry) hasParked(worker int) bool {
	w, known := r.worker(worker)
	return known && w.parked
}

// isParked reports whether some worker has ended after a checkpoint that the job goes on from.
// r.mu is held.
func (r *registry) isParked() bool {
	for _, e := range r.endings {
		if e.exit.Parked {
			return true
		}
	}
	return false
}

// onWorkerParked ends a worker of this host whose checkpoint is sealed, and tells the host that
// leads what has come of it. It runs on the goroutine of the worker's session, and waits for the
// engine's thread.
func (l *launcher) onWorkerParked(worker int, _ uint64, problem string) {
	// The step that the worker tells counts those of earlier runs too, which the wish does not. No
	// step is committed before this worker has told, so these are those of its checkpoint.
	l.reportWorker(&message{Park: &parkMessage{worker, l.agent.Status().Steps, problem}})
	if problem != "" {
		return
	}
	p := l.supervisor.processOf(worker)
	if p == nil { // it has ended already
		return
	}
	p.output.Mute()
	p.Signal(syscall.SIGTERM)
	l.group.Go("park", func(ctx context.Context) error {
		select {
		case <-p.Silent():
		case <-ctx.Done():
		case <-time.After(graceParked):
			p.Signal(syscall.SIGKILL)
		}
		return nil
	})
}

// reportPark tells people what has become of the wish to park the job, once, where the job is led.
// Any goroutine may call it.
func (l *launcher) reportPark() {
	p, is := l.registry.popParkOutcome()
	if !is || !l.registry.leads() {
		return
	}
	who := p.asked
	if who == "" {
		who = "somebody"
	}
	why := who + " asked for it; the checkpoint is sealed, and the job goes on there when it is " +
		"started again"
	if !p.done {
		why = fmt.Sprintf("%s asked for it, but training goes on: %s", who, p.problem)
	}
	s := l.agent.Status()
	l.onEvent(agent.Event{What: "park", Generation: s.Generation, Size: s.Size, Step: s.Steps,
		OptimizerSteps: s.OptimizerSteps, Because: why})
}

// graceManaged is how long a host waits, which a cluster manager asks to leave, until it asks the
// host that leads: mostly that is asked too, and parks the job.
const graceManaged = 5 * time.Second

// startLeaving does what this host has to do that was asked to leave, and does not wait: a
// goroutine of services does.
func (l *launcher) startLeaving(services *group.Group) {
	if l.cfg.Manager == "" || l.registry.leads() {
		l.tasks.add(l.askToLeave)
		return
	}
	services.Go("leave", func(ctx context.Context) error {
		select {
		case <-time.After(graceManaged):
			l.tasks.add(l.askToLeave)
		case <-ctx.Done():
		}
		return nil
	})
}

// parkForManager parks the job, which is led here, since a cluster manager takes its hosts away. A
// job that cannot be parked ends. It is a task, and waits for the engine's thread.
func (l *launcher) parkForManager() {
	switch err := l.askToPark(l.cfg.Manager); {
	case err == nil:
	case errors.Is(err, head.ErrNotHead):
		l.retryLater(l.askToLeave)
	default:
		l.console.Note(fmt.Sprintf("%s wants the hosts of the job, which cannot be parked: %v",
			l.cfg.Manager, err))
		if l.cfg.CannotLeave != nil {
			l.cfg.CannotLeave(err)
		}
	}
}

// askToPark asks the head to park the job on behalf of who, and registers that, or takes it back
// where the head refuses. It waits for the engine's thread, and for others who ask: what a refused
// wish has taken the place of would else be one that is refused meanwhile.
func (l *launcher) askToPark(who string) error {
	l.parkAsked.Lock()
	defer l.parkAsked.Unlock()
	refuse := l.registry.requestPark(who, l.agent.Status().Steps)
	err := l.agent.Park(who)
	if err != nil {
		refuse()
	}
	return err
}

// answerPark asks the head to park the job, and does not wait until that is done. It is an HTTP
// handler, as those in control.go: it runs on the goroutine of its request.
func (l *launcher) answerPark(w http.ResponseWriter, r *http.Request) {
	var ask api.Park
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	if by := l.registry.stoppedBy(); by != "" {
		sendError(w, http.StatusConflict,
			fmt.Errorf("%s has asked for the end of the job", by))
		return
	}
	if err := l.askToPark(ask.Who); err != nil {
		sendError(w, http.StatusConflict, err)
		return
	}
	l.answerJob(w, r)
}
