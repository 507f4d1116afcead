package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
)

// shellRun is one worker that runs a shell script.
type shellRun struct {
	*Worker
	out   *Output
	text  *lockedBuffer // stdout and stderr
	ended chan Exit     // gets the end of the worker
	group *group.Group  // goroutines of the worker
}

// startShell starts a worker that runs a shell script, with these variables and PATH as its
// environment. When the test ends it is killed, and its goroutines are waited for. A worker that
// cannot be started fails the test.
func startShell(t *testing.T, script string, env ...string) *shellRun {
	t.Helper()
	return startShellOnCPUs(t, nil, script, env...)
}

// startShellOnCPUs is startShell with the processors that the worker is to have.
func startShellOnCPUs(t *testing.T, cpus []int, script string, env ...string) *shellRun {
	t.Helper()
	return startCommand(t, Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: env,
		CPUs: cpus})
}

// startCommand is startShell with another command, to whose environment it adds PATH.
func startCommand(t *testing.T, c Command) *shellRun {
	t.Helper()
	text := &lockedBuffer{seen: make(chan struct{}, 1)}
	out, err := NewOutput(NewConsole(text, text, 1, false), 0, filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	s := &shellRun{out: out, text: text, ended: make(chan Exit, 1),
		group: group.New(context.Background())}
	c.Env = append(c.Env, "PATH="+os.Getenv("PATH"))
	if s.Worker, err = Start(s.group, c, out); err != nil {
		t.Fatal(err)
	}
	s.group.Go("wait", func(context.Context) error {
		s.ended <- s.Wait()
		return nil
	})
	t.Cleanup(func() {
		s.Signal(syscall.SIGKILL)
		s.StopReadingAfter(0)
		if err := errors.Join(s.group.Wait(), out.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// lockedBuffer is a writer that one reader can wait on. Any goroutine may use it.
type lockedBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer  // guarded by mu
	seen chan struct{} // holds a token when there is something new
}

// Write adds to the buffer, and wakes awaitText.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.seen <- struct{}{}:
	default:
	}
	return l.b.Write(p)
}

// String is all that was written.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// awaitText blocks until the text holds want, without a limit of time, and returns the text.
func (l *lockedBuffer) awaitText(want string) string {
	for !strings.Contains(l.String(), want) {
		<-l.seen
	}
	return l.String()
}

// A worker gets its environment and an empty stdin, its output is shown, and its exit code is told.
func TestWorker(t *testing.T) {
	s := startShell(t,
		`read x || echo "stdin is empty"; echo "$A"; echo oops >&2; printf end; exit 3`, "A=b")
	e := <-s.ended
	if err := s.group.Wait(); err != nil {
		t.Fatal(err)
	}
	if e.OK() || e.Code != 3 || e.Signal != 0 || e.PID != s.PID() || e.Ended.Before(e.Started) ||
		e.String() != "exited with code 3" {
		t.Errorf("ended as %+v (%v)", e, e)
	}
	for _, want := range []string{"[0] stdin is empty\n", "[0] b\n", "[0] oops\n", "[0] end\n"} {
		if !strings.Contains(s.text.String(), want) {
			t.Errorf("no %q in %q", want, s.text)
		}
	}
}

// The end of a worker that is killed names the signal.
func TestWorkerKilled(t *testing.T) {
	s := startShell(t, `kill -KILL $$`)
	if e := <-s.ended; e.OK() || e.String() != "was killed by SIGKILL" {
		t.Errorf("ended as %v", e)
	}
}

// A signal reaches the processes that the worker has started too.
func TestSignalReachesTheGroup(t *testing.T) {
	s := startShell(t,
		`sh -c 'trap "echo child; exit" TERM; echo ready; while :; do sleep 0.01; done' & wait`)
	s.text.awaitText("ready")
	s.Signal(syscall.SIGTERM)
	if e := <-s.ended; e.Signal != syscall.SIGTERM {
		t.Errorf("ended as %v", e)
	}
}

// What a process writes that the worker has started is read until the last one has ended.
func TestLastWordsAreHeard(t *testing.T) {
	// As with "exec > >(tee log)" in a shell script: what was said before the end arrives after it.
	s := startShell(t, `(while kill -0 $$ 2>/dev/null; do :; done; echo late) & exit 3`)
	if e := <-s.ended; e.Code != 3 {
		t.Errorf("ended as %v", e)
	}
	<-s.Silent()
	if got := s.text.String(); got != "[0] late\n" {
		t.Errorf("output %q", got)
	}
	s.Signal(syscall.SIGKILL) // harmless: the number may belong to somebody else now
}

// A terminal that takes nothing until readers were to give up costs no output: neither the terminal
// nor the log lacks what the worker had written by then.
func TestSlowTerminalCostsNoOutput(t *testing.T) {
	// more than is read at once, and less than a pipe holds
	s := startShell(t,
		`trap "seq 10000 19999; exit" USR1; echo ready; while :; do :; done`)
	s.text.awaitText("ready")
	s.text.mu.Lock()
	s.Signal(syscall.SIGUSR1)
	<-s.ended
	s.StopReadingAfter(0)
	s.text.mu.Unlock()
	if err := s.group.Wait(); err != nil {
		t.Fatal(err)
	}
	want := "ready\n"
	for n := 10000; n < 20000; n++ {
		want += fmt.Sprintln(n)
	}
	if log, err := os.ReadFile(s.out.LogPath()); err != nil || string(log) != want {
		t.Errorf("%v: the log has %d bytes of %d", err, len(log), len(want))
	}
	if shown := strings.ReplaceAll(s.text.String(), "[0] ", ""); shown != want {
		t.Errorf("the terminal has %d bytes of %d", len(shown), len(want))
	}
}

// StopReadingAfter ends the reading of output that a process outside the group holds open, and not
// that process.
func TestDrainLeavesStrangers(t *testing.T) {
	s := startShell(t, `setsid sh -c 'echo "pid $$."; exec sleep 1000' & wait`)
	text := s.text.awaitText(".")
	s.Signal(syscall.SIGKILL)
	<-s.ended
	s.StopReadingAfter(time.Millisecond)
	if err := s.group.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(parsePID(t, text), syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// Why the kernel does not start a file is said in words.
func TestStartRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"garbage":        {"\x00\x01", "neither a program for this machine nor a script"},
		"no interpreter": {"#!/no/such/thing\n", "interpreter, named in its first line"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := NewOutput(NewConsole(os.Stdout, os.Stderr, 1, false), 0, path+".log")
		if err != nil {
			t.Fatal(err)
		}
		g := group.New(context.Background())
		_, err = Start(g, Command{Path: path, Args: []string{name}}, out)
		var ce *CommandError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(g.Wait(), out.Close()); err != nil {
			t.Error(err)
		}
	}
}

// allowedCPUs is the list of processors, such as "0-3,7", in a file such as /proc/self/status; the
// test fails if it has none.
func allowedCPUs(t *testing.T, status string) string {
	t.Helper()
	text, err := os.ReadFile(status)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "Cpus_allowed_list:")
	if !found {
		t.Fatalf("%s has no list of processors", status)
	}
	list, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(list)
}

// A worker has the processors of its command, and no thread of ours loses any.
func TestWorkerOnCPUs(t *testing.T) {
	all := allowedCPUs(t, "/proc/self/status")
	last := all[strings.LastIndexAny(all, ",-")+1:]
	if last == all {
		t.Skipf("this process may use processor %s alone", all)
	}
	cpu, err := strconv.Atoi(last)
	if err != nil {
		t.Fatal(err)
	}
	s := startShellOnCPUs(t, []int{cpu}, `echo ready; exec sleep 1000`)
	s.text.awaitText("ready")
	if got := allowedCPUs(t, fmt.Sprintf("/proc/%d/status", s.PID())); got != last || !s.Bound() {
		t.Errorf("the worker runs on %s, bound: %v; want %s", got, s.Bound(), last)
	}
	threads, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%v, %v", threads, err)
	}
	for _, thread := range threads {
		if got := allowedCPUs(t, thread); got != all {
			t.Errorf("%s may use %s, and could use %s before", thread, got, all)
		}
	}
}

// Where the kernel does not grant the processors, the worker runs without.
func TestWorkerOnCPUsThatAreAbsent(t *testing.T) {
	s := startShellOnCPUs(t, []int{1023, 5000}, `exit 3`)
	if e := <-s.ended; e.Code != 3 || s.Bound() {
		t.Errorf("ended as %v, bound: %v", e, s.Bound())
	}
}

// A worker that is shielded from SIGTERM goes on when somebody else sends it. The launcher ends it
// with SIGKILL, but not one that has come to heed SIGTERM.
func TestShieldedWorker(t *testing.T) {
	shell := func(script string) Command {
		return Command{Path: "/bin/sh", Args: []string{"sh", "-c", script, "name", "a b"},
			Shield: true}
	}
	s := startCommand(t, shell(`kill -TERM $$; echo "goes on: $1"; exec tail -f /dev/null`))
	s.text.awaitText("goes on: a b")
	s.Signal(syscall.SIGTERM)
	if e := <-s.ended; e.Signal != syscall.SIGKILL {
		t.Errorf("it %s, and was to be killed", e)
	}
	// A shell cannot heed a signal that it began with ignored; Python can.
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	s = startCommand(t, Command{Path: python, Shield: true, Args: []string{"python3", "-c",
		"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: None); " +
			"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); " +
			"print('ready', flush=True); signal.sigwait([signal.SIGTERM]); sys.exit(7)"}})
	s.text.awaitText("ready")
	s.Signal(syscall.SIGTERM)
	if e := <-s.ended; e.Code != 7 {
		t.Errorf("it %s, and was to heed SIGTERM", e)
	}
}
