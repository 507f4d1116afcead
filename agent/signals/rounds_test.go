package signals

import (
	"testing"

	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// A commit of a round counts as one in which each optimizer step has its part of the time and of
// the samples, and goes on from the one before. What workers average at its end is no gradient,
// unless they say that it is. The last round of an epoch is shorter.
func TestRounds(t *testing.T) {
	f := newFast()
	data := f.apply.Data.WithRound(4)
	data.Samples = 64 * 10 // rounds of 4, 4 and 2 steps
	f.apply.Levers = setting.Levers{Sync: "local", Round: 4}
	for range 9 {
		f.apply.Data = &data
		for w := range f.endings {
			f.endings[w] = Ending{Ticket: 1, At: f.now,
				Told: arena.Told{Data: 4e6, Compute: 8e6, Optimizer: 4e6}}
		}
		f.now += sense.Duration(max(1, f.signals.under.Round)) * sense.Second
		f.apply.Steps++
		f.signals.BeginBatch()
		f.signals.AddNorms(f.apply.Parts[0], f)
		data = data.Commit(2, []bool{true, true})
		f.apply.Data = &data
		f.signals.AddBatch(&f.apply, []error{nil})
	}
	list := f.signals.series.Between(1, f.apply.Steps)
	if len(list) != 7 {
		t.Fatalf("%d of 7 rounds count: %+v", len(list), list)
	}
	for i, x := range list {
		round := []uint32{2, 4, 4}[i%3]
		if x.Seconds != 1 || x.Samples != 64 || x.Batch != 64 || x.Round != round ||
			x.Count() != 1 || x.Steps() != uint64(round) {
			t.Errorf("round %d: %+v", i, x)
		}
	}
	if rate, n := sense.Rate(list); n != 7 || rate.Mid != 64 {
		t.Errorf("%+v samples a second by %d", rate, n)
	}
	f.signals.EndRows("h")
	r := f.signals.TakeRow()
	if r == nil {
		t.Fatal("there is no row")
	}
	// of rounds of 4, 4, 2 and 4 steps, of which the first took a time that is not known
	if r.Steps != 4 || r.Round != 4 || r.Samples != 14*64 || r.Span != 10 {
		t.Errorf("a row of %+v", r)
	}
	for sync, drifts := range map[string]bool{"": true, "ssgd": false, "sma": true} {
		f.apply.Setting.Sync = sync
		if averagesGradients(&f.apply.State) == drifts {
			t.Errorf("with sync=%s", sync)
		}
	}
}
