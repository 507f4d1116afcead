package agent_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// A host is crowded while it has more workers than cores. Workers that have ended count no more,
// however many a long job has replaced.
func TestEndedWorkersDoNotCrowdAHost(t *testing.T) {
	for ended := range 2 {
		t.Run(fmt.Sprint(ended, " ended"), func(t *testing.T) {
			a := startAgentOf(t, context.Background(), agent.Config{Size: 1, Max: 100})
			cores := runtime.NumCPU()
			for worker := 1; worker <= cores; worker++ {
				a.ExpectWorker(worker, true)
				a.WorkerStarted(worker)
			}
			for worker := 1; worker <= ended; worker++ {
				a.WorkerLost(worker, "was killed by SIGKILL")
			}
			crowded := joinRaw(t, a, 0).joined.Crowded
			if want := ended == 0; crowded != want {
				t.Errorf("with %d workers on %d cores the host is crowded: %t",
					cores+1-ended, cores, crowded)
			}
		})
	}
}

// A worker is forgotten when its process and its conversation have ended, whichever ends first, and
// its secret then opens nothing.
func TestEndedWorkersAreForgotten(t *testing.T) {
	a := startAgentOf(t, context.Background(), agent.Config{Size: 1, Max: 100})
	joinRaw(t, a, 0)
	for worker := 1; worker <= 6; worker++ {
		token := a.ExpectWorker(worker, true)
		a.WorkerStarted(worker)
		end := func() { a.WorkerLost(worker, "was killed by SIGKILL") }
		if worker%3 == 0 { // it never joins
			end()
			continue
		}
		w := joinRawWithToken(t, a, worker, token)
		if worker%3 == 1 {
			end()
			if n := a.KnownWorkers(); n != 2 {
				t.Errorf("%d workers are known while one that has ended can be heard, want 2", n)
			}
		}
		w.conn.Close()
		if worker%3 == 2 {
			end()
		}
		for a.KnownWorkers() > 1 { // the agent hears of the end on a goroutine of the conversation
			runtime.Gosched()
		}
		r, _ := dialRaw(t, a).request(&api.JoinRequest{Protocol: arena.Protocol, Client: "raw",
			Rank: worker, Token: token})
		if want := "is no worker that this host has started and that lives"; r.Type != "error" ||
			!strings.Contains(r.Error, want) {
			t.Errorf("a worker of the number of one that has ended gets %+v", r)
		}
	}
	if n := a.KnownWorkers(); n != 1 {
		t.Errorf("%d workers are known, want the 1 that lives", n)
	}
}

// A client whose requests can be interrupted must tell which answer is to which, also where one is
// an error.
func TestAnswersRepeatTheSerial(t *testing.T) {
	a := startAgent(t, 2)
	w := joinRaw(t, a, 1)
	for i, message := range []any{
		map[string]any{"type": "segment", "serial": 41, "bytes": 1},
		map[string]any{"type": "free", "serial": 1 << 60, "id": 9},
		map[string]any{"type": "segment", "serial": 7, "colour": "red"},
		&api.SegmentRequest{Bytes: 1},
	} {
		r, fds := w.request(message)
		arena.CloseFDs(fds)
		if want := []uint64{41, 1 << 60, 7, 0}[i]; r.Serial != want {
			t.Errorf("%v: the answer has serial %d, want %d: %+v", message, r.Serial, want, r)
		}
	}
}

// A request for a group that is made again, since the worker may not have got the answer, counts
// once. Else it would be for another group than that of the other members.
func TestARequestForAGroupCountsOnce(t *testing.T) {
	a := startAgent(t, 2)
	w, other := joinRaw(t, a, 0), joinRaw(t, a, 1)
	ask := func(w *rawWorker, serial int) uint32 {
		t.Helper()
		r, _ := w.request(map[string]any{"type": "group", "serial": serial, "ranks": []int{0, 1}})
		if r.Error != "" || r.Serial != uint64(serial) {
			t.Fatalf("request %d: %+v", serial, r)
		}
		return r.ID
	}
	first, second := ask(w, 5), ask(w, 6)
	if again := ask(w, 5); again != first || second == first {
		t.Errorf("groups %d and %d; the request for the first one that is made again gets %d",
			first, second, again)
	}
	for i, want := range []uint32{first, second} { // without a serial each counts
		if got := ask(other, 0); got != want {
			t.Errorf("request %d of the other member gets group %d, want %d", i, got, want)
		}
	}
	newest := uint32(0)
	for serial := range 20 {
		newest = ask(w, 100+serial)
	}
	if again := ask(w, 119); again != newest {
		t.Errorf("the newest of many requests gets group %d, and %d when it is made again", newest,
			again)
	}
}

// Who goes on from a checkpoint with another batch learns which data that is of, and what to do.
func TestAPlaceInOtherDataIsDescribed(t *testing.T) {
	w := joinRaw(t, startAgent(t, 1), 0)
	place, err := cursor.Cursor{Samples: 96, Batch: 8, Seed: 7}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := w.request(&api.DataRequest{Samples: 96, Batch: 12, Seed: 7, Shuffle: true,
		Cursor: place})
	for _, want := range []string{"a place in 96 samples in batches of 8, shuffled with seed 7",
		"trains on 96 samples in batches of 12", "give it the data, the batch and the seed"} {
		if r.Type != "error" || !strings.Contains(r.Error, want) {
			t.Errorf("%+v, want %q", r, want)
		}
	}
}
