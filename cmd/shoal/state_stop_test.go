package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// TestStateStops has a command wait for what comes in, which never ends, and asks it to stop.
func TestStateStops(t *testing.T) {
	var errs bytes.Buffer
	cmd := exec.Command("shoal", "state", "layout", "-")
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// ended already, unless the test has failed
	t.Cleanup(func() { cmd.Process.Kill() })
	// more than a pipe has room for, so it reads
	if _, err := in.Write(bytes.Repeat([]byte(" "), 4<<20)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code says more
	if code := cmd.ProcessState.ExitCode(); code != 130 || errs.String() != "shoal: SIGINT\n" {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
