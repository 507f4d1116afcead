package agent_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/internal/group"
)

// parkedJob is a job of workers in Go that is parked, and the runs that go on from there. The test
// sets folder.
type parkedJob struct {
	folder  string   // of checkpoints; "" = none are made
	answers []string // what workers have told the agent when the job was parked; "" = nothing
	step    uint64   // in which the last of them was parked

	mu    sync.Mutex    // guards what follows, while the job runs
	times map[int64]int // by sample: how often it was trained on in a committed step
	ends  []error       // of the loops
}

// parkAnswer is what a worker tells the agent when the job is to be parked.
type parkAnswer struct {
	step    uint64
	problem string // that keeps the worker from it; "" = none
}

// run trains on the data with so many workers, and asks for the job to be parked in a step; 0 = in
// none. A worker whose checkpoint is whole has its context end, as if it caught SIGTERM. It blocks
// until all loops have ended, and until the agent has heard of each worker that it is parked or why
// not, for which no worker waits.
func (p *parkedJob) run(t *testing.T, workers int, data client.Data, parkIn int) {
	f := newElasticJob(t, workers, data)
	signals := make([]context.CancelFunc, workers)
	heard := make(chan parkAnswer, workers)
	f.onEachPark(func(worker int, step uint64, problem string) {
		heard <- parkAnswer{step, problem}
		if problem == "" {
			signals[worker]()
		}
	})
	p.ends = nil
	var jobs []*client.Job
	var loops []context.Context
	for n := range workers {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		signals[n], loops = cancel, append(loops, ctx)
		jobs = append(jobs, joinWithToken(t, f.agent, n, fmt.Sprintf("token-%d", n)))
	}
	for n := range workers {
		f.group.Go(fmt.Sprintf("worker %d", n), func(context.Context) error {
			end, err := p.train(loops[n], f, jobs[n], parkIn)
			p.mu.Lock()
			p.ends = append(p.ends, end)
			p.mu.Unlock()
			f.agent.WorkerFinished(n, "exited with code 0")
			return err
		})
	}
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	for parkIn > 0 && len(p.answers) < workers {
		answer := <-heard
		p.answers, p.step = append(p.answers, answer.problem), answer.step
	}
}

// train is the program of a worker; end is why its loop ended before its time, nil where it did
// not.
func (p *parkedJob) train(ctx context.Context, f *elasticJob, j *client.Job,
	parkIn int) (end, err error) {
	tr, err := client.Train(j, f.data, client.StateOf("state", make([]float32, 9)))
	if err == nil && p.folder != "" {
		err = tr.Checkpoint(client.Checkpoint{Folder: p.folder, Every: time.Hour,
			Say: func(string) {}})
	}
	if err != nil {
		return nil, err
	}
	for tr.Next(ctx) {
		if parkIn > 0 && tr.Step() == parkIn && j.Rank() == 0 {
			if err := f.agent.Park("ada"); err != nil {
				return nil, err
			}
		}
		var mine []int64
		if tr.Weight() > 0 {
			mine = append(mine, tr.Samples()...)
		}
		if err := client.Commit(ctx, tr, make([]float32, 2)); err != nil {
			return nil, err
		}
		p.mu.Lock()
		for _, s := range mine {
			p.times[s]++
		}
		p.mu.Unlock()
	}
	return tr.Err(), nil
}

