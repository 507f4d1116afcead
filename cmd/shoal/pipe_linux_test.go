package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A signal ends a command that reads from a pipe to which nobody writes.
func TestSignalsEndAReadOfAPipe(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{
		{"run", "-f", pipe},
		{"agent", "--join", "127.0.0.1:1", "--token-file", pipe},
	} {
		for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130,
			syscall.SIGTERM: 143} {
			cmd := exec.CommandContext(t.Context(), "shoal", words...)
			cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir)
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when the command reads
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != code {
				t.Errorf("%v after %v: exit code %d, want %d: %s", words, signal, got, code, &said)
			}
			w.Close()
		}
	}
}
