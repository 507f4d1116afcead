package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/mem"
)

// A launcher that is this program does what its job says in the variable FAKE:
//
//	ends    it ends well at once
//	fails   it says why, and ends before there is a run
//	raves   it says more than anybody can read, and ends before there is a run
//	waits   it answers nobody, and ends well when somebody opens the pipe "gate" in its folder
//
// Each start adds a line to the file "starts" in the folder of the job, and writes into the file
// "sockets" where it would answer, and into the file "environment" its variables.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		os.Exit(fakeRun(os.Args[1:], os.Getenv("FAKE")))
	}
	os.Exit(m.Run())
}

// fakeRun is a run of a job without workers; it returns the exit code.
func fakeRun(args []string, what string) int {
	name := args[2]
	starts, err := os.OpenFile("starts-"+name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 3
	}
	fmt.Fprintln(starts, os.Getpid())
	starts.Close()
	sockets, err := rundir.Path()
	if err != nil || os.WriteFile("sockets-"+name, []byte(sockets), 0o600) != nil {
		return 3
	}
	variables := strings.Join(os.Environ(), "\n") + "\n"
	if os.WriteFile("environment-"+name, []byte(variables), 0o600) != nil {
		return 3
	}
	if what == "fails" {
		fmt.Fprintln(os.Stderr, "shoal: there is no such thing")
		return 2
	}
	if what == "raves" {
		fmt.Fprintln(os.Stderr, "shoal: "+strings.Repeat("ö\xff\x1b", 200_000))
		return 2
	}
	dir, err := filepath.Abs(filepath.Join("run-" + name))
	if err != nil || os.MkdirAll(dir, 0o700) != nil {
		return 3
	}
	fmt.Fprintf(os.Stderr, "shoal: job %s, 1 worker, files in %s\n", name, dir)
	if what == "waits" {
		if _, err := os.ReadFile("gate"); err != nil {
			return 3
		}
	}
	text, err := json.Marshal(runs.Result{Job: name, Dir: dir, OK: true})
	if err != nil || os.WriteFile(filepath.Join(dir, "result.json"), text, 0o600) != nil {
		return 3
	}
	return 0
}

// starts returns how often a job was started in a folder.
func starts(t testing.TB, dir, name string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "starts-"+name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// host1 is one host on which keepers of a pool come and go, with the store and the folders that
// outlive them.
type host1 struct {
	t      testing.TB
	record store.Store
	dir    string // of the pool
	work   string // of the jobs
	slots  int
}

// newHost1 returns a host without a keeper. What jobs it has left over by the end of the test ends.
func newHost1(t testing.TB) *host1 {
	t.Helper()
	runtime, err := os.MkdirTemp("", "k") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtime) })
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	dir := filepath.Join(t.TempDir(), "a [pool]") // a name that would be a pattern
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := &host1{t, mem.New().Open(), dir, t.TempDir(), 2}
	t.Cleanup(h.endJobs)
	return h
}

// endJobs lets jobs that wait end, and waits until all that this test has started are gone. No
// keeper is left that could start others.
func (h *host1) endJobs() {
	gate, was := filepath.Join(h.work, "gate"), filepath.Join(h.work, "gate-was")
	if os.Rename(gate, was) == nil { // who opens it from now on does not wait
		_ = os.WriteFile(gate, nil, 0o600)
		if f, err := os.OpenFile(was, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			f.Close() // somebody waited
		}
	}
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && err != syscall.EINTR {
			return // there are no more children
		}
	}
}

// running is a keeper that runs.
type running struct {
	host   *host1
	cancel context.CancelFunc
	ended  chan error // closed after the error of Run
	up     chan int   // how many jobs it found

	waiters *Waiters // for its end
}

// start starts a keeper whose store is s.
func (h *host1) start(s store.Store) *running {
	h.t.Helper()
	program, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &running{h, cancel, make(chan error, 1), make(chan int, 1), new(Waiters)}
	c := Config{Name: "lab", Host: "here", Slots: h.slots, Dir: h.dir, Program: program, Store: s,
		Notes: new(notes), Waiters: k.waiters}
	g := group.New(context.Background())
	g.Go("keep a pool", func(context.Context) error {
		k.ended <- Run(ctx, c, func(jobs int) { k.up <- jobs })
		close(k.ended)
		return nil
	})
	h.t.Cleanup(func() { cancel(); _ = g.Wait(); k.waiters.Close() })
	return k
}

// notes takes what a keeper says.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (n *notes) Write(text []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(text)
}

// submit gives the pool a job, submitted with these variables too, and returns its answer.
func (h *host1) submit(name, what string, env ...string) (a pool.Answer, err error) {
	err = Call(context.Background(), "lab", PathSubmit, Request{Spec: "name: " + name +
		"\ncommand: [fake]\n", Dir: h.work, Env: append(env, "FAKE="+what), Who: "ada"}, &a)
	return a, err
}

// job returns a job of the pool, which is there.
func (h *host1) job(name string) pool.JobView {
	h.t.Helper()
	var j Job
	if err := Call(context.Background(), "lab", PathJob+"?name="+name, nil, &j); err != nil {
		h.t.Fatal(err)
	}
	return j.Job
}

// patience is how long something is waited for that must come.
const patience = 2 * time.Minute

// until asks until something is true.
func (h *host1) until(what string, is func() bool) {
	h.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); !is(); <-ticker.C {
		if time.Now().After(deadline) {
			h.t.Fatal("it does not come: ", what)
		}
	}
}

// stepped is a store that says before each write what it is, and waits until it may be done.
type stepped struct {
	store.Store
	write func(key string, value []byte, do func() (store.Revision, error)) (store.Revision, error)
}

// Create implements store.Store.
func (s *stepped) Create(ctx context.Context, key string, value []byte) (store.Revision, error) {
	return s.write(key, value, func() (store.Revision, error) {
		return s.Store.Create(ctx, key, value)
	})
}

// Update implements store.Store.
func (s *stepped) Update(ctx context.Context, key string, value []byte, was store.Revision) (
	store.Revision, error) {
	return s.write(key, value, func() (store.Revision, error) {
		return s.Store.Update(ctx, key, value, was)
	})
}
