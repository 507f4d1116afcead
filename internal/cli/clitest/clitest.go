// Package clitest runs scripts that test command lines. Scripts run beside each other, each on a
// goroutine of its own, which calls the commands here; they block until their program has ended.
package clitest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// Run runs the scripts *.txtar of a folder, in a home of their own. Beside testscript's own
// commands they have those of Commands. The TestMain of the package has made the programs known by
// testscript.Main. The home is removed with the script's folder, and at the end of a script, failed
// or not, all processes that it has started are killed, so that none slows later tests.
func Run(t *testing.T, dir string) { testscript.Run(t, params(dir)) }

// params says how the scripts of a folder run.
func params(dir string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("XDG_RUNTIME_DIR", filepath.Join(env.WorkDir, "run"))
			env.Setenv("RUNS", filepath.Join(env.WorkDir, "state", "shoal", "runs"))
			env.Defer(func() { killAllOf(env.WorkDir) })
			return os.Mkdir(filepath.Join(env.WorkDir, "run"), 0o700)
		},
		Cmds: Commands(),
	}
}

// killAllOf kills the processes that a script with this folder has started, and those that they
// have, and blocks until none is left, or for up to dying. Before that testscript would interrupt
// what runs in the background, where a shell does not pass that on, and wait for it.
func killAllOf(work string) {
	for deadline := time.Now().Add(dying); time.Now().Before(deadline); {
		found := processesOf(work)
		if len(found) == 0 {
			return
		}
		for _, pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// dying bounds how long processes may take to end once they are killed.
const dying = 5 * time.Second

// processesOf lists the processes that live and have the environment of a script with this folder.
// It reads /proc, and finds none where there is no such folder.
func processesOf(work string) (list []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // it may have ended
		if slices.Contains(strings.Split(string(text), "\x00"), "WORK="+work) {
			list = append(list, pid)
		}
	}
	return list
}

// Commands returns the commands "exits CODE command…", which is exec with an exact exit code,
// "empty DIR", which holds when nothing is in it or it is missing, and "until REGEXP command…",
// which runs a command again and again until its output matches.
func Commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "empty": empty,
		"until": until}
}

// exits is the command exits CODE command…: it runs a command and fails the script unless that ends
// with this code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command [args…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var ee *exec.ExitError
		if !errors.As(err, &ee) {
			ts.Fatalf("%v", err)
		}
		got = ee.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// empty is the command empty DIR: it fails the script unless the folder is empty or missing.
func empty(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: empty DIR")
	}
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	if err != nil && !os.IsNotExist(err) {
		ts.Check(err)
	}
	if len(entries) > 0 {
		ts.Fatalf("%s holds %v", args[0], entries)
	}
}

// until is the command until REGEXP command…: it runs a command again and again until its output
// matches. It stands for a person who looks again; the deadline of the test bounds it.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP command [args…]")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for {
		switch err := ts.Exec(args[1], args[2:]...); {
		case err == nil && want.MatchString(ts.ReadFile("stdout")):
			return
		case errors.Is(err, context.DeadlineExceeded):
			ts.Fatalf("%q never matched the output of %q", args[0], args[1:])
		}
	}
}
