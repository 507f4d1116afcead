package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
)

// A result stays as it is until every rank that reads it has made the next call, however far the
// others are.
func TestSharedResultWaitsForItsReaders(t *testing.T) {
	const n, rounds = 40_000, 60
	ctx := context.Background()
	runOnHosts(t, 4, func(j *client.Job) error {
		x, err := client.Empty[int64](j, n)
		if err != nil {
			return err
		}
		total, err := client.Shared[int64](j, "total", n)
		if err != nil {
			return err
		}
		for round := range int64(rounds) {
			for i := range x {
				x[i] = round * int64(i+j.Rank())
			}
			if err := client.AllReduceInto(ctx, j, total, x, collective.Sum); err != nil {
				return err
			}
			for range int(round) * j.Rank() { // some are late to read
				runtime.Gosched()
			}
			for i, got := range total {
				if want := round * int64(4*i+6); got != want || x[i] != round*int64(i+j.Rank()) {
					return fmt.Errorf("rank %d, round %d: element %d of the result is %d, want "+
						"%d; the input is %d", j.Rank(), round, i, got, want, x[i])
				}
			}
		}
		return nil
	})
}

// Each group has results of its own, and parts of one can be the results of different calls.
func TestSharedResultsOfGroups(t *testing.T) {
	ctx := context.Background()
	runOnHosts(t, 4, func(j *client.Job) error {
		g, err := j.Split(j.Rank()%2, j.Rank()%2+2)
		if err != nil {
			return err
		}
		x := []int32{int32(j.Rank()), 1}
		ours, err := client.Shared[int32](g, "sum", 2)
		if err != nil {
			return err
		}
		all, err := client.Shared[int32](j, "sum", 6)
		if err != nil {
			return err
		}
		err = errors.Join(client.AllReduceInto(ctx, g, ours, x, collective.Sum),
			client.AllReduceInto(ctx, j, all[:2], x, collective.Sum),
			client.AllReduceInto(ctx, j, all[4:], x, collective.Max))
		if want := []int32{int32(2*(j.Rank()%2) + 2), 2}; !slices.Equal(ours, want) {
			return fmt.Errorf("the group of rank %d has %v, want %v: %w", j.Rank(), ours, want, err)
		}
		if want := []int32{6, 4, 0, 0, 3, 1}; !slices.Equal(all, want) {
			return fmt.Errorf("rank %d has %v, want %v: %w", j.Rank(), all, want, err)
		}
		return errors.Join(err, g.Free())
	})
}

// What cannot be is refused by name.
func TestSharedResultRefused(t *testing.T) {
	ctx := context.Background()
	a := startAgent(t, 3)
	jobs := []*client.Job{joinAs(t, a, 0), joinAs(t, a, 1), joinAs(t, a, 2)}
	runTogether(t, jobs, func(j *client.Job) error {
		x := make([]float32, 8)
		all, err := client.Shared[float32](j, "all", 8)
		if err != nil {
			return err
		}
		ours, err := client.Shared[float32](j, fmt.Sprint("of rank ", j.Rank()), 8)
		if err != nil {
			return err
		}
		pair, err := j.Split(j.Rank()) // no one else
		if err == nil && j.Rank() < 2 {
			pair, err = j.Split(0, 1)
		}
		if err != nil {
			return err
		}
		if err := client.Barrier(ctx, j); err != nil {
			return err
		}
		_, longer := client.Shared[float32](j, "all", 9)
		_, nameless := client.Shared[float32](j, "", 8)
		_, long := client.Shared[float32](j, strings.Repeat("x", 256), 8)
		_, empty := client.Shared[float32](j, "none", 0)
		for want, err := range map[string]error{
			"has 32 bytes on other ranks, and 36 here": longer,
			"a name of 0 bytes":                        nameless,
			"a name of 256 bytes":                      long,
			"0 elements":                               empty,
			"is read-only": client.AllReduce(ctx, j, all,
				collective.Sum),
			"only all_reduce and all_gather write": client.RecvFrom(ctx, j, all,
				(j.Rank()+1)%3),
			`has the shared result "all" too, and is not in group`: client.AllReduceInto(ctx, pair,
				all, x, collective.Sum),
			`into "of rank`: client.AllReduceInto(ctx, j,
				ours, x, collective.Sum),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("rank %d: %v, want an error with %q", j.Rank(), err, want)
			}
		}
		return nil
	})
}

