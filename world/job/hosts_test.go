package job_test

import (
	"math"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
)

// sizes returns how many members steps had.
func sizes(steps []job.Step) (list []int) {
	for _, s := range steps {
		list = append(list, s.Size)
	}
	return list
}

// A host of which nobody takes part is away after its notice as others are: no workers join on it,
// until it joins itself.
func TestNoticeOfSpareHost(t *testing.T) {
	c := config(t, 3, 100_000, 120)
	c.Levers.Size = setting.Range{From: 1, To: 3}
	c.Hosts[1].Spare, c.Hosts[2].Spare = true, true
	c.Events = []job.Event{{Step: 2, What: job.Notice, Host: 1, Value: 1},
		{Step: 8, What: job.Join, Host: 1}}
	w := newWorld(t, c)
	run(t, w, 4)
	if room := w.Levers().Size.To; room != 2 {
		t.Errorf("there is room for %d workers", room)
	}
	if err := w.Change(setting.Setting{Number: 1, Size: 3}); err != nil {
		t.Fatal(err)
	}
	if got := run(t, w, 1)[0].Size; got != 2 {
		t.Errorf("%d members, one of them on a host that is gone", got)
	}
	if got := run(t, w, 5)[4].Size; got != 3 {
		t.Errorf("%d members when the host is back", got)
	}
}

// A host that is lost and comes back while one step runs joins after the step with which it is
// lost; one that is lost again meanwhile does not. Where the size can change it only has room then.
func TestLostAndBackWithinAStep(t *testing.T) {
	lose, join := job.Event{Step: 2, What: job.Lose, Host: 1}, job.Event{Step: 2, What: job.Join,
		Host: 1}
	notice := job.Event{Step: 2, What: job.Notice, Host: 1, Value: 9}
	for _, x := range []struct {
		events []job.Event
		after  int // members in the end
	}{{[]job.Event{lose, join}, 2}, {[]job.Event{lose, join, lose}, 1},
		{[]job.Event{lose, notice}, 1}, {[]job.Event{lose, lose}, 1}} {
		for _, open := range []bool{false, true} {
			c := config(t, 2, 100_000, 120)
			if open {
				c.Levers.Size = setting.Range{From: 1, To: 2}
			}
			c.Costs = job.Costs{Join: 1, Loss: 4}
			c.Events = x.events
			w := newWorld(t, c)
			steps, after := run(t, w, 5), x.after
			if open {
				after = 1
				if room := w.Levers().Size.To; room != uint64(x.after) {
					t.Errorf("%v: there is room for %d workers, want %d", x.events, room, x.after)
				}
			}
			want := []int{2, 2, 2, after, after}
			if got := sizes(steps); !slices.Equal(got, want) || steps[2].Samples != 60 ||
				steps[2].Pause != 4 || steps[3].Pause != float64(after-1) {
				t.Errorf("%v, size open %v: %v members, want %v: %+v", x.events, open, got, want,
					steps[2:4])
			}
		}
	}
}

// Where nobody is left, workers that start take part when they are ready, whatever else is to come.
func TestStartingWorkersAreAwaited(t *testing.T) {
	for _, events := range [][]job.Event{nil, {{At: 500, Timed: true, What: job.Slow, Value: 1}}} {
		c := config(t, 2, 100_000, 120)
		c.Levers.Size = setting.Range{From: 1, To: 2}
		c.Hosts[1].Spare = true
		c.Costs.Start = 20
		c.Events = append([]job.Event{{Step: 2, What: job.Lose, Host: 0}}, events...)
		w := newWorld(t, c)
		before := run(t, w, 2)[1].At
		if s, on := w.Step(); !on || s.Size != 1 || s.At < before+20 || s.At > before+21 {
			t.Errorf("with %d events to come: %v, %+v behind %v s", len(events), on, s, before)
		}
	}
}

// Each worker takes part when it has started itself, and not with those that began before it.
func TestWorkersJoinWhenTheyHaveStarted(t *testing.T) {
	c := config(t, 4, 100_000, 120)
	c.Levers.Size = setting.Range{From: 1, To: 4}
	c.Hosts[1].Spare, c.Hosts[2].Spare, c.Hosts[3].Out = true, true, true
	c.Costs.Start = 20
	c.Events = []job.Event{{At: 10, Timed: true, What: job.Join, Host: 3}}
	w := newWorld(t, c)
	if err := w.Change(setting.Setting{Number: 1, Size: 4}); err != nil {
		t.Fatal(err)
	}
	first := map[int]float64{} // by size, when the step before its first one ended
	for before := 0.0; w.Now() < 45; before = w.Now() {
		n := run(t, w, 1)[0].Size
		if _, is := first[n]; !is {
			first[n] = before
		}
	}
	if len(first) != 3 || math.Abs(first[3]-20) > 0.5 || math.Abs(first[4]-30) > 0.5 {
		t.Errorf("it has 3 members from 20 s on and 4 from 30 s on: %v", first)
	}
}

