package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/mem"
	"github.com/shoal-ml/shoal/internal/group"
)

// testHosts is a job on several hosts of one process: agents, and a network without sockets. Its
// workers are goroutines of the test. startHosts sets the fields down to head and started; the test
// may read agents and ends without mu while no host is added. An agent that does not start ends the
// test.
type testHosts struct {
	t       *testing.T
	hub     *mem.Hub
	over    func(fabric.Network) fabric.Network // what an agent gets in place of its network
	workers int                                 // workers that the job begins with
	orders  agent.Orders
	starts  *group.Group                  // a goroutine for each order to start workers
	head    *agent.Agent                  // agent of the host on which the job begins
	mu      sync.Mutex                    // guards what follows, but for the channel started
	agents  map[string]*agent.Agent       // by host
	ends    map[string]context.CancelFunc // by host: ends its agent
	// gone lists what launchers have heard of hosts that are gone, with the host of the launcher.
	gone []string
	// onGone is called, with mu held, with the hosts of a launcher and of who is gone; nil = not.
	onGone  func(name, host string)
	started chan startOrder // workers that the membership ordered
}

// startOrder is a worker that is to be started.
type startOrder struct {
	number int
	agent  *agent.Agent
	token  string
}

// startHosts starts a job of so many workers on hosts a, b, … with these slots, which begins on the
// first. The agents end with the test. The test joins for the workers that come in started.
func startHosts(t *testing.T, workers int, slots []int, orders agent.Orders) *testHosts {
	t.Helper()
	return startHostsOn(t, func(m fabric.Network) fabric.Network {
		return m
	}, workers, slots, orders)
}

// startHostsOn is startHosts with networks that over puts in place of those of the hub; nil = the
// first host has none, and is alone.
func startHostsOn(t *testing.T, over func(fabric.Network) fabric.Network, workers int,
	slots []int,
	orders agent.Orders) *testHosts {
	t.Helper()
	c := &testHosts{t: t, hub: mem.NewHub(), over: over, workers: workers, orders: orders,
		starts: group.New(context.Background()), agents: map[string]*agent.Agent{},
		ends: map[string]context.CancelFunc{}, started: make(chan startOrder, 1000)}
	t.Cleanup(func() {
		if err := c.starts.Wait(); err != nil {
			t.Error(err)
		}
	})
	c.head = c.startAgent("a", agent.Config{Size: workers, Slots: slots[0]})
	for i, n := range slots[1:] {
		c.addHost(string(rune('b'+i)), n)
	}
	return c
}

// addHost starts the agent of a host that joins the job, until the test ends.
func (c *testHosts) addHost(name string, slots int) {
	c.startAgent(name, agent.Config{Slots: slots})
}

// orderStart tells an agent that a worker runs, and puts what the worker needs to join into
// c.started. It waits for the engine's thread, so it runs on a goroutine of c.starts.
func (c *testHosts) orderStart(host string, number int) {
	c.mu.Lock()
	a := c.agents[host]
	c.mu.Unlock()
	token := a.ExpectWorker(number, number >= c.workers)
	a.WorkerStarted(number)
	c.started <- startOrder{number, a, token}
}

// startAgent starts the agent of a host, which ends with the test. It sets the job, the socket, the
// log, the network and the orders of cfg, the latter to c.orders but for Start and Gone.
func (c *testHosts) startAgent(name string, cfg agent.Config) *agent.Agent {
	c.t.Helper()
	dir, err := os.MkdirTemp("", "shoal")
	if err != nil {
		c.t.Fatal(err)
	}
	cfg.Job, cfg.Socket, cfg.Log = "test", filepath.Join(dir, "s"), slog.New(slog.DiscardHandler)
	if c.over != nil {
		cfg.Link = func(h fabric.Handler) (fabric.Network, error) {
			return c.over(c.hub.Add(fabric.Host(name), h)), nil
		}
	}
	cfg.Orders = c.orders
	cfg.Orders.Start = func(o agent.StartOrder) {
		c.starts.Go("start", func(context.Context) error {
			for i := range o.Count {
				c.orderStart(name, o.First+i)
			}
			return nil
		})
	}
	cfg.Orders.Gone = func(host, how string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gone = append(c.gone, fmt.Sprintf("%s: %s %s", name, host, how))
		if c.onGone != nil {
			c.onGone(name, host)
		}
	}
	a, err := agent.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.mu.Lock()
	c.agents[name], c.ends[name] = a, cancel
	c.mu.Unlock()
	g := group.New(context.Background())
	g.Go("agent "+name, func(context.Context) error { return a.Run(ctx) })
	c.t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			c.t.Error(fmt.Errorf("agent %s: %w", name, err))
		}
		os.RemoveAll(dir)
	})
	return a
}

// startElasticJobOnHosts starts the agents of an elasticJob on several hosts. The caller runs the
// workers that are ordered, which come in started, by runWorkerAt, and waits for them by
// awaitAndVerify.
func startElasticJobOnHosts(t *testing.T, workers int, slots []int, data client.Data) (*elasticJob,
	*testHosts) {
	f := &elasticJob{t: t, data: data, group: group.New(context.Background()),
		ledger: map[[2]int]int{}, finals: map[int][]float64{}, steps: map[int]int{}}
	c := startHosts(t, workers, slots, agent.Orders{Event: f.takeEvent})
	f.agent = c.head
	return f, c
}