// The memory goes with the last worker that has it, and that of a group with the group.
func TestSharedResultsAreFreed(t *testing.T) {
	ctx := context.Background()
	a := startAgent(t, 2)
	jobs := []*client.Job{joinAs(t, a, 0), joinAs(t, a, 1)}
	mapped := func(name string) bool {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(maps), "shoal-"+name+" ")
	}
	runTogether(t, jobs, func(j *client.Job) error {
		g, err := j.Split(0, 1)
		if err != nil {
			return err
		}
		total, err := client.Shared[float64](g, "total", 1000)
		if err != nil {
			return err
		}
		if err := client.AllReduceInto(ctx, g, total, make([]float64, 1000),
			collective.Sum); err != nil {
			return err
		}
		if !mapped("result-1") {
			return errors.New("the result of the group is nowhere")
		}
		if err := client.Barrier(ctx, j); err != nil {
			return err
		}
		if err := g.Free(); err != nil {
			return err
		}
		if _, err := client.Shared[float64](g, "total", 1000); err == nil {
			return errors.New("a group that was freed has a shared result")
		}
		return nil
	})
	for mapped("result-1") { // until both have been heard
		runtime.Gosched()
	}
}

// Workers are killed, join and are released between calls into a shared result. All see the same
// average in every step, and one that is released still has its last one when the others are steps
// ahead.
func TestSharedResultsOfAnElasticJob(t *testing.T) {
	f := newElasticJob(t, 3, client.Data{Samples: 900, Batch: 12, Epochs: 1, Seed: 5})
	f.averages = map[int][]float64{}
	does := func(f *elasticJob, number, step int) error {
		switch {
		case number == 1 && step == 4:
			return errDies
		case number == 0 && step == 8:
			return f.agent.Resize(4, "the test")
		case number == 0 && step == 40:
			return f.agent.Resize(2, "the test")
		}
		if number == 0 && step == 9 {
			awaitStatus(t, f.agent, func(s agent.Status) bool { return s.Entering >= 2 })
		}
		return nil
	}
	for number := range 3 {
		f.runWorker(number, fmt.Sprintf("token-%d", number), does)
	}
	for range 2 {
		number := <-f.started
		token := f.agent.ExpectWorker(number, true)
		f.agent.WorkerStarted(number)
		f.runWorker(number, token, does)
	}
	f.awaitAndVerify(0)
	if len(f.released) != 2 || f.steps[0] < 75 {
		t.Errorf("%d workers were released, and there were %d steps: %+v", len(f.released),
			f.steps[0], f.events)
	}
	for number, p := range f.finals {
		if !slices.Equal(p, f.finals[0]) && f.steps[number] == f.steps[0] {
			t.Errorf("worker %d ends with %v, worker 0 with %v", number, p, f.finals[0])
		}
	}
}

// averageMemory returns the memory into which a worker gets the average: a shared result, or g
// where the test has none. It runs on the worker's goroutine, and waits for the agent.
func (f *elasticJob) averageMemory(j *client.Job, g []float64) ([]float64, error) {
	if f.averages == nil {
		return g, nil
	}
	return client.Shared[float64](j, "average", len(g))
}

// checkAverage compares the average of a step with what other workers have seen, and returns an
// error if they differ. A worker that is released waits first until the others are three steps
// ahead. It runs on the worker's goroutine.
func (f *elasticJob) checkAverage(t *client.Trainer, average []float64) error {
	if f.averages == nil {
		return nil
	}
	ahead := func(steps int) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.averages[t.Step()+steps] != nil
	}
	for t.Released() && !ahead(3) {
		runtime.Gosched()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.averages[t.Step()] == nil {
		f.averages[t.Step()] = slices.Clone(average)
	}
	if want := f.averages[t.Step()]; !slices.Equal(average, want) {
		return fmt.Errorf("the average before step %d is %v, for another worker %v", t.Step(),
			average, want)
	}
	return nil
}

// checkSharedCollectives makes an all-reduce and an all-gather into shared results, the only
// collectives that can have one, and returns an error that names each wrong result. Every rank of j
// must call it, and it blocks until all have.
func checkSharedCollectives(ctx context.Context, j *client.Job) error {
	n, r := int64(j.Size()), int64(j.Rank())
	sums, err := client.Shared[int64](j, "sums", 2)
	if err != nil {
		return err
	}
	all, err := client.Shared[int64](j, "all", int(n))
	if err != nil {
		return err
	}
	x := []int64{r, 1}
	err = errors.Join(client.AllReduceInto(ctx, j, sums, x, collective.Sum),
		client.AllGather(ctx, j, all, x[:1]))
	if want := []int64{n * (n - 1) / 2, n}; !slices.Equal(sums, want) ||
		!slices.Equal(x, []int64{r, 1}) {
		err = errors.Join(err,
			fmt.Errorf("rank %d has %v, want %v; its input is %v", r, sums, want, x))
	}
	for i, got := range all {
		if got != int64(i) {
			err = errors.Join(err, fmt.Errorf("rank %d has gathered %v", r, all))
		}
	}
	return err
}
