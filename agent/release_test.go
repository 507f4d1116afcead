package agent_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
)

// Whoever asks and whenever: all members end at the same step with the same parameters, and no
// sample has counted twice.
func TestReleaseEndsAllMembersAtOneStep(t *testing.T) {
	f := newElasticJob(t, 4, client.Data{Samples: 100, Batch: 8, Seed: 7})
	for number := range 4 {
		f.runWorker(number, fmt.Sprintf("token-%d", number),
			func(f *elasticJob, number, step int) error {
				switch {
				case number == 1 && step == 3:
					return errDies
				case number == 2 && step == 30 &&
					!f.agent.ReleaseWorkers("the test asked for the end"):
					return fmt.Errorf("this job trains in steps, but is not released")
				}
				return nil
			})
	}
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	for sample, n := range f.ledger {
		if n != 1 {
			t.Errorf("sample %v has counted %d times", sample, n)
		}
	}
	for _, number := range []int{2, 3} {
		if f.steps[number] != f.steps[0] || f.finals[number] == nil ||
			!slices.Equal(f.finals[number], f.finals[0]) {
			t.Errorf("worker %d ends at step %d with %v, worker 0 at step %d with %v", number,
				f.steps[number], f.finals[number], f.steps[0], f.finals[0])
		}
	}
	last := f.events[len(f.events)-1]
	if last.What != "stop" || last.Size != 3 || int(last.Step) != f.steps[0] ||
		last.Because != "the test asked for the end" {
		t.Errorf("the last event is %+v, worker 0 ends at step %d", last, f.steps[0])
	}
}

// A worker that comes too late sees its loop end before it begins.
func TestReleaseTurnsLateWorkersAway(t *testing.T) {
	f := newElasticJob(t, 1, client.Data{Samples: 100, Batch: 8, Seed: 7})
	late := make(chan struct{})
	f.runWorker(0, "token-0", func(f *elasticJob, number, step int) error {
		if step != 3 {
			return nil
		}
		if err := f.agent.Resize(2, "the test"); err != nil {
			return err
		}
		if !f.agent.ReleaseWorkers("the test") {
			return fmt.Errorf("not released")
		}
		close(late)
		return nil
	})
	<-late
	number := <-f.started
	token := f.agent.ExpectWorker(number, true)
	f.agent.WorkerStarted(number)
	f.runWorker(number, token, func(*elasticJob, int, int) error {
		return fmt.Errorf("a worker trains in a job that has ended")
	})
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	if f.steps[0] != 4 {
		t.Errorf("worker 0 ends at step %d", f.steps[0])
	}
	if slices.Sort(f.released); !slices.Equal(f.released, []int{0, 1}) {
		t.Errorf("the workers go on as ranks %d behind their loops", f.released)
	}
}

// A job without steps cannot release its workers, and says so.
func TestReleaseOfAJobWithoutSteps(t *testing.T) {
	agent := startAgentWithOrders(t, context.Background(), 2, agent.Orders{})
	if agent.ReleaseWorkers("the test") {
		t.Error("a job whose workers call plain collectives has no moment to release them")
	}
}
