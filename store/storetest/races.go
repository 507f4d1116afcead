package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/store"
)

// The functions with a Server are tests of Run: the server is empty, and t's own.

// createRace has twelve goroutines create one key at once: one of them succeeds.
func createRace(t *testing.T, server Server) {
	clients := []store.Store{openClient(t, server), openClient(t, server), openClient(t, server)}
	for round := range 10 {
		key := fmt.Sprintf("race.%d", round)
		var winner atomic.Int64
		runTogether(t, 12, func(i int) error {
			_, err := clients[i%len(clients)].Create(t.Context(), key, fmt.Append(nil, i+1))
			if err == nil && !winner.CompareAndSwap(0, int64(i+1)) {
				return fmt.Errorf("%d and %d both created %s", winner.Load(), i+1, key)
			}
			if err != nil && !errors.Is(err, store.ErrExists) {
				return err
			}
			return nil
		})
		checkHolds(t, clients[0], key, fmt.Sprint(winner.Load()))
	}
}

// countRace has several goroutines count in one key by reading and updating: no count is lost.
func countRace(t *testing.T, server Server) {
	clients := []store.Store{openClient(t, server), openClient(t, server)}
	mustCreate(t, clients[0], "count", "0")
	const workers, times = 4, 10
	runTogether(t, workers, func(i int) error {
		s := clients[i%len(clients)]
		for done := 0; done < times; {
			e, err := s.Get(t.Context(), "count")
			if err != nil {
				return err
			}
			var n int
			if _, err := fmt.Sscan(string(e.Value), &n); err != nil {
				return err
			}
			_, err = s.Update(t.Context(), "count", fmt.Append(nil, n+1), e.Revision)
			if err == nil {
				done++
			} else if !errors.Is(err, store.ErrConflict) {
				return err
			}
		}
		return nil
	})
	checkHolds(t, clients[0], "count", fmt.Sprint(workers*times))
}
