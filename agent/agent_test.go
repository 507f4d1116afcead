package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/group"
)

// The helpers of this file serve all tests of package agent_test. What fails in them fails the
// test, and what they make is closed at its end.

// startAgent runs an agent for n ranks until the test ends. Rank i has the token token-i.
func startAgent(t *testing.T, n int) *agent.Agent {
	t.Helper()
	return startAgentUntil(t, context.Background(), n)
}

// runInBackground runs f on a goroutine, and waits for it at the end of the test: f must return
// by itself.
func runInBackground(t *testing.T, f func()) {
	g := group.New(context.Background())
	g.Go("background", func(context.Context) error { f(); return nil })
	t.Cleanup(func() {
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// startAgentUntil is startAgent with a context whose end ends the agent too.
func startAgentUntil(t *testing.T, parent context.Context, n int) *agent.Agent {
	t.Helper()
	return startAgentWithOrders(t, parent, n, agent.Orders{})
}

// startAgentWithOrders is startAgentUntil with orders that the test carries out.
func startAgentWithOrders(t *testing.T, parent context.Context, n int,
	orders agent.Orders) *agent.Agent {
	t.Helper()
	return startAgentOf(t, parent, agent.Config{Size: n, Orders: orders})
}

// startAgentOf runs an agent of cfg until the test ends, or parent. It sets the job, the log, a
// socket of its own, and for rank i the token token-i. The test fails if the agent ends with an
// error.
func startAgentOf(t testing.TB, parent context.Context, cfg agent.Config) *agent.Agent {
	t.Helper()
	for i := range cfg.Size {
		cfg.Tokens = append(cfg.Tokens, fmt.Sprintf("token-%d", i))
	}
	dir, err := os.MkdirTemp("", "shoal")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Job, cfg.Socket, cfg.Log = "test", filepath.Join(dir, "s"), slog.New(slog.DiscardHandler)
	a, err := agent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(parent)
	g := group.New(context.Background())
	g.Go("agent", func(context.Context) error { return a.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return a
}

// awaitStatus blocks until fits accepts the status of the job; the test fails if it is over before.
// Any goroutine may call it, but not the engine's thread.
func awaitStatus(t *testing.T, a *agent.Agent, fits func(s agent.Status) bool) {
	t.Helper()
	if _, err := a.Await(t.Context(), fits); err != nil {
		t.Error(err)
	}
}

// joinAs joins as one rank of an agent's job, with the token token-RANK. Only the test's goroutine
// may call it, since the environment is the process's.
func joinAs(t testing.TB, a *agent.Agent, rank int) *client.Job {
	t.Helper()
	return joinWithToken(t, a, rank, fmt.Sprintf("token-%d", rank))
}

// joinWithToken joins an agent's job as worker rank with the Go client, by the environment of this
// process, so only the test's goroutine may call it. The job is closed at the end of the test.
func joinWithToken(t testing.TB, a *agent.Agent, rank int, token string) *client.Job {
	t.Helper()
	t.Setenv(api.EnvSocket, a.Socket())
	t.Setenv(api.EnvRank, fmt.Sprint(rank))
	t.Setenv(api.EnvToken, token)
	j, err := client.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// runOnHosts runs body for each of n ranks, each on a goroutine, and fails the test with the first
// error: with all ranks on one host, then, in subtests too, spread over two and over three.
func runOnHosts(t *testing.T, n int, body func(j *client.Job) error) {
	t.Helper()
	t.Run(fmt.Sprintf("%d ranks on 1 host", n), func(t *testing.T) {
		a := startAgent(t, n)
		jobs := make([]*client.Job, n)
		for r := range jobs {
			jobs[r] = joinAs(t, a, r)
		}
		runTogether(t, jobs, body)
	})
	for _, slots := range [][]int{{n - n/2, n / 2}, {1, n/2 - 1, n - n/2}} {
		if slices.Min(slots) < 1 {
			continue
		}
		t.Run(fmt.Sprintf("%d ranks on %d hosts", n, len(slots)), func(t *testing.T) {
			c := startHosts(t, n, slots, agent.Orders{})
			jobs := make([]*client.Job, n)
			for range jobs {
				s := <-c.started
				jobs[s.number] = joinWithToken(t, s.agent, s.number, s.token)
			}
			runTogether(t, jobs, body)
		})
	}
}

// runTogether runs body for all jobs at once, blocks until all have returned, and fails the test
// with the first error.
func runTogether(t testing.TB, jobs []*client.Job, body func(j *client.Job) error) {
	t.Helper()
	g := group.New(t.Context())
	for r, j := range jobs {
		g.Go(fmt.Sprintf("rank %d", r), func(context.Context) error { return body(j) })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// A sum is right wherever the tensors lie: in the agent's memory or in the worker's own.
func TestAllReduceArenaAndForeign(t *testing.T) {
	for n := 1; n <= 8; n++ {
		runOnHosts(t, n, func(j *client.Job) error {
			for _, size := range []int{0, 1, 3, 1000, 300_001} {
				arena, err := client.Empty[float32](j, size)
				if err != nil {
					return err
				}
				for _, x := range [][]float32{arena, make([]float32, size)} {
					for i := range x {
						x[i] = float32(j.Rank() + i%7)
					}
					if err := client.AllReduce(context.Background(), j, x,
						collective.Sum); err != nil {
						return err
					}
					for i := range x {
						if want := float32(n*(n-1)/2 + n*(i%7)); x[i] != want {
							return fmt.Errorf("%d ranks, %d elements: element %d is %v, want %v", n,
								size, i, x[i], want)
						}
					}
				}
			}
			return nil
		})
	}
}

// What a worker reported before the agent hung up is heard, though nobody had read it by then.
func TestLastReportsAreHeard(t *testing.T) {
	const reports = 100
	heard := 0
	said, hungUp := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	a, err := agent.New(
		agent.Config{Job: "test", Socket: filepath.Join(t.TempDir(), "s"), Size: 2,
			Tokens: []string{"token-0", "token-1"},
			OnReport: func(int, map[string]float64) {
				if heard++; heard == 1 {
					<-said
					cancel()
					<-hungUp
				}
			}})
	if err != nil {
		t.Fatal(err)
	}
	g := group.New(context.Background())
	g.Go("agent", func(context.Context) error { return a.Run(ctx) })
	j := joinAs(t, a, 0)
	for range reports {
		if err := j.Report(map[string]float64{"loss": 1}); err != nil {
			t.Fatal(err)
		}
	}
	close(said)
	// there is no rank 1
	if err := client.Barrier(context.Background(), j); !errors.Is(err, client.ErrLost) {
		t.Errorf("got %v", err)
	}
	close(hungUp)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if heard != reports {
		t.Errorf("%d of %d reports were heard", heard, reports)
	}
}

// A report that cannot be sent is an error of its own, not a lost agent.
func TestReportTooLong(t *testing.T) {
	j := joinAs(t, startAgent(t, 1), 0)
	many := map[string]float64{}
	for i := range 10000 {
		many[fmt.Sprint("metric-", i)] = 1
	}
	if err := j.Report(many); err == nil || errors.Is(err, client.ErrLost) ||
		!strings.Contains(err.Error(), "the limit is 65536: send less at once") {
		t.Errorf("got %v", err)
	}
	if err := client.Barrier(t.Context(), j); err != nil {
		t.Error(err)
	}
}
