package keeper

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/internal/durable"
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
	other, launcher := startReader(t), startReader(t, lock)
	p.saved.PID = other.Process.Pid
	p.kill()
	if how := other.end(); how != "exit status 0" {
		t.Errorf("another process of the number of the launcher: %s", how)
	}
	if p.killing.IsZero() {
		t.Error("the end is not asked for again")
	}
	p.saved.PID = launcher.Process.Pid
	p.kill()
	if how := launcher.end(); how != "signal: terminated" {
		t.Errorf("the launcher: %s", how)
	}
}
