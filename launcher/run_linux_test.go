package launcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/durable/durabletest"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// workerVariable says what this test binary does when a test starts it as a worker.
const workerVariable = "NODE_TEST_WORKER"

// When this program is started as a worker it is one; else it runs the tests.
func TestMain(m *testing.M) {
	if what := os.Getenv(workerVariable); what != "" {
		if err := runWorker(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runWorker is a worker: it meets the others, reports, and does what is asked of its rank. what is
// the value of workerVariable: "meet", "train", "nodes", what one rank does wrong ("absent-1",
// "raise-1", "hangup-1", "deaf-1"), or else to wait for ever. It runs in a process of its own.
func runWorker(what string) error {
	ctx := context.Background()
	if what == "absent-1" && os.Getenv(api.EnvRank) == "1" {
		return nil
	}
	j, err := client.Join(ctx)
	if err != nil {
		return err
	}
	if what == "nodes" {
		return errors.Join(reportNodes(ctx, j), j.Close())
	}
	if what == "train" {
		return errors.Join(trainAndCount(ctx, j), j.Close())
	}
	if err := client.Barrier(ctx, j); err != nil {
		return err
	}
	if err := j.Report(map[string]float64{"rank": float64(j.Rank())}); err != nil {
		return err
	}
	switch {
	case what == "raise-1" && j.Rank() == 1:
		// What Python does with an exception: it says goodbye, takes its time to tear down, and
		// ends.
		if err := j.Close(); err != nil {
			return err
		}
		for range 100 {
			runtime.GC()
		}
		return errors.New("bad batch")
	case what == "hangup-1" && j.Rank() == 1:
		os.Exit(0)
	case what != "meet":
		if what == "deaf-1" && j.Rank() == 1 {
			signal.Ignore(syscall.SIGTERM)
		}
		fmt.Println("waiting")
		return client.RecvFrom(ctx, j, make([]float32, 1), (j.Rank()+1)%j.Size())
	}
	return j.Close()
}

// runWorkers runs a job of n workers, called test, that do what, as runWorker says, blocks until it
// has ended, and returns what Run returns, and between that all output. spoil may change the
// configuration before; nil = nobody does. It sets a variable of the environment, so the test must
// not be parallel, and fails it when sockets are left behind.
func runWorkers(t *testing.T, ctx context.Context, n int, what string,
	spoil func(*launcher.RunConfig)) (*runs.Result, string, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	var out console
	cfg := launcher.RunConfig{
		Spec: job.Spec{Name: "test", Workers: n, Command: []string{os.Args[0]},
			Env: map[string]string{workerVariable: what}},
		Dir: t.TempDir(), Stdout: &out, Stderr: &out}
	if spoil != nil {
		spoil(&cfg)
	}
	result, err := launcher.Run(ctx, cfg)
	if left, globErr := filepath.Glob(filepath.Join(dir, "shoal", "*")); len(left) > 0 ||
		globErr != nil {
		t.Errorf("left behind: %v %v", left, globErr)
	}
	return result, out.String(), err
}

// console is a buffer that lets a test see lines as they come. Any goroutine may use it.
type console struct {
	mu   sync.Mutex
	b    bytes.Buffer      // guarded by mu
	seen func(line string) // gets each line, with mu held; nil = nobody does
}

// Write adds a line to the buffer, and calls seen with it.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen != nil {
		c.seen(string(p))
	}
	return c.b.Write(p)
}

// String is all that was written.
func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

// A run starts its workers, calls back, writes the files of the run, and leaves nothing behind.
func TestRun(t *testing.T) {
	var mu sync.Mutex
	var joined, reported []int
	var dir string
	result, out, err := runWorkers(t, t.Context(), 3, "meet", func(cfg *launcher.RunConfig) {
		cfg.OnStart = func(name, d string) { dir = d }
		cfg.OnJoin = func(rank int, client string) {
			mu.Lock()
			defer mu.Unlock()
			if client != "go" {
				t.Errorf("rank %d is %q", rank, client)
			}
			joined = append(joined, rank)
		}
		cfg.OnReport = func(rank int, metrics map[string]float64) {
			mu.Lock()
			defer mu.Unlock()
			if metrics["rank"] != float64(rank) {
				t.Errorf("rank %d reported %v", rank, metrics)
			}
			reported = append(reported, rank)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	slices.Sort(joined)
	slices.Sort(reported)
	if all := []int{0, 1, 2}; !slices.Equal(joined, all) || !slices.Equal(reported, all) {
		t.Errorf("joined %v, reported %v", joined, reported)
	}
	if !result.OK || result.Alone || len(result.Workers) != 3 || result.Job != "test" ||
		result.Dir != dir {
		t.Errorf("%+v", result)
	}
	var kept runs.Result
	if text, err := os.ReadFile(filepath.Join(dir, "result.json")); err != nil ||
		json.Unmarshal(text, &kept) != nil || !kept.OK {
		t.Errorf("result.json: %s, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "metrics.jsonl")); err != nil ||
		bytes.Count(text, []byte("\n")) != 3 {
		t.Errorf("metrics.jsonl: %s, %v", text, err)
	}
}

// A good job stays one where its result cannot be kept.
func TestRunWhoseResultCannotBeWritten(t *testing.T) {
	result, out, err := runWorkers(t, t.Context(), 1, "meet", func(cfg *launcher.RunConfig) {
		cfg.OnStart = func(_, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "result.json"), 0o700); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil || !result.OK ||
		!strings.Contains(out, "shoal: the files of this run are incomplete: rename") {
		t.Errorf("%+v, %v\n%s", result, err, out)
	}
}

// A worker that ends well without joining, though others have joined, fails the job.
func TestRunWhereOneNeverJoins(t *testing.T) {
	_, out, err := runWorkers(t, t.Context(), 3, "absent-1", nil)
	var f *launcher.Failure
	if !errors.As(err, &f) || f.Rank != 1 || !f.Early {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A worker that raises an error fails the job, and is named.
func TestRunWhereOneRaises(t *testing.T) {
	_, out, err := runWorkers(t, t.Context(), 3, "raise-1", nil)
	var f *launcher.Failure
	if !errors.As(err, &f) || f.Rank != 1 || !slices.Contains(f.Tail, "bad batch") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A worker that leaves while the others wait for it fails the job, and is named.
func TestRunWhereOneHangsUp(t *testing.T) {
	// It ends well, but the others wait for it: the error that one of these gets names it.
	_, out, err := runWorkers(t, t.Context(), 2, "hangup-1", nil)
	var f *launcher.Failure
	if !errors.As(err, &f) || f.Rank != 0 || !strings.Contains(err.Error(), "rank 1") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A run whose context ends stops its workers, and says so.
func TestRunStopped(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	waiting := 0
	result, out, err := runWorkers(t, ctx, 2, "wait", func(cfg *launcher.RunConfig) {
		cfg.Stdout = &console{seen: func(line string) {
			if strings.HasSuffix(line, "waiting\n") {
				if waiting++; waiting == 2 {
					cancel(cause)
				}
			}
		}}
	})
	if !errors.Is(err, cause) {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, w := range result.Workers {
		if !w.Stopped || w.How != "was killed by SIGTERM" {
			t.Errorf("%+v", w)
		}
	}
}

// Workers that ignore SIGTERM are killed.
func TestRunKillsWhatDoesNotStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	kill := make(chan struct{})
	ready := 0
	result, out, err := runWorkers(t, ctx, 2, "", func(cfg *launcher.RunConfig) {
		cfg.Spec.Command, cfg.Spec.Env = []string{"sh", "-c",
			`trap "" TERM; echo ready; while :; do sleep 1; done`}, nil
		cfg.Kill = kill
		cfg.Stdout = &console{seen: func(string) {
			if ready++; ready == 2 {
				cancel()
				close(kill)
			}
		}}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, w := range result.Workers {
		if !w.Stopped || w.How != "was killed by SIGKILL" {
			t.Errorf("%+v", w)
		}
	}
}

// What cannot be run gets an error that says why.
func TestRunRefuses(t *testing.T) {
	var spec *job.Error
	if _, _, err := runWorkers(t, t.Context(), -1, "meet", nil); !errors.As(err, &spec) {
		t.Errorf("%v", err)
	}
	var command *proc.CommandError
	if result, _, err := runWorkers(t, t.Context(), 1, "meet", func(cfg *launcher.RunConfig) {
		cfg.Spec.Command = []string{"/none"}
	}); !errors.As(err, &command) || result != nil {
		t.Errorf("%v", err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	if result, _, err := runWorkers(t, t.Context(), 2, "meet", func(cfg *launcher.RunConfig) {
		cfg.Spec.Command, cfg.Dir = []string{garbage}, parent
	}); !errors.As(err, &command) || result != nil {
		t.Errorf("%v", err)
	}
	busy := errors.New("the address is in use")
	if result, _, err := runWorkers(t, t.Context(), 1, "meet", func(cfg *launcher.RunConfig) {
		cfg.Fleet = &launcher.Fleet{Slots: 1,
			Link: func(fabric.Handler) (fabric.Network, error) { return nil, busy }}
	}); !errors.Is(err, busy) || result != nil {
		t.Errorf("%+v, %v", result, err)
	}
	// who looks at the run later hears the same, and not that its launcher was killed
	if kept, err := runs.ReadResult(filepath.Join(parent, "test")); err != nil || kept.OK ||
		kept.Error != command.Error() {
		t.Errorf("its result is %+v, %v", kept, err)
	}
}

// A run that has no room for its files leaves nothing on the disk, not even its name, and says what
// can be done.
func TestRunWithoutRoom(t *testing.T) {
	disk := durabletest.SmallDisk(t, "64k")
	if err := os.WriteFile(filepath.Join(disk, "ballast"), make([]byte, 1<<20),
		0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk takes it all: %v", err)
	}
	_, _, err := runWorkers(t, t.Context(), 1, "meet", func(cfg *launcher.RunConfig) {
		cfg.Dir = disk
	})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "; set XDG_STATE_HOME") {
		t.Errorf("the error is %v", err)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) != 1 {
		t.Errorf("%v is left (%v)", left, err)
	}
}

// What JSON cannot carry to other hosts as it is stops a job before it begins, if it takes others.
func TestTextThatOtherHostsCannotGet(t *testing.T) {
	for want, spec := range map[string]job.Spec{
		`command: the word "\xe4" is no UTF-8`: {Command: []string{"true", "\xe4"}},
		`env: "LOG" has bytes that are no`: {Command: []string{"true", "ä"},
			Env: map[string]string{"A": "ü", "LOG": "\xff"}},
		`env: "\xff" has bytes that are no`: {Command: []string{"true"},
			Env: map[string]string{"\xff": ""}},
	} {
		_, err := launcher.Run(t.Context(),
			launcher.RunConfig{Spec: spec, Fleet: &launcher.Fleet{}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
