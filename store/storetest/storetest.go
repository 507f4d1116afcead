// Package storetest holds what every store.Store must do, and what package store makes of one, as
// tests that run over each implementation.
package storetest

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/store"
)

// Server is a store that tests can take away.
type Server interface {
	// Open returns a client; all clients see the same. The suite closes it.
	Open(t testing.TB) store.Store
	// Stop makes the store unreachable for all clients.
	Stop(t testing.TB)
	// Start brings it back, with all that was acknowledged.
	Start(t testing.TB)
}

// Run runs the suite, one test after the other, each as a subtest on a goroutine of its own; fresh
// makes an empty store for one test, and cleans up after it by t.Cleanup.
func Run(t *testing.T, fresh func(t *testing.T) Server) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Server)
	}{
		{"CreateOnce", createOnce},
		{"UpdateWhatWasRead", updateWhatWasRead},
		{"RevisionsGrow", revisionsGrow},
		{"KeysBelow", keysBelow},
		{"ManyKeys", manyKeys},
		{"BadKeysAndValues", badKeysAndValues},
		{"AllSizes", allSizes},
		{"ValuesAreCopies", valuesAreCopies},
		{"ClientsSeeTheSame", clientsSeeTheSame},
		{"Cancelled", callsWithoutTime},
		{"Closed", callsAfterClose},
		{"Model", randomCalls},
		{"CreateRace", createRace},
		{"CountRace", countRace},
		{"ClaimRace", claimRace},
		{"GenerationRace", generationRace},
		{"JobsApart", jobsApart},
		{"StoppedAndBack", stoppedAndBack},
		{"AcknowledgedStays", acknowledgedStays},
		{"RecorderGoesOn", recorderGoesOn},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Cleanup(func() { checkLeaks(t) }) // after those of fresh
			test.run(t, fresh(t))
		})
	}
}

// openClient returns a client that is closed when the test ends.
func openClient(t testing.TB, s Server) store.Store {
	t.Helper()
	c := s.Open(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing the store: %v", err)
		}
	})
	return c
}

// runTogether runs f for 0 to n-1 at the same time, each on a goroutine, and waits for all. An
// error ends the test, whose goroutine must be the caller.
func runTogether(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	g := group.New(t.Context())
	start := make(chan struct{})
	for i := range n {
		g.Go("one of many", func(context.Context) error {
			<-start
			return f(i)
		})
	}
	close(start)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// checkLeaks fails the test if a goroutine of a store is left after ten seconds. What Close waited
// for has only its last instructions to run.
func checkLeaks(t *testing.T) {
	t.Helper()
	left := ""
	for start := time.Now(); time.Since(start) < 10*time.Second; runtime.Gosched() {
		if left = storeGoroutines(); left == "" {
			return
		}
	}
	t.Errorf("goroutines that are left:\n%s", left)
}

// storeGoroutines returns the stacks of the goroutines that belong to a store, or to a group of
// this process; "" if there are none.
func storeGoroutines() string {
	buf := make([]byte, 4<<20)
	var left []string
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "/internal/group.") || strings.Contains(stack, "nats-io/") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
