package storetest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/topo"
)

// The functions with a Server are tests of Run, each on the goroutine of its subtest: the server is
// empty, and t's own.

// stoppedAndBack checks that calls fail while the store is stopped, and that what it held is there
// afterwards.
func stoppedAndBack(t *testing.T, server Server) {
	s := openClient(t, server)
	r := mustCreate(t, s, "a", "one")
	server.Stop(t)
	_, e1 := s.Get(t.Context(), "a")
	_, e2 := s.Create(t.Context(), "b", nil)
	_, e3 := s.Update(t.Context(), "a", nil, r)
	_, e4 := s.Keys(t.Context(), "a")
	for _, err := range []error{e1, e2, e3, e4} {
		checkKind(t, "stopped", err, store.ErrUnavailable)
	}
	server.Start(t)
	retryWhileAway(t, func() error {
		_, err := s.Get(t.Context(), "a")
		return err
	})
	checkHolds(t, s, "a", "one")
	if _, err := s.Update(t.Context(), "a", []byte("two"), r); err != nil {
		t.Error(err)
	}
}

// retryWhileAway calls f on its caller's goroutine until that succeeds, or the test is over; any
// error but ErrUnavailable ends the test.
func retryWhileAway(t testing.TB, f func() error) {
	t.Helper()
	err := f()
	for t.Context().Err() == nil && err != nil {
		checkKind(t, "back", err, store.ErrUnavailable)
		runtime.Gosched()
		err = f()
	}
}

// acknowledgedStays stops the store while several write, and checks that every acknowledged write
// is there afterwards.
func acknowledgedStays(t *testing.T, server Server) {
	s := openClient(t, server)
	const writers, rounds = 4, 3
	for round := range rounds {
		wrote := make(chan struct{})
		var acknowledged [writers]int
		runTogether(t, writers+1, func(i int) error {
			if i == writers { // stops the store when every writer may have written some
				for range 4 * writers {
					<-wrote
				}
				server.Stop(t)
				return nil
			}
			for n := 0; ; n++ {
				_, err := s.Create(t.Context(), fmt.Sprintf("kept.%d.%d.%d", round, i, n),
					fmt.Append(nil, n))
				if err != nil {
					return nil // it is stopped
				}
				acknowledged[i] = n + 1
				select {
				case wrote <- struct{}{}:
				default: // it has seen enough, or will see the next
				}
			}
		})
		server.Start(t)
		retryWhileAway(t, func() error {
			_, err := s.Keys(t.Context(), "kept")
			return err
		})
		for i, n := range acknowledged {
			for k := range n {
				checkHolds(t, s, fmt.Sprintf("kept.%d.%d.%d", round, i, k), fmt.Sprint(k))
			}
		}
	}
}

// recorderGoesOn checks that nobody waits while the store is away, and that in the end everything
// is there.
func recorderGoesOn(t *testing.T, server Server) {
	s := openClient(t, server)
	lines := make(chan string, 100)
	r := store.NewRecorder(func(line string) { lines <- line })
	r.SetHost("h2", "h2:7000")
	r.SetRecord(s, "digits", "run1", 0)
	if err := Claim(t.Context(), s, owner("run1", "h1"), false); err != nil {
		t.Fatal(err)
	}
	last := func(g topo.Generation) member.Record {
		r := Record(g, "h2")
		r.Since = 2
		return r
	}
	r.AddGeneration(Record(1, "h1"))
	r.AddGeneration(last(2))
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	for g := topo.Generation(3); g <= 6; g++ {
		r.AddGeneration(last(g))
	}
	if line := <-lines; !strings.Contains(line,
		"is unreachable: training goes on, membership changes are recorded later") {
		t.Errorf("reported %q", line)
	}
	server.Start(t)
	if err := r.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if line := <-lines; !strings.Contains(line, "answers again") {
		t.Errorf("reported %q", line)
	}
	if len(lines) > 0 {
		t.Errorf("reported too much: %q", <-lines)
	}
	j := NewJournal(s, "digits", "run1")
	if all, err := j.Generations(t.Context()); err != nil ||
		!slices.Equal(all, []topo.Generation{1, 2, 3, 4, 5, 6}) {
		t.Errorf("recorded %v (%v)", all, err)
	}
	if newest, err := j.Newest(t.Context()); err != nil || !newest.Equal(last(6)) {
		t.Errorf("the newest is %v (%v)", newest, err)
	}
	if o, err := store.Find(t.Context(), s, "digits"); err != nil || o.Host != "h2" ||
		o.Address != "h2:7000" || o.Generation != 2 || o.Ended.IsZero() {
		t.Errorf("led by %v (%v)", o, err)
	}
}
