package keeper

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// reader is a process that ends well at the end of its input.
type reader struct {
	*exec.Cmd
	input io.Closer
}

// startReader starts a reader that has files open.
func startReader(t *testing.T, files ...*os.File) *reader {
	t.Helper()
	r := &reader{Cmd: exec.Command("cat")}
	r.ExtraFiles = files
	input, err := r.StdinPipe()
	if err == nil {
		err = r.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.input = input
	return r
}

// end ends the input of a reader, and returns how it has ended.
func (r *reader) end() string {
	r.input.Close()
	_ = r.Wait() // its state says it
	return r.ProcessState.String()
}

// What a part is to end is its launcher, and not a process that has got its number.
func TestKillHitsNoOther(t *testing.T) {
	h := newHost(Config{Dir: t.TempDir()}, nil)
	p := newPart(h, "big")
	lock, err := os.Create(h.path(p.name, lockSuffix))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := durable.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if p.kill(); p.killing.IsZero() { // who has started it was killed before it wrote that
		t.Error("a launcher whose number is not known yet is not asked to end later")
	}
	p.killing = time.Time{}
	other, run := startReader(t), startReader(t, lock)
	p.saved.PID = other.Process.Pid
	p.kill()
	if how := other.end(); how != "exit status 0" {
		t.Errorf("another process of the number of the launcher: %s", how)
	}
	if p.killing.IsZero() {
		t.Error("the end is not asked for again")
	}
	p.saved.PID = run.Process.Pid
	p.kill()
	if how := run.end(); how != "signal: terminated" {
		t.Errorf("the launcher: %s", how)
	}
}

// The exit status of a child is not taken for that of the launcher of a part which an earlier
// keeper has started, and which had its number.
func TestReapTakesNoOther(t *testing.T) {
	p := newPart(newHost(Config{Dir: t.TempDir()}, nil), "big")
	other := startReader(t)
	p.saved.PID = other.Process.Pid
	other.input.Close()
	if err := unix.Waitid(unix.P_PID, p.saved.PID, nil, unix.WEXITED|unix.WNOWAIT,
		nil); err != nil {
		t.Fatal(err)
	}
	p.reap()
	if err := other.Wait(); err != nil || p.exit != nil {
		t.Errorf("the part has %v, and its own part %v", p.exit, err)
	}
}

// A job that a person has started under the name of a job of the pool is not taken for that.
func TestLauncherOfAnotherJob(t *testing.T) {
	p := newPart(newHost(Config{Dir: t.TempDir()}, nil), "big")
	j := control.AtSocket("")
	j.Name, j.PID, j.Dir = "big", os.Getpid(), t.TempDir()
	for _, pid := range []int{0, j.PID} {
		p.saved.PID = pid
		if !p.isLauncher(j) {
			t.Error("a launcher that cannot be seen here is not found")
		}
	}
	var open []*os.File
	for i, path := range []string{runs.LedgerPath(j.Dir), p.host.path(p.name, lockSuffix)} {
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, file)
		for _, pid := range []int{0, j.PID} {
			p.saved.PID = pid
			if is := p.isLauncher(j); is != (i == 1) {
				t.Errorf("with %d of its files open, by its number %d: %t", len(open), pid, is)
			}
		}
	}
	for _, file := range open {
		file.Close()
	}
}
