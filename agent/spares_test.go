package agent_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/client"
)

// Workers die again and again, each when a spare waits: it takes the place when the step ends, and
// every sample counts once. In the end a spare that waits is told that it is not needed.
func TestSparesTakeThePlacesOfLostWorkers(t *testing.T) {
	f := newElasticJobWithSpares(t, 3, 1, client.Data{Samples: 200, Batch: 10, Epochs: 3, Seed: 5})
	over := make(chan struct{})
	waits := func() bool { return len(f.agent.Status().Waiting) > 0 }
	does := func(f *elasticJob, number, step int) error {
		switch {
		case number == 0 && step == 59:
			for !waits() {
				runtime.Gosched()
			}
			close(over)
		case number > 0 && number < 4 && step == 10*number: // the third was a spare
			for !waits() {
				runtime.Gosched()
			}
			return errDies
		}
		return nil
	}
	for number := range 3 {
		f.runWorker(number, fmt.Sprintf("token-%d", number), does)
	}
	for running := true; running; {
		select {
		case number := <-f.started:
			token := f.agent.ExpectWorker(number, true)
			f.agent.WorkerStarted(number)
			f.runWorker(number, token, does)
		case <-over:
			running = false
		case <-f.group.Context().Done():
			running = false
		}
	}
	f.awaitAndVerify(0, 4, 5)
	var joined, lost []int
	for _, e := range f.events {
		lost = append(lost, e.Lost...)
		if e.Generation > 1 {
			joined = append(joined, e.Joined...)
		}
	}
	if !slices.Equal(lost, []int{1, 2, 3}) || !slices.Equal(joined, []int{3, 4, 5}) {
		t.Errorf("%v were lost and %v joined: %+v", lost, joined, f.events)
	}
	if !slices.Equal(f.free, []int{6}) {
		t.Errorf("the workers %v were not needed", f.free)
	}
}
