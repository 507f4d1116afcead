package job_test

import (
	"math"
	"testing"

	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
)

// A round takes its local steps and one exchange, of which nothing is hidden; what is known of its
// steps is of each of them. Its length changes between two rounds, and the last one of an epoch is
// shorter.
func TestRounds(t *testing.T) {
	c := config(t, 4, 128*10, 128) // rounds of 4, 4 and 2 steps
	c.Hidden = 0.5
	exchange := run(t, newWorld(t, c), 1)[0].Exposed // what is not hidden
	c.Levers.Sync, c.Levers.Round, c.Data = "local", 4, c.Data.WithRound(4)
	w := newWorld(t, c)
	const step = 0.03 + 0.0002*32
	whole := exchange + 0.5*step
	for i, s := range run(t, w, 6) {
		n := []float64{4, 4, 2}[i%3]
		if math.Abs(s.Seconds-n*step-whole) > 1e-9 || math.Abs(s.Exposed-whole) > 1e-9 ||
			float64(s.Samples) != n*128 || float64(s.Round) != n ||
			s.StepSample.Step != uint64(i+1) {
			t.Errorf("round %d: %+v", i, s.StepSample)
		}
	}
	o := w.Observation()
	if x, _ := o.Steps.Newest(); x.Samples != 128 || math.Abs(x.Seconds-step-whole/2) > 1e-9 ||
		x.Round != 2 || len(o.Steps.Between(1, 6)) != 5 {
		t.Errorf("what is known of the newest: %+v", x)
	}
	if o.Setting.Round != 4 || o.Setting.Sync != "local" || o.Noise.Known {
		t.Errorf("what is known of the job: %+v, noise %+v", o.Setting, o.Noise)
	}
	if mean := w.MeanSeconds(128, false); math.Abs(mean-step-whole/4) > 1e-9 {
		t.Errorf("a step takes %v s in the mean", mean)
	}
	if err := w.Change(setting.Setting{Round: 2}); err != nil {
		t.Fatal(err)
	}
	if s := run(t, w, 1)[0]; s.Round != 2 || s.Samples != 256 {
		t.Errorf("a shorter round: %+v", s.StepSample)
	}
	if err := newWorld(t, config(t, 2, 99, 8)).Change(setting.Setting{Round: 2}); err == nil {
		t.Error("a closed round changes")
	}
}

// Workers that meet in pairs wait for their partners alone, but for the end of a round, and send
// each other what they have in each step.
func TestPairs(t *testing.T) {
	c := config(t, 4, 128*16, 128)
	c.Levers.Sync, c.Levers.Round, c.Data = "local", 16, c.Data.WithRound(16)
	for i := range c.Hosts {
		c.Hosts[i].Residuals = job.ResidualFactors(0.5)
	}
	alone := run(t, newWorld(t, c), 1)[0]
	c.Levers.Sync = "pair"
	pairs := run(t, newWorld(t, c), 1)[0]
	c.Levers.Sync = "hybrid:parts=4"
	quarters := run(t, newWorld(t, c), 1)[0]
	c.Gradients = 0
	free := run(t, newWorld(t, c), 1)[0]
	c.Levers.Sync, c.Levers.Round, c.Data = "ssgd", 1, c.Data.WithRound(1)
	all := 0.0
	for _, s := range run(t, newWorld(t, c), 16) {
		all += s.Seconds
	}
	if !(free.Seconds > alone.Seconds-alone.Exposed && free.Seconds < all) {
		t.Errorf("a round takes %v with partners, %v alone, and %v with all in each step",
			free.Seconds, alone.Seconds-alone.Exposed, all)
	}
	whole := config(t, 4, 1, 1)
	meeting := whole.Hosts[0].Cable * float64(whole.Gradients) // latency is in both
	if got := pairs.Seconds - pairs.Exposed - free.Seconds; math.Abs(got-16*meeting) > 1e-9 {
		t.Errorf("16 meetings take %v s, want %v", got, 16*meeting)
	}
	if got := pairs.Seconds - quarters.Seconds; math.Abs(got-12*meeting) > 1e-9 {
		t.Errorf("16 meetings with a quarter take %v s less, want %v", got, 12*meeting)
	}
}

