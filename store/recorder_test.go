package store_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/mem"
	"github.com/shoal-ml/shoal/store/storetest"
	"github.com/shoal-ml/shoal/topo"
)

// withRecorder runs f with a recorder and its store in a synctest bubble, whose clock jumps when
// everybody waits. f closes the recorder before it returns; then it may read lines, which are what
// the recorder has reported.
func withRecorder(t *testing.T,
	f func(t *testing.T, server *mem.Server, r *store.Recorder, lines *[]string)) {
	synctest.Test(t, func(t *testing.T) {
		server := mem.New()
		var lines []string
		r := store.NewRecorder(func(line string) { lines = append(lines, line) })
		r.SetHost("h1", "10.0.0.1:7000")
		r.SetRecord(server.Open(), "digits", "run1", 0)
		f(t, server, r, &lines)
	})
}

// recordedGenerations returns the generations in the record of run1, ascending. It ends the test if
// the store does not answer.
func recordedGenerations(t *testing.T, server *mem.Server) []topo.Generation {
	t.Helper()
	all, err := storetest.NewJournal(server.Open(), "digits", "run1").Generations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRecorderBacksOff checks the pauses while the store is away, and that it is reported once.
func TestRecorderBacksOff(t *testing.T) {
	withRecorder(t, func(t *testing.T, server *mem.Server, r *store.Recorder, lines *[]string) {
		attempts, last := 0, time.Now() // by the clock of the bubble
		pause := 50 * time.Millisecond
		server.SetFaults(func(mem.Op, string) mem.Fate { // down for about twelve minutes
			if waited := time.Since(last); attempts > 0 && attempts <= 150 && waited != pause {
				t.Errorf("attempt %d after %v, want %v", attempts, waited, pause)
			} else if attempts > 0 {
				pause = min(2*pause, 5*time.Second)
			}
			last = time.Now()
			if attempts++; attempts <= 150 {
				return mem.Lost
			}
			return mem.Works
		})
		for g := topo.Generation(1); g <= 3; g++ {
			r.AddGeneration(storetest.Record(g, "h1"))
		}
		if err := r.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if attempts != 150+2+3 { // the head, and three generations
			t.Errorf("%d attempts", attempts)
		}
		if got := recordedGenerations(t, server); !slices.Equal(got, []topo.Generation{1, 2, 3}) {
			t.Errorf("recorded %v", got)
		}
		if err := r.Close(t.Context(), false); err != nil {
			t.Error(err)
		}
		if len(*lines) != 2 ||
			!strings.HasPrefix((*lines)[0],
				"the store in memory is unreachable: training goes on") ||
			!strings.Contains((*lines)[1], "answers again: 3 membership changes") {
			t.Errorf("reported %q", *lines)
		}
	})
}

// TestNobodyWaitsForTheStore: who tells of a generation goes on while the store hangs in the middle
// of a call (C5). Else this test never ends.
func TestNobodyWaitsForTheStore(t *testing.T) {
	withRecorder(t, func(t *testing.T, server *mem.Server, r *store.Recorder, lines *[]string) {
		asked, hung := make(chan struct{}, 1), make(chan struct{})
		server.SetFaults(func(mem.Op, string) mem.Fate {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-hung
			return mem.Works
		})
		r.AddGeneration(storetest.Record(1, "h1"))
		<-asked
		for g := topo.Generation(2); g <= 5; g++ {
			r.AddGeneration(storetest.Record(g, "h1"))
		}
		close(hung)
		if err := r.Close(t.Context(), false); err != nil {
			t.Error(err)
		}
		if got := recordedGenerations(t, server); len(got) != 5 {
			t.Errorf("recorded %v", got)
		}
	})
}

// TestRecorderWritesInOrder checks that generations are written in order though calls fail and
// answers are lost.
func TestRecorderWritesInOrder(t *testing.T) {
	withRecorder(t, func(t *testing.T, server *mem.Server, r *store.Recorder, lines *[]string) {
		var order []string
		n := 0
		server.SetFaults(func(op mem.Op, key string) mem.Fate {
			n++
			if op == mem.Create && strings.HasPrefix(key, "generation.") {
				order = append(order, key)
			}
			switch n % 4 {
			case 1:
				return mem.Lost
			case 2:
				return mem.Unheard
			}
			return mem.Works
		})
		for g := topo.Generation(1); g <= 20; g++ {
			r.AddGeneration(storetest.Record(g, "h1"))
		}
		if err := r.Close(t.Context(), false); err != nil {
			t.Error(err)
		}
		if !slices.IsSorted(order) {
			t.Errorf("written in the order %v", order)
		}
		server.SetFaults(nil)
		if got := recordedGenerations(t, server); len(got) != 20 {
			t.Errorf("recorded %v", got)
		}
	})
}

// TestRecorderIsBounded checks that the oldest generations are left out when too many wait.
func TestRecorderIsBounded(t *testing.T) {
	withRecorder(t, func(t *testing.T, server *mem.Server, r *store.Recorder, lines *[]string) {
		server.SetFaults(func(mem.Op, string) mem.Fate { return mem.Lost })
		for g := topo.Generation(1); g <= 1500; g++ {
			r.AddGeneration(storetest.Record(g, "h1"))
		}
		synctest.Wait()
		server.SetFaults(nil)
		if err := r.Close(t.Context(), false); err != nil {
			t.Error(err)
		}
		got := recordedGenerations(t, server)
		if len(got) != 1024 || got[0] != 1 || got[1023] != 1500 {
			t.Errorf("recorded %d generations, from %d to %d", len(got), got[0], got[len(got)-1])
		}
		if last := (*lines)[len(*lines)-1]; !strings.Contains(last, "476 older ones are not") {
			t.Errorf("reported %q", last)
		}
	})
}

// TestRecorderGivesUpOnlyWhenTold closes a recorder whose store is away: it waits until its context
// ends, and says what is not recorded.
func TestRecorderGivesUpOnlyWhenTold(t *testing.T) {
	withRecorder(t, func(t *testing.T, server *mem.Server, r *store.Recorder, lines *[]string) {
		server.SetFaults(func(mem.Op, string) mem.Fate { return mem.Lost })
		r.Lead()
		r.AddGeneration(storetest.Record(1, "h1"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := r.Close(ctx, false); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "2 membership changes are not recorded") {
			t.Errorf("closed with %v", err)
		}
		if len(*lines) != 1 {
			t.Errorf("reported %q", *lines)
		}
	})
}

// TestRecorderReportsWhatCannotBe: neither another head nor a second record of a generation keeps
// the rest from being written.
func TestRecorderReportsWhatCannotBe(t *testing.T) {
	withRecorder(t, func(t *testing.T, server *mem.Server, r *store.Recorder, lines *[]string) {
		s, ctx := server.Open(), t.Context()
		if err := storetest.Claim(ctx, s, owner("run0", "h9", 0), false); err != nil {
			t.Fatal(err)
		}
		if err := storetest.NewJournal(s, "digits", "run1").Write(ctx,
			storetest.Record(1, "h9")); err != nil {
			t.Fatal(err)
		}
		r.Lead()
		for g := topo.Generation(1); g <= 2; g++ {
			decided := storetest.Record(g, "h1")
			decided.Since = 0 // as the head that began the job
			r.AddGeneration(decided)
		}
		if err := r.Close(ctx, false); err != nil {
			t.Error(err)
		}
		if len(*lines) != 2 || !strings.Contains((*lines)[0], "led by host h9") ||
			!strings.Contains((*lines)[1], "two records of one generation") {
			t.Errorf("reported %q", *lines)
		}
		if got := recordedGenerations(t, server); !slices.Equal(got, []topo.Generation{1, 2}) {
			t.Errorf("recorded %v", got)
		}
	})
}
