package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// forks is a template of a test, which runs a script, and what was started with it. Any goroutine
// may call start; the goroutine of the test calls end, last.
type forks struct {
	*Template
	t       *testing.T
	command Command       // what start starts
	group   *group.Group  // goroutines of the template and of the workers
	text    *lockedBuffer // stdout and stderr of all workers
	exits   chan Exit     // of all workers
	why     chan string   // why the template has ended
}

// startForks starts a template that imports a module with this source, for a script with that
// source. The test calls end. Without python3 the test fails.
func startForks(t *testing.T, module, script string) *forks {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	client, err := filepath.Abs("../../python")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"module_of_test.py": module, "script.py": script} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "script.py")
	env := []string{"PYTHONPATH=" + client, "PATH=" + os.Getenv("PATH"), "FOLDER=" + dir}
	f := &forks{t: t, command: Command{Path: python, Args: []string{"python3", path}, Env: env},
		group: group.New(context.Background()), text: &lockedBuffer{seen: make(chan struct{}, 1)},
		exits: make(chan Exit, 100), why: make(chan string, 1)}
	f.Template, err = StartTemplate(f.group, Command{Path: python, Env: env,
		Args: []string{"python3", "-c", "from shoal._runtime.template import main; main()",
			"module_of_test", path}}, filepath.Join(dir, "template.log"),
		func(why string) { f.why <- why })
	if err != nil {
		t.Fatal(err)
	}
	f.command.Template = f.Template
	return f
}

// start starts a worker, with the variable NUMBER of its own. If it cannot the test fails and goes
// on, and the worker is nil.
func (f *forks) start(number int) *Worker {
	out, err := NewOutput(NewConsole(f.text, f.text, 1, false), number,
		filepath.Join(f.t.TempDir(), "log"))
	if err != nil {
		f.t.Error(err)
		return nil
	}
	c := f.command
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], fmt.Sprintf("NUMBER=%d", number))
	w, err := Start(f.group, c, out)
	if err != nil {
		f.t.Error(err)
		return nil
	}
	f.group.Go("wait", func(context.Context) error {
		f.exits <- w.Wait()
		w.ReapGroup()
		return nil
	})
	return w
}

// Workers that are asked for at one time all run, with the variables of their own, and how each
// ends is told.
func TestForks(t *testing.T) {
	const n = 8
	f := startForks(t, "", `
import os, sys
assert "module_of_test" in sys.modules
number = int(os.environ["NUMBER"])
print("number", number, flush=True)
if number == 3: os.kill(os.getpid(), 9)
sys.exit(number)
`)
	for number := range n {
		f.group.Go("start", func(context.Context) error {
			f.start(number)
			return nil
		})
	}
	codes := map[int]int{}
	for range n {
		if e := <-f.exits; e.Signal != 0 {
			codes[-int(e.Signal)]++
		} else {
			codes[e.Code]++
		}
	}
	for _, want := range []int{0, 1, 2, -9, 4, 5, 6, 7} {
		if codes[want] != 1 {
			t.Errorf("%d workers ended with %d, want 1: %v", codes[want], want, codes)
		}
	}
	f.end("signal: killed")
	for number := range n {
		if want := fmt.Sprintf("number %d\n", number); strings.Count(f.text.String(), want) != 1 {
			t.Errorf("%q is not there once: %s", want, f.text)
		}
	}
}

// A fork has the variables of its own byte for byte, also where they are no text.
func TestForkHasBytesInItsEnvironment(t *testing.T) {
	f := startForks(t, "", `
import os
print(os.environb[b"BYTES\xfe"], flush=True)
`)
	f.command.Env = append(f.command.Env, "BYTES\xfe=\xff\xc3\xa9<\x01")
	f.start(0)
	if e := <-f.exits; !e.OK() {
		t.Errorf("the worker %v", e)
	}
	f.end("signal: killed")
	if want := `b'\xff\xc3\xa9<\x01'`; !strings.Contains(f.text.String(), want) {
		t.Errorf("%s, want %s", f.text, want)
	}
}

// end kills the template, and blocks until all goroutines have ended, and so all workers. The
// reason why the template has ended must have the text why, else the test fails.
func (f *forks) end(why string) {
	f.t.Helper()
	f.process.Signal(syscall.SIGKILL)
	if err := f.group.Wait(); err != nil {
		f.t.Error(err)
	}
	if got := <-f.why; !strings.Contains(got, why) {
		f.t.Errorf("the template has ended: %s, want %s", got, why)
	}
}

// Who waits for a template that still imports starts the worker anew when it is stopped.
func TestStoppedTemplate(t *testing.T) {
	f := startForks(t, `
import os
os.mkfifo(os.environ["FOLDER"] + "/fifo")
open(os.environ["FOLDER"] + "/fifo").read()
`, `
import sys
sys.exit("module_of_test" in sys.modules)
`)
	f.group.Go("start", func(context.Context) error {
		f.start(0)
		return nil
	})
	for f.mu.TryLock() { // held by who waits for the template
		f.mu.Unlock()
		runtime.Gosched()
	}
	f.Stop()
	if e := <-f.exits; !e.OK() {
		t.Errorf("the worker %v, want one that has not imported the module", e)
	}
	f.end("signal: killed")
}

// A worker whose template is gone goes on, and how it ends is known.
func TestForkOutlivesItsTemplate(t *testing.T) {
	f := startForks(t, "", `
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a signal before the wait is not lost
print("runs", flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(7)
`)
	w := f.start(0)
	f.text.awaitText("runs")
	f.process.Signal(syscall.SIGKILL)
	w.Signal(syscall.SIGTERM)
	if e := <-f.exits; e.Code != 7 || e.PID != w.PID() {
		t.Errorf("the worker %v, want that it exited with code 7", e)
	}
	f.end("signal: killed")
}

// What a worker has left behind is reaped when it has ended, with a later worker at the latest.
func TestOrphansAreReaped(t *testing.T) {
	f := startForks(t, "", `
import os
if os.fork() == 0:
    os._exit(0)
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # and leaves a zombie
`)
	var workers []int
	for number := range 3 {
		workers = append(workers, f.start(number).PID())
		<-f.exits
	}
	f.end("signal: killed")
	if len(f.groups) > 0 {
		t.Errorf("processes of %d workers are left", len(f.groups))
	}
	for _, w := range workers {
		if _, err := syscall.Wait4(-w, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
			t.Errorf("this process is the parent of processes of worker %d: %v", w, err)
		}
	}
}
