package agent_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// Who is told of a change finds it in the status, and waits for nobody: here the engine's own
// thread asks. What a method has done is there when it returns.
func TestStatusIsNeverBehind(t *testing.T) {
	var a atomic.Pointer[agent.Agent]
	var changes atomic.Int64
	f := newElasticJob(t, 3, client.Data{Samples: 600, Batch: 20, Epochs: 2, Seed: 3})
	a.Store(f.agent)
	f.onEachEvent(func(e agent.Event) {
		s := a.Load().Status()
		if e.What == "generation" {
			changes.Add(1)
		}
		if s.Generation < e.Generation || s.Steps < e.Step ||
			s.Generation == e.Generation && s.Size != e.Size {
			t.Errorf("told %+v, and the status is %+v", e, s)
		}
	})
	does := func(f *elasticJob, number, step int) error {
		s := f.agent.Status()
		if s.Steps < uint64(step) {
			t.Errorf("worker %d is in step %d, and the status is of %d", number, step, s.Steps)
		}
		switch {
		case number == 2 && step == 5:
			return errDies
		case number == 0 && step > 8:
			if err := f.agent.Resize(2+step%2, "the test"); err != nil {
				return err
			}
			if want := f.agent.Status().Want; want != 2+step%2 {
				t.Errorf("asked for %d workers, and the status says %d", 2+step%2, want)
			}
		}
		return nil
	}
	for number := range 3 {
		f.runWorker(number, fmt.Sprintf("token-%d", number), does)
	}
	starts := group.New(t.Context())
	starts.Go("starts", func(ctx context.Context) error {
		for {
			select {
			case number := <-f.started:
				f.agent.WorkerLost(number, "could not be started")
			case <-ctx.Done():
				return nil
			}
		}
	})
	err := f.group.Wait()
	starts.Stop(nil)
	if err := errors.Join(err, starts.Wait()); err != nil {
		t.Error(err)
	}
	if changes.Load() < 2 {
		t.Errorf("%d generations", changes.Load())
	}
}

// How fast a training is stands in the status, for which nobody waits for the engine's thread. With
// another generation it is not known until it is found anew.
func TestRatesAreInTheStatus(t *testing.T) {
	var a atomic.Pointer[agent.Agent]
	var stale atomic.Int64
	f := newElasticJob(t, 2, client.Data{Samples: 400, Batch: 20, Epochs: 1, Seed: 3})
	a.Store(f.agent)
	f.onEachEvent(func(e agent.Event) { // on the engine's thread
		if s := a.Load().Status(); e.What == "generation" && s.Pace.Steps > 0 {
			stale.Add(1)
		}
	})
	does := func(f *elasticJob, number, step int) error {
		switch {
		case number == 0 && step == 6:
			f.agent.Waits() // which looks at the job as it is done four times a second
			if s := f.agent.Status(); s.Pace.Steps < 3 || !(s.Pace.Median > 0) {
				t.Errorf("after 6 steps the pace is %+v", s.Pace)
			}
		case number == 1 && step == 8:
			return errDies
		}
		return nil
	}
	for number := range 2 {
		f.runWorker(number, fmt.Sprintf("token-%d", number), does)
	}
	if err := f.group.Wait(); err != nil {
		t.Error(err)
	}
	if n := stale.Load(); n > 0 {
		t.Errorf("%d generations began with the pace of the one before", n)
	}
}

// The size that the setting of the job has is in the status when the step has ended that brings it,
// though the members are as they were.
func TestStatusOfTheWantedSize(t *testing.T) {
	a := startAgent(t, 1)
	member := joinRaw(t, a, 0)
	step := validCall()
	step.Step = true
	for want := uint32(1); want <= 3; want++ {
		if want > 1 { // the job has begun
			if err := a.Resize(int(want), "the test"); err != nil {
				t.Fatal(err)
			}
		}
		member.submit(step)
		if status, text := member.wait(); status != arena.Done {
			t.Fatalf("a step: status %d, %q", status, text)
		}
		if got := a.Status().Setting.Size; got != want {
			t.Errorf("%d members are wanted, and the status says %d", want, got)
		}
	}
}

// The launcher that hears of the loss of the head finds that its host is stuck.
func TestStatusOfALoss(t *testing.T) {
	c := startHosts(t, 2, []int{1, 1}, agent.Orders{})
	for range 2 {
		s := <-c.started
		joinWithToken(t, s.agent, s.number, s.token)
	}
	b := c.agents["b"]
	if _, err := b.Await(t.Context(), func(s agent.Status) bool {
		return s.Generation > 0
	}); err != nil {
		t.Fatal(err)
	}
	stuck := make(chan bool, 1)
	c.mu.Lock()
	c.onGone = func(name, host string) {
		if name == "b" && host == "a" {
			stuck <- b.Status().Stuck
		}
	}
	c.mu.Unlock()
	c.ends["a"]()
	if !<-stuck {
		t.Error("b is told that the head is gone before it knows that it is stuck")
	}
}

// Await returns what fits when it comes, and the newest status when nobody waits any more.
func TestAwaitStatus(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := startAgentUntil(t, ctx, 1)
	late, stop := context.WithTimeout(t.Context(), time.Microsecond)
	defer stop()
	if s, err := a.Await(late, func(s agent.Status) bool { return s.Ended }); err == nil ||
		s.Want != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	g := group.New(t.Context())
	g.Go("wait", func(ctx context.Context) error {
		if s, err := a.Await(ctx, func(s agent.Status) bool {
			return s.Generation == 1
		}); err != nil || s.Size != 1 {
			t.Errorf("%+v, %v", s, err)
		}
		s, err := a.Await(ctx, func(s agent.Status) bool { return s.Ended })
		if s.Want != 0 {
			t.Errorf("%+v", s)
		}
		return err
	})
	joinAs(t, a, 0)
	if _, err := a.Await(t.Context(), func(s agent.Status) bool {
		return s.Generation == 1
	}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
