package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// What the soak does: as long as it has time, after a pause of up to soakPause one fault more, in a
// job of up to soakWorkers.
const (
	soakPause   = 100 * time.Millisecond
	soakStop    = 200 * time.Millisecond // for which a worker is stopped at most
	soakWorkers = 6
)

// soak is a job that trains while its workers are killed, stopped, ordered and released at random.
// Goroutines of the launcher call Write and addReport; injectFaults and what it calls run on one
// goroutine of run. Errors are returned, or fail the test.
type soak struct {
	t   *testing.T
	rng *rand.Rand
	job *control.Job // set by injectFaults, and refreshed there

	mu     sync.Mutex                 // guards the next three
	trains map[int]bool               // workers that have made a step: they hold the state
	ends   map[int]map[string]float64 // by worker, the last report
	stderr bytes.Buffer               // what Write has collected

	// members is how many there were when the job was stopped; set by the launcher, and read when
	// run has returned.
	members int

	// What follows is of the goroutine of injectFaults, and read when run has returned.

	killed  map[int]bool // workers
	stopped []int        // process ids
	tally   *tally
}

// TestSoak trains under random faults, on one host and on several: for a few seconds, or as many as
// SECONDS says (make soak).
func TestSoak(t *testing.T) {
	usual := uint64(5)
	if testing.Short() {
		usual = 2
	}
	seconds, seed := envtest.Number(t, "SECONDS", usual), envtest.Seed(t)
	total, half := newTally(), time.Duration(seconds)*time.Second/2
	t.Run("one host", func(t *testing.T) {
		soakHost(t, rand.New(rand.NewPCG(seed, 0)), total, half)
	})
	t.Run("several hosts", func(t *testing.T) {
		soakHosts(t, rand.New(rand.NewPCG(seed, 1)), total, half)
	})
	t.Logf("\n%v", total)
	for _, line := range total.exceptions {
		t.Errorf("a worker says: %s", line)
	}
}

// soakHost runs a job on this host with random faults for so long, adds what happened to c, and
// fails the test where it did not end well. It sets XDG_RUNTIME_DIR, so the test must not be
// parallel.
func soakHost(t *testing.T, rng *rand.Rand, c *tally, length time.Duration) {
	dir, err := os.MkdirTemp("", "soak") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	s := &soak{t: t, rng: rng, trains: map[int]bool{}, ends: map[int]map[string]float64{},
		killed: map[int]bool{}, tally: c}
	result, err := s.run(length)
	if err != nil {
		t.Error(err)
	}
	if result == nil {
		return
	}
	s.checkEnd(result)
	if left, err := filepath.Glob(filepath.Join(dir, "shoal", "*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// run runs the job with faults for so long, blocks until it has ended, and returns how it ended;
// nil with an error where it could not be started.
func (s *soak) run(length time.Duration) (*runs.Result, error) {
	shoal, err := exec.LookPath("shoal") // see TestMain
	if err != nil {
		return nil, err
	}
	tool := group.New(s.t.Context())
	result, err := launcher.Run(tool.Context(), launcher.RunConfig{
		Spec: job.Spec{Name: "soak", Workers: 4,
			Command: []string{shoal, "demo", "worker", strconv.Itoa(math.MaxInt32)}},
		Dir: s.t.TempDir(), Stdout: io.Discard, Stderr: s,
		OnReport: s.addReport,
		OnEvent: func(e agent.Event) {
			if e.What == "stop" {
				s.members = e.Size
			}
		},
		OnStart: func(_, dir string) {
			tool.Go("chaos", func(ctx context.Context) error {
				return s.injectFaults(ctx, dir, length)
			})
		},
	})
	tool.Stop(nil)
	return result, errors.Join(tool.Wait(), err)
}

// Write collects what workers write to their error streams: nothing, when all is well, but from
// those that are no longer wanted before they have entered. Every line comes in one piece.
func (s *soak) Write(line []byte) (int, error) {
	if !bytes.HasPrefix(line, []byte("shoal: ")) && !bytes.HasSuffix(line, []byte(": SIGTERM\n")) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stderr.Write(line)
	}
	return len(line), nil
}

// addReport records what a worker has reported.
func (s *soak) addReport(worker int, m map[string]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, last := m["digest"]; last {
		s.ends[worker] = m
	}
	s.trains[worker] = true
}

// injectFaults makes random faults for so long, waits until the job has noticed them, and stops it.
func (s *soak) injectFaults(ctx context.Context, dir string, length time.Duration) (err error) {
	if s.job, err = control.Find(ctx, dir); err != nil {
		return err
	}
	// Before the first step every loss is a fault.
	if err := cli.Poll(ctx, func() (bool, error) {
		return s.trainingCount() == 4, nil
	}); err != nil {
		return err
	}
	for end := time.Now().Add(length); err == nil && time.Now().Before(end); {
		if err = s.job.Refresh(ctx); err != nil {
			break
		}
		switch s.rng.IntN(6) {
		case 0:
			err = s.signal("worker stopped", syscall.SIGSTOP, s.anyWorker())
		case 1:
			err = s.killWorkers(1)
		case 2:
			err = s.killWorkers(1 + s.rng.IntN(3))
		default: // each loss has made the wanted size smaller
			err = s.job.Resize(ctx, 1+s.rng.IntN(soakWorkers), "the soak")
			s.tally.faults["resized"]++
		}
		if err == nil {
			err = s.pause(ctx)
		}
	}
	if err == nil {
		err = cli.Poll(ctx, s.hasNoticedKills)
	}
	return errors.Join(err, s.job.Stop(context.WithoutCancel(ctx), err != nil, "the soak"))
}

// hasNoticedKills refreshes s.job, and reports whether the job has noticed everybody who was
// killed. Stopped before, it may release a worker as a member that is dead, and then says that this
// did not end well.
func (s *soak) hasNoticedKills() (bool, error) {
	err := s.job.Refresh(s.t.Context())
	members := 0
	for _, w := range s.job.Workers {
		if w.Running && s.killed[w.Worker] {
			return false, err
		}
		if w.Rank >= 0 {
			members++
		}
	}
	return members == s.job.Size, err
}

// trainingCount returns how many workers have made a step.
func (s *soak) trainingCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.trains)
}

