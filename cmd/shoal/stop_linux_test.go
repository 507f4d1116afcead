package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A runProcess is a shoal run in a process of its own, for the goroutine of the test. Its workers
// and all that these start hold a named pipe open, so that the end of the last of them is the end
// of the file.
type runProcess struct {
	*exec.Cmd
	alive   *bufio.Reader // "up" for each process that is up, then EOF when all have ended
	runtime string        // folder of its sockets
	output  bytes.Buffer  // all that it prints; read it after Wait
}

// startRun starts a script as n workers and waits until up of their processes have written the line
// "up" to descriptor 9. The end of the test kills the launcher and removes its files; a failure
// ends the test.
func startRun(t *testing.T, n, up int, script string) *runProcess {
	t.Helper()
	dir, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	fifo := filepath.Join(dir, "alive")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	l := &runProcess{runtime: filepath.Join(dir, "shoal")}
	l.Cmd = exec.Command("shoal", "run", "-n", strconv.Itoa(n), "--log-dir", dir, "--", "sh", "-c",
		"exec 9>"+fifo+"; "+script)
	l.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	l.Stdout, l.Stderr = &l.output, &l.output
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Process.Kill() }) // ended already, unless the test has failed
	file, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	l.alive = bufio.NewReader(file)
	for range up {
		if line, err := l.alive.ReadString('\n'); err != nil || line != "up\n" {
			l.Process.Kill()
			l.Wait()
			t.Fatalf("%q, %v; output:\n%s", line, err, &l.output)
		}
	}
	return l
}

// openGuard returns a pidfd of the launcher's guard process, until the test ends; it ends the test
// where there is none.
func (l *runProcess) openGuard(t *testing.T) int {
	t.Helper()
	for _, pid := range childPIDs(t, l.Process.Pid) {
		words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.HasPrefix(string(words), "shoal-guard\x00") {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			return fd
		}
	}
	t.Fatal("the launcher has no guard")
	return -1
}

// childPIDs returns the ids of the child processes of a process; it skips the test on a kernel that
// does not list them.
func childPIDs(t *testing.T, parent int) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil || len(lists) == 0 {
		t.Skip("this kernel does not list the children of a process")
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that has just ended
		}
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// awaitEnd waits for the launcher and then for all its processes, and returns how the launcher
// ended. It is called once; what went wrong fails the test, which goes on.
func (l *runProcess) awaitEnd(t *testing.T) *os.ProcessState {
	t.Helper()
	var ee *exec.ExitError
	if err := l.Wait(); err != nil && !errors.As(err, &ee) {
		t.Error(err)
	}
	if rest, err := io.ReadAll(l.alive); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	return l.ProcessState
}

// checkNoFiles fails the test if the launcher, which has ended, has left a file.
func (l *runProcess) checkNoFiles(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(l.runtime)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// signal sends a signal to the launcher, and ends the test where it cannot.
func (l *runProcess) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := l.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// family is a worker with a child, a grandchild in another session, and a daemon whose parent has
// ended.
const family = `
	sh -c 'echo up >&9; sleep 1000' &
	setsid sh -c 'echo up >&9; sleep 1000' &
	(setsid sh -c 'echo up >&9; sleep 1000' &)
	echo up >&9; wait`

// TestNothingOutlivesAKilledLauncher kills the launcher: its guard ends all processes of the
// workers.
func TestNothingOutlivesAKilledLauncher(t *testing.T) {
	l := startRun(t, 2, 8, family)
	guard := l.openGuard(t)
	l.signal(t, syscall.SIGKILL)
	l.awaitEnd(t)
	awaitPidfd(t, guard)
	l.checkNoFiles(t)
}

// awaitPidfd waits for the end of the process of a pidfd, without a limit; an error ends the test.
func awaitPidfd(t *testing.T, fd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n == 1 {
			return
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

// TestNothingOutlivesAnInterrupt interrupts the launcher: all processes of the workers end, and no
// file stays.
func TestNothingOutlivesAnInterrupt(t *testing.T) {
	l := startRun(t, 2, 8, family)
	l.signal(t, os.Interrupt)
	if code := l.awaitEnd(t).ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130\n%s", code, &l.output)
	}
	if !strings.Contains(l.output.String(), "job sh was stopped: SIGINT") {
		t.Errorf("output:\n%s", &l.output)
	}
	l.checkNoFiles(t)
}

// TestNothingOutlivesAFailure has a worker fail: all processes of the others end, and no file
// stays.
func TestNothingOutlivesAFailure(t *testing.T) {
	l := startRun(t, 2, 8, strings.TrimSuffix(family, "wait")+`
		until [ $RANK = 1 ] && [ -e "$XDG_RUNTIME_DIR/fail" ]; do sleep 0.01; done; exit 1`)
	if err := os.WriteFile(filepath.Join(filepath.Dir(l.runtime), "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := l.awaitEnd(t).ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1\n%s", code, &l.output)
	}
	l.checkNoFiles(t)
}

// TestWorkersMayEndPolitely checks that workers can end by themselves after SIGTERM.
func TestWorkersMayEndPolitely(t *testing.T) {
	l := startRun(t, 2, 2,
		`trap 'echo bye from $RANK; exit 0' TERM; echo up >&9; while :; do sleep 0.01; done`)
	l.signal(t, syscall.SIGTERM)
	if code := l.awaitEnd(t).ExitCode(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	for _, want := range []string{"[0] bye from 0\n", "[1] bye from 1\n"} {
		if !strings.Contains(l.output.String(), want) {
			t.Errorf("no %q in\n%s", want, &l.output)
		}
	}
}

// TestStubbornWorkersAreKilled checks that a second signal ends workers that ignore the first.
func TestStubbornWorkersAreKilled(t *testing.T) {
	l := startRun(t, 2, 2, `trap "" TERM; echo up >&9; while :; do sleep 0.01; done`)
	l.signal(t, os.Interrupt)
	l.signal(t, os.Interrupt)
	if code := l.awaitEnd(t).ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	l.checkNoFiles(t)
}

// TestInnerRunEndsWithTheOuter kills a launcher whose worker is a launcher: the workers of both
// end.
func TestInnerRunEndsWithTheOuter(t *testing.T) {
	l := startRun(t, 1, 2, `export FAMILY='setsid sh -c "echo up >&9; sleep 1000" & echo up >&9; wait'
		shoal run --log-dir "$XDG_RUNTIME_DIR" --name inner -- sh -c "exec 9>$XDG_RUNTIME_DIR/alive; $FAMILY"`)
	l.signal(t, syscall.SIGKILL)
	l.awaitEnd(t)
}
