package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/shoal-ml/shoal/client"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"shoal":    main,
		"joiner":   joiner,
		"trainer":  trainer,
		"fallible": fallible,
		"natsd":    natsd,
		"recorded": recorded,
	})
}

// joiner is a worker that joins, meets the others and leaves; with an argument it waits for them
// for ever.
func joiner() {
	ctx := context.Background()
	j, err := client.Join(ctx)
	if err == nil {
		fmt.Printf("joined as %d of %d\n", j.Rank(), j.Size())
		err = client.Barrier(ctx, j)
	}
	if err == nil && len(os.Args) > 1 {
		fmt.Println("waiting")
		err = client.RecvFrom(ctx, j, make([]float32, 1), (j.Rank()+1)%j.Size())
	}
	if err == nil {
		err = j.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestScripts runs testdata/*.txtar. Beside testscript's own commands they have "exits CODE
// command…", which is exec with an exact exit code, "empty DIR", which holds when nothing is in it
// or it is missing, and "until REGEXP command…", which runs a command again and again until its
// output matches.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("XDG_RUNTIME_DIR", filepath.Join(env.WorkDir, "run"))
			env.Setenv("RUNS", filepath.Join(env.WorkDir, "state", "shoal", "runs"))
			return os.Mkdir(filepath.Join(env.WorkDir, "run"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits,
			"empty": empty, "until": until},
	})
}

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

// fallible is the worker of the demo, which SIGUSR1 makes fail in mid-step, as an exception would:
// it exits with code 1.
func fallible() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	if err := demoWork(ctx, math.MaxInt32, io.Discard); err != nil {
		os.Exit(1)
	}
}
