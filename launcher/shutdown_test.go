package launcher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// Of a job that is stopped those are named that should have ended well: no spare that failed
// meanwhile, nobody without whom the job went on before.
func TestOutcomeNamesMembers(t *testing.T) {
	failed := proc.Exit{Code: 3}
	r := newRegistry("here", 7)
	r.job, r.stopping, r.endings = &jobMessage{Spec: job.Spec{Name: "train"}}, 2, []ending{
		{worker: 0, exit: failed, survived: true},
		{worker: 1},
		{worker: 2},
		{worker: 3, exit: failed, survived: true},
		{worker: 4, exit: failed, survived: true},
		{worker: 5, exit: failed},
		{worker: 6, exit: failed},
	}
	r.shutdown.who, r.shutdown.members, r.shutdown.dismissed = "me@here", []int{1, 2, 3, 5},
		[]int{6}
	want := "job train was stopped by me@here: worker 3 exited with code 3, worker 5 exited " +
		"with code 3"
	if err := r.stoppedError(); err == nil || cmp.Diff(want, err.Error()) != "" {
		t.Errorf("%v, want %s", err, want)
	}
	r.shutdown.members, r.shutdown.dismissed = []int{1, 2}, []int{5, 6}
	if err := r.stoppedError(); err != nil {
		t.Error(err)
	}
}

// ended is the agent of a host that has ended. Status alone is there: other methods panic.
type ended struct{ hostAgent }

// Status says so.
func (ended) Status() agent.Status { return agent.Status{Ended: true} }

// A host that led the job, and whose agent has ended, waits for its own workers: it hears no more
// of those of other hosts, which it has not killed.
func TestAHostWithoutAnAgentWaitsForItsOwnWorkers(t *testing.T) {
	l := &launcher{agent: ended{}, registry: newRegistry("here", 2)}
	l.registry.setHost("here")
	now := make(chan time.Time)
	close(now)
	l.registry.register("there", &message{Started: &startedMessage{Worker: 1, PID: 8}})
	if !l.awaitAllEnded(now, nil) {
		t.Error("it waits for a worker of another host")
	}
	l.registry.register("here", &message{Started: &startedMessage{Worker: 0, PID: 7}})
	<-l.registry.changed
	if l.awaitAllEnded(now, nil) {
		t.Error("it does not wait for its own worker")
	}
}

// A host that the others went on without, and whose workers have ended, ends with an error at
// whatever moment that is looked at.
func TestLeavesWithItsError(t *testing.T) {
	for range 2000 {
		l, g := &launcher{registry: newRegistry("here", 0)}, group.New(t.Context())
		g.Go("leave", func(context.Context) error {
			l.leaveJob(errors.New("the others went on without it"))
			return nil
		})
		for done := false; !done; {
			var err error
			if done, err = l.registry.mayLeave(); done && err == nil {
				t.Fatal("it has left, and nothing was wrong")
			}
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// At the end nobody waits for a time that a host or a process might have needed, such as leaveWait.
func TestNobodyWaitsForATimeAtTheEnd(t *testing.T) {
	l := &launcher{registry: newRegistry("here", 0), reporter: newReporter(nil, nil),
		supervisor: newSupervisor(nil), group: group.New(t.Context())}
	l.group.Go("wait", func(ctx context.Context) error {
		<-ctx.Done() // or a time, in the launcher
		return nil
	})
	if err := l.awaitReaders(); err != nil {
		t.Error(err)
	}
}

// A host that was asked to leave has left a job that goes on, but not one that has ended before.
func TestHostThatLeavesAfterTheEnd(t *testing.T) {
	for _, ended := range []bool{false, true} {
		l := &launcher{agent: follower{}, registry: newRegistry("b", 0),
			reporter: newReporter(nil, nil), tasks: newTasks()}
		l.registry.setLeader("a", nil)
		if ended {
			l.onJobEnd(true, "")
		}
		l.onThisHostLeft("it was asked to stop", true)
		for _, task := range l.tasks.list {
			task()
		}
		if goesOn := l.registry.isDrained(); goesOn == ended {
			t.Errorf("of a job that has ended (%v) it says that it goes on: %v", ended, goesOn)
		}
	}
}
