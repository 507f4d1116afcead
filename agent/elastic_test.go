package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/internal/group"
)

// elasticJob is a job of the elastic tests: its workers train a sum, die and join as a script says.
// The test sets the fields down to handsOver before the first worker runs, and reads those that mu
// guards when all workers have ended.
type elasticJob struct {
	t     *testing.T
	size  int          // workers that the job begins with
	agent *agent.Agent // of the host on which the job begins
	data  client.Data
	group *group.Group // a goroutine for each worker

	ballast int // bytes of state beside the parameters
	// averages has the average gradient of each step, which comes in a shared result; nil = it
	// comes in place of the gradient.
	averages map[int][]float64
	folder   string // folder of checkpoints; "" = none are made
	// handsOver runs when a worker is about to give a joiner the state; nil = nothing runs.
	handsOver func(j *client.Job, number int) error

	started chan int // numbers of workers that the membership ordered; nil on several hosts

	mu       sync.Mutex        // guards what follows, and averages
	ledger   map[[2]int]int    // by epoch and sample: how often it has counted
	finals   map[int][]float64 // by worker: the parameters with which it has ended
	steps    map[int]int       // by worker: the step in which it has ended
	events   []agent.Event
	onEvent  func(e agent.Event) // onEachEvent sets it; nil = nobody is told
	onPark   parkHeard           // onEachPark sets it; nil = nobody is told
	released []int               // ranks of workers that were released
	free     []int               // numbers of these
	ended    bool                // the job is over
	endedOK  bool                // and has ended well
}

// parkHeard is told what a worker says when the job is to be parked: in which step, and the problem
// that keeps it from that; "" = none.
type parkHeard func(worker int, step uint64, problem string)

// Errors with which a script has its worker die: alone, or with its host, which the script has
// killed.
var (
	errDies     = errors.New("this worker dies here")
	errHostDies = errors.New("the host of this worker dies here")
)

// script runs in a step of a worker, on the worker's goroutine, before the worker gives its
// gradient: it may block, and returns nil, errDies or errHostDies; any other error fails the test.
type script func(f *elasticJob, number, step int) error

// newElasticJob starts an agent of a job without spares, which ends with the test; the test starts
// the workers by runWorker, also those that come in started.
func newElasticJob(t *testing.T, size int, data client.Data) *elasticJob {
	return newElasticJobWithSpares(t, size, 0, data)
}

// newElasticJobWithSpares is newElasticJob with spares. The agent ends with the test.
func newElasticJobWithSpares(t *testing.T, size, spares int, data client.Data) *elasticJob {
	f := &elasticJob{t: t, size: size, data: data, group: group.New(context.Background()),
		ledger: map[[2]int]int{}, finals: map[int][]float64{}, steps: map[int]int{},
		started: make(chan int, 100)}
	f.agent = startAgentOf(t, context.Background(),
		agent.Config{Size: size, Spares: spares, OnPark: f.tellPark, Orders: agent.Orders{
			Start: func(o agent.StartOrder) {
				for i := range o.Count {
					f.started <- o.First + i
				}
			},
			End: func(ok bool, _ string) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.ended, f.endedOK = true, ok
			},
			Event: f.takeEvent,
		}})
	return f
}

// takeEvent keeps an event, and tells it to who wants each. It is for agent.Orders.
func (f *elasticJob) takeEvent(e agent.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
	if f.onEvent != nil {
		f.onEvent(e)
	}
}

// onEachEvent has a function called with each event from now on, on the engine's thread with mu
// held.
func (f *elasticJob) onEachEvent(tell func(e agent.Event)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onEvent = tell
}

// onEachPark has a function called from now on, with mu not held, with what workers say when the
// job is to be parked.
func (f *elasticJob) onEachPark(tell parkHeard) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onPark = tell
}

// tellPark tells what a worker says to who has called onEachPark. It is for agent.Config.
func (f *elasticJob) tellPark(worker int, step uint64, problem string) {
	f.mu.Lock()
	tell := f.onPark
	f.mu.Unlock()
	if tell != nil {
		tell(worker, step, problem)
	}
}

// runWorker lets a worker join, and train on a goroutine of f.group. Only the test's goroutine may
// call it, as joinAs.
func (f *elasticJob) runWorker(number int, token string, does script) {
	f.runWorkerAt(f.agent, number, token, does)
}

