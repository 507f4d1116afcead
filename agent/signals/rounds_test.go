package signals

import (
	"math"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/steps"
	"github.com/shoal-ml/shoal/setting"
)

// A commit of a round counts as one in which each optimizer step has its part of the time and of
// the samples, and goes on from the one before. What workers average at its end is no gradient,
// unless they say that it is. The last round of an epoch is shorter. All the time in a round that a
// worker has not worked it has waited, though its last call comes when the round is over.
func TestRounds(t *testing.T) {
	f := newFast()
	data := f.apply.Data.WithRound(4)
	data.Samples = 64 * 10 // rounds of 4, 4 and 2 steps
	f.apply.Levers = setting.Levers{Sync: "local", Round: 4}
	for range 9 {
		f.apply.Data = &data
		round := max(1, f.signals.under.Round)
		for w := range f.endings {
			f.endings[w] = Ending{Ticket: 1, At: f.now + sense.Duration(round)*sense.Second,
				Told: arena.Told{Data: 1e5 * round, Compute: uint32(2+2*w) * 1e5 * round,
					Optimizer: 1e5 * round}}
		}
		f.now += sense.Duration(round) * sense.Second
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
	note, err := steps.Parse(f.signals.PopStepsNote())
	if err != nil || len(note.Waits) != 2 || math.Abs(note.Waits[0]/note.Timed-0.6) > 0.01 ||
		math.Abs(note.Waits[1]/note.Timed-0.4) > 0.01 {
		t.Errorf("workers have waited %v in %v rounds, %v", note.Waits, note.Timed, err)
	}
	f.signals.EndRows("h")
	r := f.signals.AwaitRow()
	if r == nil {
		t.Fatal("there is no row")
	}
	// of rounds of 4, 4, 2 and 4 steps, of which the first took a time that is not known
	if r.Steps != 4 || r.OptimizerSteps != 14 || r.Round != 4 || r.Samples != 14*64 ||
		r.Span != 10 {
		t.Errorf("a row of %+v", r)
	}
	for sync, drifts := range map[string]bool{"": true, "ssgd": false, "sma": true} {
		f.apply.Setting.Sync = sync
		if averagesGradients(&f.apply.State) == drifts {
			t.Errorf("with sync=%s", sync)
		}
	}
}

// Workers that average in pairs have somebody decide by their times, and nobody by the norms of
// their gradients, which cost little then.
func TestPairsAreSparing(t *testing.T) {
	f := newFast()
	f.apply.Levers = setting.Levers{Sync: "pair", Round: 1}
	for range 3 {
		f.makeStep(sense.Second)
	}
	if _, _, ok := f.signals.NextLook(f.apply.State); !ok || !f.signals.host.Sparing {
		t.Errorf("somebody decides: %v; norms cost little: %v", ok, f.signals.host.Sparing)
	}
}

// normed is what has measured a part of a gradient: the squares of all elements of each member are
// 3 together, and those of the mean 1.
type normed struct{}

// Norms adds the squares by member, and returns those of the mean and the number of elements.
func (normed) Norms(in []float64) (float64, int) {
	for i := range in {
		in[i] += 3
	}
	return 1, 4096
}

// In rounds the noise of gradients is that of the samples which workers send: the batch of a sample
// is that of one optimizer step over all workers. How far workers have come is not measured, also
// where nobody says that it is no gradient.
func TestSampleOfRound(t *testing.T) {
	f := newFast()
	data := f.apply.Data.WithRound(4)
	f.apply.Data = &data
	f.apply.Levers = setting.Levers{Sync: "local", Round: 4}
	moved := f.apply.Parts[0]
	var sampled []*collective.Posted
	for _, p := range moved.Calls {
		x := *p
		x.Call.In, x.Call.Tag = make([]byte, 4*4096), arena.Sample
		x.Call.Flags = collective.Flags{More: true}
		sampled = append(sampled, &x)
	}
	f.apply.Parts = []head.Part{{Calls: sampled}, moved}
	for i := range 9 {
		if i == 1 { // what a job makes is known after its first step
			f.signals.PopStepsNote()
		}
		f.now += 4 * sense.Second
		f.apply.Steps++
		f.signals.BeginBatch()
		for _, part := range f.apply.Parts {
			f.signals.AddNorms(part, normed{})
		}
		f.signals.AddBatch(&f.apply, []error{nil, nil})
	}
	note, err := steps.Parse(f.signals.PopStepsNote())
	if err != nil {
		t.Fatal(err)
	}
	n := note.Noise
	if n.Steps != 8 {
		t.Fatalf("samples of %v rounds: %+v", n.Steps, n)
	}
	for what, x := range map[string][2]float64{
		"mean of squares": {n.Own, 3 * 8}, "squares of the mean": {n.Mean, 1 * 8},
		"1/samples of a worker": {n.PerOwn, 8. / 32}, "1/batch": {n.PerBatch, 8. / 64},
	} {
		if math.Abs(x[0]-x[1]) > 1e-9 {
			t.Errorf("%s: %v, expected %v", what, x[0], x[1])
		}
	}
}

// What brings the state to another mesh is no step, and no part of what one takes, whether each
// step before it was told of or not.
func TestReshapeIsNoStep(t *testing.T) {
	for _, takes := range []sense.Duration{sense.Second / 4, sense.Second / 10_000} {
		f := newFast()
		calls := f.apply.Parts[0].Calls
		var moves []*collective.Posted
		for _, p := range calls {
			move := *p
			move.Call.Kind = collective.Reshape
			moves = append(moves, &move)
		}
		for i := range 8 {
			f.makeStep(takes)
			if i%3 == 2 {
				f.apply.Parts[0].Calls = moves
				f.now += 3 * takes
				f.signals.BeginBatch()
				f.signals.AddBatch(&f.apply, []error{nil})
				f.apply.Parts[0].Calls = calls
			}
		}
		row := f.signals.rows.recorder.EndRow()
		if made := row.Steps + uint64(f.signals.passed); made != 8 || row.Steps > row.Step {
			t.Errorf("steps of %v: %d up to step %d, with those on their way %d", takes, row.Steps,
				row.Step, made)
		}
		if q := row.Seconds; takes == sense.Second/4 && (q.P90 != 0.25 || row.Span != 3.25) {
			t.Errorf("%+v in %v s", q, row.Span)
		}
	}
}

// Where the time of steps goes is known anew where workers synchronise otherwise: nothing of it is
// of the steps before.
func TestSplitBehindAnotherWay(t *testing.T) {
	f := newFast()
	f.signals.Decides = true
	f.apply.Levers = setting.Levers{Sync: "ssgd", Round: 1, Auto: true}
	// tell has the head hear of the steps, and returns how long they wait for the network.
	tell := func() float64 {
		f.signals.AddNote(head.Note{Host: "h", Data: f.signals.PopStepsNote()}, 1)
		look, _, ok := f.signals.NextLook(f.apply.State)
		if !ok {
			t.Fatal("there is nothing to decide")
		}
		return look.Observation.Split.Exposed
	}
	data := f.apply.Data.WithRound(4)
	for i := range 8 {
		if i == 7 { // the next step is another one
			f.apply.Data, f.apply.Setting.Sync, f.apply.Setting.Round = &data, "local", 4
		}
		f.makeStep(sense.Second)
		if got := tell(); i > 0 && i < 7 && math.Abs(got-1) > 1e-6 {
			t.Errorf("step %d waits for %v s", i, got)
		}
	}
	for i := range 8 {
		for w := range f.endings {
			f.endings[w] = Ending{Ticket: 1, At: f.now + 4*sense.Second,
				Told: arena.Told{Compute: 9e5 * 4}}
		}
		f.now += 4 * sense.Second
		f.apply.Steps++
		f.signals.BeginBatch()
		f.signals.AddNorms(f.apply.Parts[0], f)
		f.signals.AddBatch(&f.apply, []error{nil})
		if got := tell(); math.Abs(got-0.1) > 1e-6 {
			t.Errorf("round %d waits for %v s a step", i, got)
		}
	}
}