// Workers in Go that are parked make a checkpoint at the end of the step, and wait for their end:
// their loops do not end as if the data had. The job that is started again, on more workers, goes
// on with the next sample.
func TestParkedWorkersInGoGoOn(t *testing.T) {
	p := &parkedJob{folder: filepath.Join(t.TempDir(), "checkpoints"), times: map[int64]int{}}
	data := client.Data{Samples: 97, Batch: 10, Epochs: 3, Seed: 3}
	p.run(t, 2, data, 13)
	if len(p.answers) != 2 || p.answers[0] != "" || p.answers[1] != "" {
		t.Fatalf("workers say %q", p.answers)
	}
	for _, err := range p.ends {
		if !errors.Is(err, client.ErrParked) {
			t.Errorf("a loop ended with %v", err)
		}
	}
	steps, err := snapshot.Folder{Root: p.folder}.Sealed()
	if err != nil || len(steps) == 0 || steps[0].Step != p.step || p.step < 13 || p.step > 15 {
		t.Fatalf("sealed are %v, %v; the job was parked at step %d", steps, err, p.step)
	}
	p.run(t, 3, data, 0)
	for s := range int64(data.Samples) {
		if p.times[s] != data.Epochs {
			t.Errorf("sample %d was trained on %d times", s, p.times[s])
		}
	}
	if err := errors.Join(p.ends...); err != nil {
		t.Error(err)
	}
}

// Workers in Go that make no checkpoints say so at once, and train on.
func TestWorkersInGoThatCannotBeParked(t *testing.T) {
	p := &parkedJob{times: map[int64]int{}}
	data := client.Data{Samples: 97, Batch: 10, Epochs: 3, Seed: 3}
	p.run(t, 2, data, 13)
	if len(p.answers) != 2 || !strings.Contains(p.answers[0], "Trainer.Checkpoint") ||
		p.answers[0] != p.answers[1] {
		t.Errorf("workers say %q", p.answers)
	}
	if err := errors.Join(p.ends...); err != nil || p.times[0] != data.Epochs {
		t.Errorf("loops ended with %v, after %d epochs", err, p.times[0])
	}
}

// A worker in Go that waits for others, since one was lost and nobody comes in its place, is parked
// after the step that it waits in: no sample of that is lost.
func TestPausedWorkersInGoAreParked(t *testing.T) {
	paused, heard := make(chan uint64, 1), make(chan parkAnswer, 2)
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	a := startAgentOf(t, context.Background(), agent.Config{Size: 2, Min: 2,
		OnPark: func(_ int, step uint64, problem string) {
			heard <- parkAnswer{step, problem}
			signal()
		},
		Orders: agent.Orders{Start: func(agent.StartOrder) {}, End: func(bool, string) {},
			Event: func(e agent.Event) {
				if e.What == "pause" {
					paused <- e.Step
				}
			}}})
	folder := filepath.Join(t.TempDir(), "checkpoints")
	g := group.New(context.Background())
	for n := range 2 {
		j := joinWithToken(t, a, n, fmt.Sprintf("token-%d", n))
		g.Go(fmt.Sprintf("worker %d", n), func(context.Context) error {
			tr, err := client.Train(j, client.Data{Samples: 97, Batch: 10, Epochs: 3, Seed: 3},
				client.StateOf("state", make([]float32, 9)))
			if err == nil {
				err = tr.Checkpoint(client.Checkpoint{Folder: folder, Every: time.Hour,
					Say: func(string) {}})
			}
			for err == nil && tr.Next(ctx) {
				if n == 1 && tr.Step() == 5 {
					a.WorkerLost(n, "was killed by SIGKILL")
					return nil
				}
				err = client.Commit(ctx, tr, make([]float32, 2))
			}
			if err == nil && !errors.Is(tr.Err(), client.ErrParked) {
				err = fmt.Errorf("the loop ended with %w", tr.Err())
			}
			a.WorkerFinished(n, "exited with code 0")
			return err
		})
	}
	step := <-paused
	if err := a.Park("ada"); err != nil {
		t.Fatal(err)
	}
	answer := <-heard
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	sealed, err := snapshot.Folder{Root: folder}.Sealed()
	if err != nil || len(sealed) != 1 || sealed[0].Step != step+1 ||
		answer != (parkAnswer{step: step + 1}) {
		t.Errorf("paused behind step %d; parked as %+v; sealed are %v, %v", step, answer, sealed,
			err)
	}
}
