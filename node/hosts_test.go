package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/mem"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/node"
)

// cluster is a job on several hosts of one process: agents, and a mesh without sockets. Its workers are goroutines of the test.
type cluster struct {
	t       *testing.T
	net     *mem.Network
	head    *node.Agent
	mu      sync.Mutex
	agents  map[string]*node.Agent
	started chan seat // workers that the membership ordered
}

// seat is a worker that is to be started.
type seat struct {
	number int
	agent  *node.Agent
	token  string
}

// startCluster starts a job of the given slots a host; the first is the head's.
func startCluster(t *testing.T, workers int, slots []int, orders node.Orders) *cluster {
	t.Helper()
	c := &cluster{t: t, net: mem.NewNetwork(), agents: map[string]*node.Agent{}, started: make(chan seat, 1000)}
	starts := group.New(context.Background())
	orders.Start = func(o node.StartOrder) {
		starts.Go("start", func(context.Context) error {
			for i := range o.Count {
				c.start(o.First+i, o.Host, o.First+i >= workers)
			}
			return nil
		})
	}
	t.Cleanup(func() {
		if err := starts.Wait(); err != nil {
			t.Error(err)
		}
	})
	c.head = c.agent("a", node.AgentConfig{Tokens: make([]string, workers), Orders: orders, Hosts: node.Hosts{Slots: slots[0],
		Up: func(string, int) {}, Down: func(string, string) {}, Leaving: func(string, string) {},
		Link: func(h fabric.Handler) (fabric.Mesh, error) { return c.net.Mesh("a", h), nil }}})
	for i, n := range slots[1:] {
		c.join(string(rune('b'+i)), workers, n)
	}
	return c
}

// join adds a host to the job.
func (c *cluster) join(name string, workers, slots int) {
	c.agent(name, node.AgentConfig{Follow: &node.Follow{Slots: slots, Size: func() int { return workers },
		Link: func(h fabric.Handler) (fabric.Mesh, error) { return c.net.Mesh(fabric.Host(name), h), nil },
		Errands: node.Errands{Job: node.IgnoreJob, Over: func(error) {}, Signal: func(int, int) {},
			Start: func(number int, late bool) {
				c.mu.Lock()
				a := c.agents[name]
				c.mu.Unlock()
				c.started <- seat{number, a, a.Expect(number, late)}
			}}}})
}

func (c *cluster) start(number int, host string, late bool) {
	if host != "a" {
		c.head.StartFar(number, host, late)
		return
	}
	token := c.head.Expect(number, late)
	c.head.Started(number, "")
	c.started <- seat{number, c.head, token}
}

func (c *cluster) agent(name string, cfg node.AgentConfig) *node.Agent {
	c.t.Helper()
	dir, err := os.MkdirTemp("", "shoal")
	if err != nil {
		c.t.Fatal(err)
	}
	cfg.Job, cfg.Socket, cfg.Log = "test", filepath.Join(dir, "s"), slog.New(slog.DiscardHandler)
	a, err := node.NewAgent(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.agents[name] = a
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
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

// flock makes the cluster's job a flock, whose workers are started where the membership wants them.
func clusterFlock(t *testing.T, workers int, slots []int, data client.Data) (*flock, *cluster) {
	f := &flock{t: t, data: data, group: group.New(context.Background()), ledger: map[[2]int]int{}, finals: map[int][]float64{}, steps: map[int]int{}}
	c := startCluster(t, workers, slots, node.Orders{Event: func(e node.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, e)
	}})
	f.agent = c.head
	return f, c
}

// A host is lost in mid-step, with all of its workers: the others lose no step and no sample.
func TestTrainingGoesOnWithoutALostHost(t *testing.T) {
	for trial := range 10 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(trial)))
			slots := []int{1 + rng.IntN(2), 1 + rng.IntN(3), 1 + rng.IntN(2)}
			workers := slots[0] + slots[1] + slots[2]
			f, c := clusterFlock(t, workers, slots, client.Data{Samples: 60 + rng.IntN(200), Batch: 4 + rng.IntN(20), Epochs: 2, Seed: seed})
			at := 1 + rng.IntN(4)
			there := make(chan struct{}) // closed when all workers of the host have seen the step before
			var waiting atomic.Int32
			var stayed []int
			for range workers {
				s := <-c.started
				if s.agent != c.agents["b"] {
					dies := -1 // the step in which this worker is killed too; its memory stays
					if s.number > 0 && rng.IntN(3) == 0 {
						dies = rng.IntN(8)
					} else {
						stayed = append(stayed, s.number)
					}
					f.runAt(s.agent, s.number, s.token, func(_ *flock, _, step int) error {
						if step == dies {
							return errDies
						}
						return nil
					})
					continue
				}
				f.runAt(s.agent, s.number, s.token, func(_ *flock, _, step int) error {
					if step < at {
						return nil
					}
					if int(waiting.Add(1)) == slots[1] {
						close(there)
					}
					<-there
					c.net.Kill("b")
					return errHostDies
				})
			}
			f.check(stayed...)
			if n := len(f.events); len(f.events[n-1].Lost) > 0 && !strings.Contains(f.events[n-1].Because, "b was lost") {
				t.Errorf("the reason is %q", f.events[n-1].Because)
			}
			if !slices.ContainsFunc(f.events, func(e node.Event) bool { return len(e.Lost) == slots[1] }) {
				t.Errorf("no generation loses the %d workers of the host: %+v", slots[1], f.events)
			}
		})
	}
}

// Workers die, and a host joins and gets workers, while others train.
func TestHostsJoinAndAreDrained(t *testing.T) {
	f, c := clusterFlock(t, 2, []int{1, 1}, client.Data{Samples: 600, Batch: 20, Epochs: 2, Seed: 3})
	entering := func(n int) {
		for f.agent.Status().Entering < n {
			runtime.Gosched()
		}
	}
	var once, later sync.Once
	does := func(f *flock, seat, step int) (err error) {
		if seat != 0 {
			return nil
		}
		if step >= 3 {
			once.Do(func() {
				c.join("c", 2, 3)
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
		f.runAt(s.agent, s.number, s.token, does)
	}
	f.check(0)
	joined, released := 0, 0
	for _, e := range f.events {
		joined += len(e.Joined)
		released += len(e.Released)
	}
	if joined != 5 || released != 1 {
		t.Errorf("%d joined, %d released: %+v", joined, released, f.events)
	}
}