// runWorkerAt is runWorker with the agent of any host. When the worker ends, or dies, the agent is
// told.
func (f *elasticJob) runWorkerAt(at *agent.Agent, number int, token string, does script) {
	j := joinWithToken(f.t, at, number, token)
	f.group.Go(fmt.Sprintf("worker %d", number), func(ctx context.Context) error {
		err := f.train(ctx, j, number, does)
		if errors.Is(err, errHostDies) {
			return nil // the head hears it from the link
		}
		if errors.Is(err, errDies) {
			at.WorkerLost(number, "was killed by SIGKILL")
			return nil
		}
		at.WorkerFinished(number, "exited with code 0")
		return err
	})
}

// train is the training of a worker, on its goroutine: it does in every step what the script says,
// and records which samples counted and with which parameters it ends. It returns the script's
// error.
func (f *elasticJob) train(ctx context.Context, j *client.Job, number int, does script) error {
	p, err := client.Empty[float64](j, 8)
	if err != nil {
		return err
	}
	velocity := make([]float64, 1000) // foreign memory, so that the state has items of both kinds
	ballast := make([]byte, f.ballast)
	if number < f.size {
		for i := range ballast {
			ballast[i] = byte(i >> 12)
		}
	}
	t, err := client.Train(j, f.data, client.StateOf("p", p), client.StateOf("velocity", velocity),
		client.StateOf("ballast", ballast))
	if err != nil {
		return err
	}
	if f.folder != "" {
		if err := t.Checkpoint(
			client.Checkpoint{Folder: f.folder, Steps: 2, Say: func(line string) {
				f.t.Log(line)
			}}); err != nil {
			return err
		}
	}
	g := make([]float64, len(p))
	average, err := f.averageMemory(j, g)
	if err != nil {
		return err
	}
	for t.Next(ctx) {
		for i := range g {
			g[i] = 0
			for _, s := range t.Samples() {
				g[i] += float64(s%97) * float64(i+1) / max(t.Weight(), 1)
			}
		}
		if err := does(f, number, t.Step()); err != nil {
			return err
		}
		count, size := t.Weight() > 0, j.Size()
		epoch, samples := t.Epoch(), slices.Clone(t.Samples())
		if err := client.CommitInto(ctx, t, average, g); err != nil {
			return err
		}
		if err := f.checkAverage(t, average); err != nil {
			return err
		}
		for i := range p {
			velocity[i] = 0.5*velocity[i] + average[i]
			p[i] -= 0.01 * velocity[i]
		}
		if count {
			f.addCounted(epoch, samples)
		}
		if grown := j.Size() > size; grown && f.handsOver != nil {
			if err := f.handsOver(j, number); err != nil {
				return err
			}
		}
	}
	for i, b := range ballast {
		if b != byte(i>>12) {
			return fmt.Errorf("byte %d of the state is %d on worker %d", i, b, number)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finals[number], f.steps[number] = slices.Clone(p), t.Step()
	if t.Released() {
		f.released, f.free = append(f.released, j.Rank()), append(f.free, number)
	}
	return errors.Join(t.Err(), j.Close())
}

// addCounted records that samples of an epoch counted. Any goroutine may call it.
func (f *elasticJob) addCounted(epoch int, samples []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range samples {
		f.ledger[[2]int{epoch, int(s)}]++
	}
}

// awaitAndVerify waits for all workers, and fails the test unless every sample counted once an
// epoch, and the workers that stayed to the end, given by number, have the same parameters.
func (f *elasticJob) awaitAndVerify(stayed ...int) {
	f.t.Helper()
	if err := f.group.Wait(); err != nil {
		f.t.Fatal(err)
	}
	for e := range f.data.Epochs {
		for s := range f.data.Samples {
			if n := f.ledger[[2]int{e, s}]; n != 1 {
				f.t.Fatalf("sample %d of epoch %d has counted %d times", s, e, n)
			}
		}
	}
	for _, number := range stayed {
		if !slices.Equal(f.finals[number], f.finals[stayed[0]]) || f.finals[number] == nil {
			f.t.Errorf("worker %d ends with %v, worker %d with %v", number, f.finals[number],
				stayed[0],
				f.finals[stayed[0]])
		}
	}
}

// doNothing is the script of a worker that trains to the end: it returns nil.
func doNothing(*elasticJob, int, int) error { return nil }

// Workers die in the middle of a step, rank 0 among them: the others go on, and lose no sample.
func TestTrainingGoesOnWithoutALostWorker(t *testing.T) {
	f := newElasticJob(t, 4, client.Data{Samples: 103, Batch: 16, Epochs: 3, Seed: 5})
	for number := range 4 {
		f.runWorker(number, fmt.Sprintf("token-%d", number),
			func(_ *elasticJob, number, step int) error {
				if number == 2 && step == 3 || number == 0 && step == 9 {
					return errDies
				}
				return nil
			})
	}
	f.awaitAndVerify(1, 3)
	if n := len(f.events); f.events[n-1].Size >= 2 {
		t.Errorf("the last of %d generations has %d workers", n, f.events[n-1].Size)
	}
}

// A worker is lost before all have joined: the others joined as ranks of the size that was to be,
// and hear of it with their first step.
func TestALossBeforeTheFirstStep(t *testing.T) {
	f := newElasticJob(t, 4, client.Data{Samples: 50, Batch: 7, Epochs: 2, Seed: 2})
	f.runWorker(1, "token-1", func(*elasticJob, int, int) error { return errDies })
	awaitStatus(t, f.agent, func(s agent.Status) bool { return s.Want != 4 })
	for _, number := range []int{0, 2, 3} {
		f.runWorker(number, fmt.Sprintf("token-%d", number), doNothing)
	}
	f.awaitAndVerify(0, 2, 3)
}

// One worker is left of five that die in the same step, and trains to the end.
func TestAllButOneAreLost(t *testing.T) {
	f := newElasticJob(t, 5, client.Data{Samples: 64, Batch: 10, Epochs: 2, Seed: 1})
	for number := range 5 {
		f.runWorker(number, fmt.Sprintf("token-%d", number),
			func(_ *elasticJob, number, step int) error {
				if number != 4 && step == 4 {
					return errDies
				}
				return nil
			})
	}
	f.awaitAndVerify(4)
}

// A job is made larger and smaller while it trains, and every sample counts once.
func TestWorkersJoinAndLeaveOnRequest(t *testing.T) {
	f := newElasticJob(t, 2, client.Data{Samples: 500, Batch: 20, Epochs: 2, Seed: 3})
	resized := make(chan struct{})
	does := func(f *elasticJob, number, step int) error {
		if number != 0 {
			return nil
		}
		switch step {
		case 3:
			if err := f.agent.Resize(4, "the test"); err != nil {
				return err
			}
			close(resized)
			// or the data may end before they are there
			awaitStatus(t, f.agent, func(s agent.Status) bool { return s.Entering >= 2 })
		case 30:
			return f.agent.Resize(1, "the test")
		}
		return nil
	}
	f.runWorker(0, "token-0", does)
	f.runWorker(1, "token-1", does)
	<-resized
	for range 2 {
		number := <-f.started
		token := f.agent.ExpectWorker(number, true)
		f.agent.WorkerStarted(number)
		f.runWorker(number, token, doNothing)
	}
	f.awaitAndVerify(0)
	joined, released := 0, 0
	for _, e := range f.events {
		if e.Generation > 1 {
			joined += len(e.Joined)
		}
		released += len(e.Released)
	}
	if joined == 0 || released == 0 {
		t.Errorf("%d workers joined and %d were released: %+v", joined, released, f.events)
	}
	if len(f.released) != released || slices.Contains(f.released, 0) {
		t.Errorf("%d workers were released, and these ranks know of it: %v", released, f.released)
	}
}

// Workers die in random steps, and every sample counts once; the name of each subtest has its seed.
func TestRandomElasticJobs(t *testing.T) {
	for trial := range 20 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(trial)))
			size := 2 + rng.IntN(4)
			f := newElasticJob(t, size,
				client.Data{Samples: 50 + rng.IntN(200), Batch: 1 + rng.IntN(24), Epochs: 2,
					Seed: seed})
			deaths := map[int]int{}
			for number := 1; number < size; number++ { // worker 0 lives
				if rng.IntN(2) == 0 {
					deaths[number] = rng.IntN(20)
				}
			}
			stayed := []int{0}
			for number := range size {
				if _, dies := deaths[number]; !dies && number > 0 {
					stayed = append(stayed, number)
				}
				f.runWorker(number, fmt.Sprintf("token-%d", number),
					func(_ *elasticJob, number, step int) error {
						if at, dies := deaths[number]; dies && step >= at {
							return errDies
						}
						return nil
					})
			}
			f.awaitAndVerify(stayed...)
		})
	}
}
