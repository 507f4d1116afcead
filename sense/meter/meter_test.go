package meter_test

import (
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/meter"
)

// metered is a meter and what it told. The goroutine of the test uses it.
type metered struct {
	meter.AllReduces
	told []cost.Sample
}

// starts begins a transfer of each of some lengths, at a time in milliseconds.
func (w *metered) starts(ms int, kind collective.Kind, bytes ...int) {
	for _, n := range bytes {
		w.BeginTransfer(cost.Sample{Route: collective.DefaultRoute(n), Hosts: 3, Bytes: n}, kind,
			timeAt(ms))
	}
}

// ends ends so many transfers, at a time in milliseconds.
func (w *metered) ends(ms, transfers int) {
	w.EndTransfers(transfers, timeAt(ms), func(s cost.Sample) { w.told = append(w.told, s) })
}

// wantTold fails the test unless these samples were told since it was last called: pairs of bytes
// and milliseconds.
func (w *metered) wantTold(t *testing.T, want ...int) {
	t.Helper()
	var got []int
	for _, s := range w.told {
		got = append(got, s.Bytes, int(1e3*s.Seconds+0.5))
	}
	w.told = nil
	if len(got) != len(want) {
		t.Fatalf("told %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("told %v, want %v", got, want)
		}
	}
}

// timeAt returns the time so many milliseconds after the first.
func timeAt(ms int) sense.Duration { return sense.Second + sense.Duration(ms)*sense.Second/1000 }

const mib = 1 << 20

// Transfers that are under way together share the time of their busy period by their bytes.
func TestBusyPeriods(t *testing.T) {
	w := &metered{}
	w.starts(0, collective.AllReduce, mib)
	w.ends(10, 1)
	w.wantTold(t, mib, 10) // alone

	w.starts(20, collective.AllReduce, 4*mib, 4)
	w.ends(21, 1)
	w.wantTold(t)
	w.ends(40, 1)
	w.wantTold(t, 4*mib, 20) // with a number that all share

	w.starts(100, collective.AllReduce, mib)
	w.starts(105, collective.AllReduce, 2*mib)
	w.ends(115, 1)
	w.starts(116, collective.AllReduce, mib+4)
	w.ends(140, 1) // the last one's news come before those of the one that ended later
	w.ends(136, 1)
	w.wantTold(t, mib, 10, 2*mib, 20) // buckets of a step that overlap, one of each class
	w.ends(150, 0)
	w.wantTold(t)

	w.starts(200, collective.Broadcast, 3*mib)
	w.starts(200, collective.AllReduce, mib, 2*mib)
	w.starts(200, collective.Barrier, 0)
	w.ends(260, 4)
	w.wantTold(t, 2*mib, 20)

	w.starts(300, collective.AllReduce, mib, mib)
	w.ends(310, 1)
	w.AbortTransfers(1)
	w.ends(320, 0)
	w.wantTold(t) // what was given up says nothing

	w.starts(400, collective.AllReduce, mib)
	w.starts(400, collective.Reshape, 0)
	w.ends(410, 2)
	w.wantTold(t)

	w.starts(500, collective.AllReduce, mib)
	w.ends(507, 1)
	w.wantTold(t, mib, 7)
}

// Whatever overlaps, no more time is told than has passed.
func TestMeterTellsNoMoreThanPassed(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	w, now, open := &metered{}, 0, 0
	for range 1000 {
		now += 1 + rng.IntN(10)
		if open == 0 || rng.IntN(2) == 0 {
			w.starts(now, collective.AllReduce, 1+rng.IntN(mib))
			open++
		} else {
			w.ends(now, 1)
			open--
		}
	}
	w.ends(now, open)
	sum := 0.0
	for _, s := range w.told {
		sum += s.Seconds
	}
	if sum <= 0 || sum > float64(now)/1e3 {
		t.Errorf("seed %d: %v s told of %v ms", seed, sum, now)
	}
}

// Once it has seen what a job transfers, it costs no memory.
func TestMeterAllocatesNothing(t *testing.T) {
	x, told := &meter.AllReduces{}, 0
	if n := testing.AllocsPerRun(100, func() {
		for bytes := mib; bytes < 8*mib; bytes += mib {
			x.BeginTransfer(cost.Sample{Route: collective.DefaultRoute(bytes), Hosts: 3,
				Bytes: bytes}, collective.AllReduce, timeAt(0))
		}
		x.EndTransfers(7, timeAt(0), func(cost.Sample) { told++ })
	}); n > 0 || told == 0 {
		t.Errorf("%v allocations, %d told", n, told)
	}
}
