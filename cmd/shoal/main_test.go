package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/cmd/shoal/internal/demo"
	"github.com/shoal-ml/shoal/internal/cli/clitest"
)

// TestMain makes the test program also shoal, and the workers and servers that the scripts start,
// by the name under which it is called.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"shoal":    main,
		"joiner":   runJoiner,
		"trainer":  runTrainer,
		"fallible": runFallible,
		"natsd":    runNATSServer,
		"recorded": printStoredRecord,
	})
}

// runJoiner is a worker that joins, meets the others and leaves; with an argument it waits for them
// for ever. TestMain runs it in a process of its own.
func runJoiner() {
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

// TestScripts runs testdata/*.txtar, with the commands of package clitest.
func TestScripts(t *testing.T) { clitest.Run(t, "testdata") }

// runFallible is the worker of the demo, which SIGUSR1 makes fail in mid-step, as an exception
// would: it exits with code 1. TestMain runs it in a process of its own.
func runFallible() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	if err := demo.Work(ctx, math.MaxInt32, io.Discard); err != nil {
		os.Exit(1)
	}
}
