package agent_test

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
)

// A member is killed while it hands over the state: the joiner asks again and gets the state from
// those that are left.
func TestMemberIsLostWhileItHandsOver(t *testing.T) {
	header := func(j *client.Job, broadcasts int) error {
		length := []int64{0}
		if err := client.Broadcast(t.Context(), j, length, 0); err != nil || broadcasts == 1 {
			return err
		}
		return client.Broadcast(t.Context(), j, make([]byte, length[0]), 0)
	}
	for name, c := range map[string]struct {
		size, doomed int
		lastWords    func(j *client.Job) error
	}{
		"rank 0 before the header": {2, 0, func(*client.Job) error { return nil }},
		"rank 1 before the header": {2, 1, func(*client.Job) error { return nil }},
		"rank 1 within the header": {2, 1, func(j *client.Job) error {
			return header(j, 1)
		}},
		"rank 1 after rank 0 has given a part": {2, 1, func(j *client.Job) error {
			return header(j, 2)
		}},
		"rank 2 of 4 before its part": {4, 2, func(j *client.Job) error {
			return header(j, 2)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newElasticJob(t, c.size, client.Data{Samples: 300, Batch: 20, Epochs: 2, Seed: 3})
			f.ballast = 16 << 20
			f.handsOver = func(j *client.Job, number int) error {
				if number != c.doomed {
					return nil
				}
				if err := c.lastWords(j); err != nil {
					return err
				}
				return errDies
			}
			f.runAndGrow(c.size + 1)
			var stayed []int
			for number := range c.size + 1 {
				if number != c.doomed {
					stayed = append(stayed, number)
				}
			}
			f.awaitAndVerify(stayed...)
			joins, again := 0, 0
			for _, e := range f.events {
				if e.Generation > 1 {
					joins += len(e.Joined)
				}
				again += len(e.Again)
			}
			if joins != 2 || again != 1 || !f.endedOK || f.agent.Status().Want != c.size {
				t.Errorf("joined %d times, asked again %d times, wanted %d: %+v", joins, again,
					f.agent.Status().Want, f.events)
			}
		})
	}
}

// With the last member that had it the state is lost, and so is the job: the joiner is let go.
func TestLastMemberIsLostWhileItHandsOver(t *testing.T) {
	f := newElasticJob(t, 1, client.Data{Samples: 300, Batch: 20, Epochs: 2, Seed: 3})
	f.handsOver = func(*client.Job, int) error { return errDies }
	f.runAndGrow(3)
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	if !f.ended || f.endedOK {
		t.Errorf("ended %v, well %v", f.ended, f.endedOK)
	}
}

// runAndGrow runs all workers of a job, of which worker 0 asks for a larger size in step 3; that
// step ends when those who come ask to enter. It returns when all have joined.
func (f *elasticJob) runAndGrow(size int) {
	resized := make(chan struct{})
	for number := range f.size {
		f.runWorker(number, fmt.Sprintf("token-%d", number),
			func(f *elasticJob, number, step int) error {
				if number != 0 || step != 3 {
					return nil
				}
				if err := f.agent.Resize(size, "the test"); err != nil {
					return err
				}
				close(resized)
				awaitStatus(f.t, f.agent, func(s agent.Status) bool {
					return s.Entering >= size-f.size
				})
				return nil
			})
	}
	<-resized
	for range size - f.size {
		number := <-f.started
		token := f.agent.ExpectWorker(number, true)
		f.agent.WorkerStarted(number)
		f.runWorker(number, token, doNothing)
	}
}