// What local steps bring falls with the length of rounds, and with a worker that is lost goes its
// part, and where workers keep replicas as much again.
func TestProgressOfRounds(t *testing.T) {
	progress := func(sync string, round uint32, lost bool) float64 {
		c := config(t, 4, 128*64, 128)
		c.Noise = job.Noise{From: 128, To: 128, Target: 1}
		c.Local = job.Local{Own: 0.8, Stale: 0.5}
		c.Levers.Sync, c.Levers.Round, c.Data = sync, round, c.Data.WithRound(round)
		if lost {
			c.Events = []job.Event{{What: job.Lose, Host: 1}}
		}
		return run(t, newWorld(t, c), 1)[0].Progress
	}
	for _, x := range []struct {
		sync  string
		round uint32
		lost  bool
		want  float64
	}{
		{"ssgd", 1, false, 128}, {"local", 1, false, 0.8 * 128},
		{"local", 16, false, 16 * 128 * 0.8 * 2 / (1 + 1 + 0.5*4)},
		{"pair", 16, false, 16 * 128 * 0.8 * 2 / (1 + 1 + 0.5)},
		{"hybrid:parts=2", 16, false, 16 * 128 * 0.8 * 2 / (1 + 1 + 0.5*2)},
		{"local", 16, true, 16 * 96 * 0.8 * (1 + 1) / (1 + 0.75*(1+0.5*4))},
		{"pair", 16, true, 16 * 64 * 0.8 * (1 + 1) / (1 + 0.75*(1+0.5))},
	} {
		if got := progress(x.sync, x.round, x.lost); math.Abs(got-x.want) > 1e-6*x.want {
			t.Errorf("%+v brings %v", x, got)
		}
	}
	drawn := map[float64]bool{}
	for seed := range uint64(20) {
		c := config(t, 4, 128*64, 128)
		c.Seed, c.Levers.Sync, c.Levers.Round = seed, "local", 1
		p := run(t, newWorld(t, c), 1)[0].Progress / 128
		if drawn[p] = true; p < 0.7 || p > 1 {
			t.Errorf("seed %d: a step brings %v", seed, p)
		}
	}
	if len(drawn) < 15 {
		t.Errorf("only %d of 20 seeds differ", len(drawn))
	}
}

// All hosts are lost at one moment as often as it says, and each comes back: none is lost that is
// not there, as a storm has taken it before, and none joins that is.
func TestSpotTakesAll(t *testing.T) {
	s := job.Spot{Calm: 3600, Storm: 1800, Lose: 600, Back: 300, All: 7200}
	const hosts, until = 4, 3000 * 3600
	list := drawEvents(t, s, 7, hosts, until)
	out, taken, all := map[int]bool{}, false, 0.0
	for i, e := range list {
		if out[e.Host] == (e.What == job.Lose) {
			t.Fatalf("%+v, and it is there: %v", e, !out[e.Host])
		}
		out[e.Host] = e.What == job.Lose
		if e.Host == 0 && e.What == job.Lose {
			taken = true
			all++
		}
		if taken && (i+1 == len(list) || list[i+1].At > e.At) {
			for host := range hosts {
				if !out[host] {
					t.Fatalf("host %d stays when all others are lost after %v s", host, e.At)
				}
			}
			taken = false
		}
	}
	// The last of four is back after 625 s, on average.
	if often := all * (7200 + 625) / until; math.Abs(often-1) > 0.1 {
		t.Errorf("%v times as often as it should be", often)
	}
}

// Storms take hosts away and bring them back, as often as they say; the first host stays, and the
// same seed gives the same.
func TestSpot(t *testing.T) {
	s := job.Spot{Calm: 3600, Storm: 1800, Lose: 600, Back: 300, Every: 3600, Slow: 1200, Cable: 1}
	const hosts, until = 16, 3000 * 3600
	list := drawEvents(t, s, 7, hosts, until)
	out, counts, slow, before := map[int]bool{}, map[job.What]float64{}, 0.0, 0.0
	for _, e := range list {
		counts[e.What]++
		switch {
		case e.At < before || e.What != job.Slowdown && e.Host == 0:
			t.Fatalf("%+v after %v s", e, before)
		case e.What == job.Lose && out[e.Host], e.What == job.Join && !out[e.Host]:
			t.Fatalf("%+v, and it is there: %v", e, !out[e.Host])
		case e.What == job.Slowdown && e.Value == 0:
			slow += e.At
		case e.What == job.Slowdown:
			slow -= e.At
		}
		out[e.Host], before = e.What == job.Lose, e.At
	}
	// A third of the time is storm, in which a host is there 600 of 900 s.
	losses := counts[job.Lose] / (until / 3.0 / 900 * (hosts - 1))
	if math.Abs(losses-1) > 0.1 || math.Abs(slow/until-0.25) > 0.03 {
		t.Errorf("%v of the losses that there should be, slow for %v of the time", losses,
			slow/until)
	}
	if other := drawEvents(t, s, 7, hosts, until); len(other) != len(list) || other[9] != list[9] {
		t.Error("another time it is something else")
	}
}

// drawEvents returns the events of a Spot, or fails the test.
func drawEvents(t *testing.T, s job.Spot, seed uint64, hosts int, until float64) []job.Event {
	t.Helper()
	list, err := s.Events(seed, hosts, until)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Where more happens than a list can have, that is an error: nothing is left out, as if calm had
// come for good.
func TestSpotOfTooManyEvents(t *testing.T) {
	const day = 24 * 3600
	for _, s := range []job.Spot{{Calm: 1, Storm: day, Lose: 1, Back: 1},
		{Calm: day, Storm: day, Lose: day, Back: day, All: 1}, {Every: 1, Slow: 1, Cable: 1}} {
		if list, err := s.Events(1, 10_000, 100*day); err == nil {
			t.Errorf("%+v: %d events, the last after %v s", s, len(list), list[len(list)-1].At)
		}
	}
}