// A new run begins as that of a running job does, when all workers that it is to have are there.
// Who is lost before that is wanted no more. A job that makes no checkpoints has the same run.
func TestNewRunWaitsForAllWorkers(t *testing.T) {
	lose := func(at float64, hosts ...int) (list []job.Event) {
		for _, h := range hosts {
			list = append(list, job.Event{At: at, Timed: true, What: job.Lose, Host: h})
		}
		return list
	}
	join := func(at float64, host int) job.Event {
		return job.Event{At: at, Timed: true, What: job.Join, Host: host}
	}
	for name, x := range map[string]struct {
		saves  bool
		events []job.Event // after all three hosts are lost after 50 s
		at     float64     // when the new run begins; 0 = it does not
		size   int         // with how many members
	}{
		"one after the other": {true, []job.Event{join(100, 0), join(130, 2), join(200, 1)}, 220,
			3},
		"one does not come": {true, []job.Event{join(100, 0), join(130, 2)}, 0, 0},
		"one is lost again": {true, append(lose(140, 0), join(100, 0), join(130, 2), join(200, 1)),
			220, 2},
		"no checkpoints": {false, []job.Event{join(100, 0), join(130, 2), join(200, 1)}, 120, 1},
	} {
		c := config(t, 3, 100_000, 120)
		c.Levers.Size, c.Levers.Save = setting.Range{From: 1, To: 3}, x.saves
		c.Costs.Start = 20
		c.Events = append(lose(50, 0, 1, 2), x.events...)
		w := newWorld(t, c)
		for w.Now() < 50 {
			run(t, w, 1)
		}
		s, on := w.Step()
		if begin := s.At - s.Seconds; on != (x.at > 0) || on && (math.Abs(begin-x.at) > 1e-9 ||
			s.Size != x.size || s.Pause != 0 || s.GoneBack != x.saves) {
			t.Errorf("%s: it goes on: %v, at %v s, with %+v", name, on, begin, s)
		}
	}
}

// While cables are slow for a while all have that rate, and then each has its own again, also one
// that has become another meanwhile.
func TestCablesAfterASlowdown(t *testing.T) {
	exposed := func(cables ...float64) float64 {
		c := config(t, 2, 100_000, 120)
		c.Route = route
		c.Hosts[0].Cable, c.Hosts[1].Cable = cables[0], cables[1]
		return run(t, newWorld(t, c), 1)[0].Exposed
	}
	slow := drawEvents(t, job.Spot{Every: 1, Slow: 1, Cable: 20 * gigabit}, 1, 2, 1000)[:2]
	for i := range slow {
		slow[i].Timed, slow[i].Step = false, uint64(2+2*i)
	}
	c := config(t, 2, 100_000, 120)
	c.Route = route
	c.Hosts[1].Cable = 5 * gigabit
	c.Events = append(slow, job.Event{Step: 3, What: job.Cable, Host: 0, Value: 3 * gigabit})
	steps := run(t, newWorld(t, c), 5)
	for i, want := range []float64{1: exposed(gigabit, 5*gigabit),
		2: exposed(20*gigabit, 20*gigabit), 3: exposed(20*gigabit, 20*gigabit),
		4: exposed(3*gigabit, 5*gigabit)} {
		if got := steps[i].Exposed; i > 0 && got != want {
			t.Errorf("step %d exchanges for %v s, want %v", i+1, got, want)
		}
	}
}

// A host with a notice that alone has the state stays until others have it. If they come too late,
// or nobody can come, it is lost when the notice ends, and the state with it.
func TestNoticeOfTheLastHost(t *testing.T) {
	const notice, end = 1, 10.0
	for name, x := range map[string]struct {
		room  bool    // another host has room
		start float64 // seconds for which workers start
		on    bool    // the job goes on
		lost  bool    // the state is lost
	}{"no room": {on: false}, "in time": {room: true, start: 2, on: true},
		"too late": {room: true, start: 12, on: true, lost: true}} {
		c := config(t, 2, 100_000, 120)
		c.Levers.Save, c.Costs.Start = true, x.start
		if c.Hosts[1].Out, c.Hosts[1].Spare = !x.room, true; x.room {
			c.Levers.Size = setting.Range{From: 1, To: 2}
		}
		c.Events = []job.Event{{At: notice, Timed: true, What: job.Notice, Value: end - notice}}
		w := newWorld(t, c)
		on, lost, longest := true, false, 0.0 // longest is of the steps until the notice ends
		for on && w.Now() < 20 {
			var s job.Step
			before := w.Now()
			s, on = w.Step()
			lost = lost || s.GoneBack
			if before < end-0.5 {
				longest = max(longest, s.Seconds)
			}
		}
		if on != x.on || lost != x.lost || longest > 0.5 || w.Now() < end {
			t.Errorf("%s: it goes on: %v, lost: %v, with steps of %v s, until %v s", name, on, lost,
				longest, w.Now())
		}
	}
}
