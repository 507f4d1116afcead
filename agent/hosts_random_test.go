package agent_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/fabric"
)

// Hosts are killed one after another, at any moment and whoever leads, and others join and get
// workers: the job loses no step. Two hosts are left at the end, for of two the head alone can go
// on.
func TestRandomHostLosses(t *testing.T) {
	for trial := range 6 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			loseHosts(t, rand.New(rand.NewPCG(seed, uint64(trial))), seed)
		})
	}
}

// doomed is a job whose hosts are killed. Only the test's goroutine calls its methods, except
// awaitTurn, and touches the fields above pace.
type doomed struct {
	*elasticJob
	*testHosts
	rng  *rand.Rand
	live []string                      // hosts that are not killed
	dead map[*agent.Agent]*atomic.Bool // by agent: whether its host was killed
	last uint64                        // the step at which the last host was killed

	pace  sync.Mutex // guards horizon
	mayGo *sync.Cond // on pace: signalled when horizon changes
	// horizon is the last step that workers make, so that the job is not over before all have been
	// killed.
	horizon uint64
}

// ahead is how many steps the job may make until the next host is killed.
const ahead = 30

// loseHosts runs a job on random hosts, kills all but two of them at random moments, and checks
// what is left.
func loseHosts(t *testing.T, rng *rand.Rand, seed uint64) {
	slots := make([]int, 3+rng.IntN(3))
	workers := 0
	for i := range slots {
		slots[i] = 1 + rng.IntN(2)
		workers += slots[i]
	}
	f, c := startElasticJobOnHosts(t, workers, slots,
		client.Data{Samples: 600, Batch: 10, Epochs: 2, Seed: seed})
	d := &doomed{elasticJob: f, testHosts: c, rng: rng, dead: map[*agent.Agent]*atomic.Bool{},
		horizon: ahead}
	d.mayGo = sync.NewCond(&d.pace)
	for i := range slots {
		d.live = append(d.live, string(rune('a'+i)))
		d.dead[c.agents[d.live[i]]] = &atomic.Bool{}
	}
	for range workers {
		d.startTraining(<-c.started)
	}
	d.awaitAllKnow(func(s agent.Status) bool {
		return s.Size == workers && len(s.Hosts) == len(slots)
	})
	kills := len(slots) - 2
	joiner := rng.IntN(2) == 0
	for range kills {
		d.awaitSteps(uint64(rng.IntN(8)))
		if joiner {
			joiner = false
			d.growByHost()
		}
		d.killHost()
	}
	d.allowStepsTo(math.MaxUint64)
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	d.verify(kills)
}

// startTraining lets a worker join, and train on a goroutine until its host is killed.
func (d *doomed) startTraining(s startOrder) {
	dead := d.dead[s.agent]
	j := joinWithToken(d.elasticJob.t, s.agent, s.number, s.token)
	d.group.Go(fmt.Sprintf("worker %d", s.number), func(ctx context.Context) error {
		err := d.train(ctx, j, s.number, d.awaitTurn)
		if dead.Load() {
			d.elasticJob.mu.Lock()
			defer d.elasticJob.mu.Unlock()
			delete(d.finals, s.number) // it did not come to its end
			return nil
		}
		s.agent.WorkerFinished(s.number, "exited with code 0")
		return err
	})
}

// awaitTurn is the script of all workers, on their goroutines: it blocks until the step may be
// made.
func (d *doomed) awaitTurn(_ *elasticJob, _, step int) error {
	d.pace.Lock()
	defer d.pace.Unlock()
	for uint64(step) > d.horizon {
		d.mayGo.Wait()
	}
	return nil
}

// allowStepsTo lets workers make all steps up to one.
func (d *doomed) allowStepsTo(step uint64) {
	d.pace.Lock()
	defer d.pace.Unlock()
	d.horizon = step
	d.mayGo.Broadcast()
}

// awaitSteps waits until the job, led by whomever, has committed some more steps since the last
// loss.
func (d *doomed) awaitSteps(more uint64) {
	for ; d.awaitLeader().Status().Steps < d.last+more; runtime.Gosched() {
	}
}

// awaitLeader waits until a living agent leads, and returns it.
func (d *doomed) awaitLeader() *agent.Agent {
	for ; ; runtime.Gosched() {
		for _, name := range d.live {
			if a := d.agents[name]; a.Status().Head == name {
				return a
			}
		}
	}
}

// killHost kills a random host, and waits until the others are agreed that it is gone.
func (d *doomed) killHost() {
	i := d.rng.IntN(len(d.live))
	name := d.live[i]
	d.live = slices.Delete(d.live, i, i+1)
	a := d.agents[name]
	d.last = a.Status().Steps
	d.dead[a].Store(true)
	d.hub.Kill(fabric.Host(name))
	d.ends[name]()
	d.allowStepsTo(d.last + ahead)
	d.awaitAllKnow(func(s agent.Status) bool { return !slices.Contains(s.HostNames(), name) })
}

// awaitAllKnow waits until the newest Status of every live agent fits. It does not suffice to ask
// the head: until others know what it has decided, it is the only one that can go on with it, and
// no quorum is left when it is killed.
func (d *doomed) awaitAllKnow(fits func(agent.Status) bool) {
	differs := func(name string) bool { return !fits(d.agents[name].Status()) }
	for slices.ContainsFunc(d.live, differs) {
		runtime.Gosched()
	}
}

// growByHost adds host z, and two workers on it, unless the job refuses them.
func (d *doomed) growByHost() {
	d.addHost("z", 2)
	d.live = append(d.live, "z")
	d.dead[d.agents["z"]] = &atomic.Bool{}
	a := d.awaitLeader()
	if a.Resize(a.Status().Size+2, "the test") != nil {
		return
	}
	for range 2 {
		d.startTraining(<-d.testHosts.started)
	}
}

// verify fails the test if a sample counted twice, if more samples are missing than those of one
// step for each of so many kills, or if workers end with different parameters. All workers have
// ended.
func (d *doomed) verify(kills int) {
	d.elasticJob.mu.Lock()
	defer d.elasticJob.mu.Unlock()
	unseen := 0
	for e := range d.data.Epochs {
		for s := range d.data.Samples {
			switch n := d.ledger[[2]int{e, s}]; {
			case n > 1:
				d.elasticJob.t.Fatalf("sample %d of epoch %d has counted %d times", s, e, n)
			case n == 0:
				unseen++
			}
		}
	}
	if unseen > kills*d.data.Batch {
		d.elasticJob.t.Errorf("%d samples have not counted; %d hosts were killed", unseen, kills)
	}
	var one []float64
	for number, final := range d.finals {
		if slices.Contains(d.free, number) {
			continue // the job went on without it
		}
		if one == nil {
			one = final
		}
		if !slices.Equal(one, final) {
			d.elasticJob.t.Errorf("worker %d ends with %v, another one with %v", number, final, one)
		}
	}
	if one == nil {
		d.elasticJob.t.Error("no worker has finished")
	}
}