// A host is lost in mid-step, with all of its workers, also the one that leads: the others lose no
// step and no sample.
func TestTrainingGoesOnWithoutALostHost(t *testing.T) {
	for trial := range 20 {
		seed, victim := rand.Uint64(), []string{"a", "b"}[trial%2]
		t.Run(fmt.Sprintf("%s,seed=%d", victim, seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(trial)))
			slots := []int{1 + rng.IntN(2), 1 + rng.IntN(3), 1 + rng.IntN(2)}
			workers := slots[0] + slots[1] + slots[2]
			f, c := startElasticJobOnHosts(t, workers, slots,
				client.Data{Samples: 60 + rng.IntN(200), Batch: 4 + rng.IntN(20), Epochs: 2,
					Seed: seed})
			at, here := 1+rng.IntN(4), slots[trial%2]
			// closed when all workers of the host have seen the step before
			there := make(chan struct{})
			var waiting atomic.Int32
			var stayed []int
			for range workers {
				s := <-c.started
				if s.agent != c.agents[victim] {
					dies := -1 // the step in which this worker is killed too; its memory stays
					if s.number > 0 && s.number < workers-1 && rng.IntN(3) == 0 {
						dies = rng.IntN(8)
					} else {
						stayed = append(stayed, s.number)
					}
					f.runWorkerAt(s.agent, s.number, s.token,
						func(_ *elasticJob, _, step int) error {
							if step == dies {
								return errDies
							}
							return nil
						})
					continue
				}
				f.runWorkerAt(s.agent, s.number, s.token, func(_ *elasticJob, _, step int) error {
					if step < at {
						return nil
					}
					if int(waiting.Add(1)) == here {
						close(there)
					}
					<-there
					c.hub.Kill(fabric.Host(victim))
					return errHostDies
				})
			}
			f.awaitAndVerify(stayed...)
			f.mu.Lock() // late news may still come
			defer f.mu.Unlock()
			if !slices.ContainsFunc(f.events, func(e agent.Event) bool {
				return len(e.Lost) >= here && strings.Contains(e.Because, victim+" was lost")
			}) {
				t.Errorf("no generation loses the %d workers of the host: %+v", here, f.events)
			}
		})
	}
}

// Two hosts lose each other, but not the head. It tells its launcher of the one that goes, the one
// that came later, though it reaches it.
func TestOneOfTwoThatLoseEachOtherGoes(t *testing.T) {
	f, c := startElasticJobOnHosts(t, 3, []int{1, 1},
		client.Data{Samples: 400, Batch: 20, Epochs: 2, Seed: 5})
	workerIDs := []startOrder{<-c.started, <-c.started}
	c.addHost("c", 1)
	for _, s := range append(workerIDs, <-c.started) {
		f.runWorkerAt(s.agent, s.number, s.token, func(_ *elasticJob, _, step int) error {
			if s.agent != c.agents["c"] || step < 3 {
				return nil
			}
			c.hub.Cut("b", "c")
			return errHostDies
		})
	}
	f.awaitAndVerify(0, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.gone, "a: c is no part of the job any more") {
		t.Errorf("the launcher of the head heard of %q", c.gone)
	}
}

// Workers die, and a host joins and gets workers, while others train.
func TestHostsJoinAndAreDrained(t *testing.T) {
	f, c := startElasticJobOnHosts(t, 2, []int{1, 1},
		client.Data{Samples: 600, Batch: 20, Epochs: 2, Seed: 3})
	entering := func(n int) {
		awaitStatus(t, f.agent, func(s agent.Status) bool { return s.Entering >= n })
	}
	var once, later sync.Once
	does := func(f *elasticJob, number, step int) (err error) {
		if number != 0 {
			return nil
		}
		if step >= 3 {
			once.Do(func() {
				c.addHost("c", 3)
				if err = f.agent.Resize(4, "the test"); err == nil {
					entering(2)
				}
			})
		}
		if f.agent.Status().Size == 4 {
			later.Do(func() {
				if err = f.agent.Drain("b", "the test"); err == nil {
					entering(1)
				}
			})
		}
		return err
	}
	for range 5 {
		s := <-c.started
		f.runWorkerAt(s.agent, s.number, s.token, does)
	}
	f.awaitAndVerify(0)
	joined, released := 0, 0
	f.mu.Lock() // late news may still come
	defer f.mu.Unlock()
	for _, e := range f.events {
		joined += len(e.Joined)
		released += len(e.Released)
	}
	if joined != 5 || released != 1 {
		t.Errorf("%d joined, %d released: %+v", joined, released, f.events)
	}
}

// A host that has no slots any more is left as one that is drained: no launcher hears that it is
// gone, since its workers, which were let go, end in their own time.
func TestAHostWithoutSlotsIsNotGone(t *testing.T) {
	f, c := startElasticJobOnHosts(t, 2, []int{1, 1},
		client.Data{Samples: 600, Batch: 20, Epochs: 2, Seed: 3})
	isLeft := func(s agent.Status) bool { return len(s.Hosts) == 1 }
	does := func(f *elasticJob, number, step int) error {
		switch {
		case number != 0:
		case step == 3:
			return f.agent.Allot(map[string]int{"a": 1}, "the test", "")
		case step == 6:
			awaitStatus(t, f.agent, isLeft)
		}
		return nil
	}
	for range 2 {
		s := <-c.started
		f.runWorkerAt(s.agent, s.number, s.token, does)
	}
	f.awaitAndVerify(0)
	c.head.Waits() // whatever the launcher was to be told of the host, it was told by now
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.gone) > 0 {
		t.Errorf("launchers heard of %q", c.gone)
	}
}