// pause waits a random time, up to soakPause or soakStop, and then continues the processes that are
// stopped.
func (s *soak) pause(ctx context.Context) error {
	length := soakPause
	if len(s.stopped) > 0 {
		length = soakStop
	}
	select {
	case <-time.After(time.Duration(s.rng.Int64N(int64(length)))):
	case <-ctx.Done():
	}
	for _, pid := range s.stopped {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	s.stopped = nil
	return ctx.Err()
}

// anyWorker returns a random running worker, a member or not; number -1 if there is none.
func (s *soak) anyWorker() api.Worker {
	running := slices.DeleteFunc(slices.Clone(s.job.Workers), func(w api.Worker) bool {
		return !w.Running || s.killed[w.Worker]
	})
	if len(running) == 0 {
		return api.Worker{Worker: -1}
	}
	return running[s.rng.IntN(len(running))]
}

// killWorkers kills up to n workers at one moment. It spares the last one that holds the state and
// is not about to be released: without it the job would be lost, and rightly so.
func (s *soak) killWorkers(n int) error {
	for range n {
		w := s.anyWorker()
		if w.Worker < 0 || !s.survivesWithout(w.Worker) {
			continue
		}
		if err := s.signal("worker killed", syscall.SIGKILL, w); err != nil {
			return err
		}
		s.killed[w.Worker] = true
	}
	return nil
}

// survivesWithout reports whether the job survives the loss of a worker. Each loss makes the wanted
// size smaller, also one that the job has not noticed yet.
func (s *soak) survivesWithout(victim int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	stay := s.job.Want - 1
	for _, w := range s.job.Workers {
		if w.Running && s.killed[w.Worker] {
			stay--
		}
	}
	return slices.ContainsFunc(s.job.Workers, func(w api.Worker) bool {
		return w.Worker != victim && w.Running && !s.killed[w.Worker] && s.trains[w.Worker] &&
			w.Rank >= 0 && w.Rank < stay
	})
}

// signal sends a signal to a worker, and counts it as the fault what. A worker with number -1, or
// one that has ended, is no error.
func (s *soak) signal(what string, sig syscall.Signal, w api.Worker) error {
	if w.Worker < 0 {
		return nil
	}
	err := syscall.Kill(w.PID, sig)
	if err == syscall.ESRCH { // it has just ended by itself
		return nil
	}
	if sig == syscall.SIGSTOP {
		s.stopped = append(s.stopped, w.PID)
	}
	s.tally.faults[what]++
	return err
}

// stillRuns reports whether a process exists and is one of this job's workers: the number can be
// another's by now.
func (s *soak) stillRuns(pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(env, []byte(os.Getenv("XDG_RUNTIME_DIR")))
}

// checkEnd fails the test unless the members agree at the end, and no process is left. run has
// returned.
func (s *soak) checkEnd(result *runs.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := map[string]float64{}
	for _, m := range s.ends {
		if m["step"] > last["step"] {
			last = m
		}
	}
	s.tally.add(last)
	var digests []float64
	for worker, m := range s.ends {
		for _, what := range findings {
			if m[what] != 0 {
				s.t.Errorf("worker %d found %v", worker, m)
			}
		}
		if m["step"] == last["step"] {
			digests = append(digests, m["digest"])
		}
	}
	if len(digests) != s.members || s.members == 0 || slices.Min(digests) != slices.Max(digests) {
		s.t.Errorf("after step %v %d members end with the parameters %v", last["step"], s.members,
			digests)
	}
	for line := range strings.Lines(s.stderr.String()) {
		s.tally.exceptions = append(s.tally.exceptions, line)
	}
	survivors := 0
	for _, w := range result.Workers {
		switch {
		case w.How == "exited with code 0":
			survivors++
		// 143: SIGTERM
		case w.How != "exited with code 143" && !strings.HasPrefix(w.How, "was killed by"):
			s.t.Errorf("worker %d %s", w.Rank, w.How)
		}
		if s.stillRuns(w.PID) {
			s.t.Errorf("worker %d still runs", w.Rank)
		}
	}
	s.t.Logf("%d processes, %d of which ended by themselves; %d members at the end; %v samples "+
		"changed hands",
		len(result.Workers), survivors, s.members, last["samples_handed_on"])
}
