package policy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
)

// climber lets a policy decide about a job whose steps take what a function says, and keeps each
// change that is worth the factor `keeps` at least. It returns the sizes that the job has had.
func climber(t *testing.T, p decide.Policy, took func(members int) float64, from, most int,
	hosts int, keeps float64) (sizes []int) {
	return climbed(t, p, took, members(from, most), hosts, func(o *sense.Observation, n int) {
		o.Setting.Number++ // also where it is taken back
		if n > o.Size && took(o.Size)/took(n) < keeps {
			o.TakenBack = o.Setting.Number
			return
		}
		o.Size, o.Setting.Size = n, uint32(n)
	})
}

// climbed lets a policy decide about a job whose steps take what a function says. It calls change
// with each size that the policy asks for, and returns the first size and those.
func climbed(t *testing.T, p decide.Policy, took func(members int) float64, o sense.Observation,
	hosts int, change func(o *sense.Observation, n int)) (sizes []int) {
	o.Steps = &sense.StepSeries{}
	var state []byte
	sizes = []int{o.Size}
	for o.Step < 3000 {
		o.Step++
		o.Hosts = nil
		for i := range o.Size {
			o.Hosts = append(o.Hosts, fmt.Sprintf("h%d", i%hosts))
		}
		o.Steps.Add(sense.StepSample{Step: o.Step, Seconds: took(o.Size), Samples: 1024,
			Batch: 1024, Size: o.Size, Generation: uint64(o.Size)})
		var d decide.Decision
		d, state = p.Decide(o, nil, state)
		if d.Because == "" || !json.Valid(state) && len(state) > 0 {
			t.Fatalf("%+v, it remembers %s", d, state)
		}
		if d.To != nil {
			sizes = append(sizes, int(d.To.Setting.Size))
			change(&o, int(d.To.Setting.Size))
		}
	}
	return sizes
}

// The rules add one worker after another, or one a host, as long as that pays, take the last ones
// back, and end there; also where others take them back before.
func TestClimbing(t *testing.T) {
	linear := func(n int) float64 { return 1 / float64(n) }
	until4 := func(n int) float64 { return 1 / float64(min(n, 4)) }
	for _, x := range []struct {
		p     decide.Policy
		took  func(int) float64
		from  int
		most  int
		hosts int
		keeps float64
		want  string
	}{
		{policy.Wagenlander{}, linear, 1, 5, 1, 0, "1 2 3 4 5"},
		{policy.Wagenlander{}, until4, 2, 9, 1, 0, "2 3 4 5 4"},
		{policy.Wagenlander{}, until4, 2, 9, 1, 1.01, "2 3 4 5"},
		{policy.Wagenlander{}, until4, 4, 9, 1, 0, "4 5 4"},
		{policy.Learners{}, linear, 2, 9, 2, 0, "2 4 6 8"},
		{policy.Learners{}, until4, 2, 9, 2, 0, "2 4 6 4"},
		{policy.Learners{}, until4, 2, 9, 1, 0, "2 3 4 5 4"},
		{policy.Learners{}, linear, 9, 20, 1, 0, "9 10 11 12 11"},
	} {
		got := fmt.Sprint(climber(t, x.p, x.took, x.from, x.most, x.hosts, x.keeps))
		if got != "["+x.want+"]" {
			t.Errorf("%s from %d of %d, %d hosts: %v, want %s", x.p.Name(), x.from, x.most, x.hosts,
				got, x.want)
		}
	}
	for _, bad := range []string{"{", `{"members":"x"}`, ""} {
		o := members(2, 1)
		if d, _ := (policy.Wagenlander{}).Decide(o, nil, []byte(bad)); d.To != nil ||
			!strings.Contains(d.Because, "closed") {
			t.Errorf("with the state %q: %+v", bad, d)
		}
	}
}

// A change of another lever, in place of the members that were asked for, takes nobody back: the
// search goes on, and so it does where what was asked for is not done for a while.
func TestClimbingBesideOtherChanges(t *testing.T) {
	until4 := func(n int) float64 { return 1 / float64(min(n, 4)) }
	for name, others := range map[string]bool{"others change": true, "nobody changes": false} {
		asks := 0
		got := fmt.Sprint(climbed(t, policy.Wagenlander{}, until4, members(2, 9), 1,
			func(o *sense.Observation, n int) {
				if asks++; asks%3 == 0 {
					o.Size, o.Setting.Size = n, uint32(n)
				} else if !others {
					return
				}
				o.Setting.Number++
			}))
		if want := "[2 3 3 3 4 4 4 5 5 5 4 4 4]"; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// At the end of an epoch, and not before, the policy chooses the size with which an epoch takes
// least time of those that the budget allows; where none is cheap enough, the cheapest.
func TestBudget(t *testing.T) {
	// With n members an epoch takes 800/n + 200 s and so costs (800 + 200·n) prices.
	took := func(n int) float64 { return 0.8/float64(n) + 0.2 }
	for _, c := range []struct {
		budget, spent float64 // of an epoch; 0 = what two members take
		from          uint64  // steps of the first epoch that were made before
		want          uint32
	}{{2001, 2001, 0, 6}, {1601, 1601, 0, 4}, {1400, 1400, 0, 3}, {1e6, 1e6, 0, 8}, {5, 0, 0, 1},
		{1601, 2001, 0, 3}, // half of the 400 that were too much is saved
		{1401, 1101, 0, 4}, // of the 300 that are left 210 are spent
		{1601, 1601, 900, 4}, {1401, 1101, 400, 3}} {
		budget, want := c.budget, c.want
		o := members(2, 8)
		o.Setting.Batch, o.Samples, o.Steps = 1000, 1_000_000, &sense.StepSeries{}
		b := policy.Budget{Epoch: 2 * budget / 3600, Price: 2}
		var state []byte
		o.Step = c.from
		for epoch := range uint64(2) {
			for range 1000 - (1-epoch)*c.from {
				o.Step++
				o.Epoch = epoch
				step := took(2)
				if epoch == 0 && c.spent > 0 {
					step = c.spent / 2000
				}
				o.Now += sense.Duration(step * float64(sense.Second))
				o.Steps.Add(sense.StepSample{Step: o.Step, Seconds: took(2), Samples: 1000,
					Batch: 1000, Size: 2, Generation: 1})
				var d decide.Decision
				d, state = b.Decide(o, sized{now: 2, took: took}, state)
				if (d.To != nil) != (epoch == 1 && o.Step == 1001) {
					t.Fatalf("budget %v: at step %d %+v", budget, o.Step, d)
				}
				if d.To == nil {
					continue
				}
				if d.To.Setting.Size != want {
					t.Errorf("budget %v: %d members, want %d: %s", budget, d.To.Setting.Size, want,
						d.Because)
				}
				break
			}
		}
	}
	o := members(2, 8)
	o.Step, o.Setting.Batch, o.Setting.Round, o.Samples = 7, 1000, 16, 1_000_000
	if d, _ := (policy.Budget{Epoch: 1, Price: 1}).Decide(o, nil, nil); d.Again != 63 {
		t.Errorf("an epoch of 1,000 steps in rounds of 16: %+v", d)
	}
	o = members(2, 8)
	if d, _ := (policy.Budget{Epoch: 1, Price: 1}).Decide(o, nil, nil); d.To != nil ||
		!strings.Contains(d.Because, "states no data") {
		t.Errorf("%+v", d)
	}
	o.Levers.Size.To = 1
	if d, _ := (policy.Budget{}).Decide(o, nil, []byte("[")); d.To != nil ||
		!strings.Contains(d.Because, "closed") {
		t.Errorf("%+v", d)
	}
}

// Where an epoch is short, what it takes is that of steps with the members and the batch of now,
// and not of those before.
func TestBudgetOfShortEpochs(t *testing.T) {
	took := func(n int) float64 { return 0.8/float64(n) + 0.2 }
	o := members(4, 8)
	o.Setting.Batch, o.Samples, o.Steps = 1000, 16_000, &sense.StepSeries{}
	// Sixteen steps of four members cost 25.6 seconds of a member, at a price of 2 an hour.
	b := policy.Budget{Epoch: 2 * 25.61 / 3600, Price: 2}
	var state []byte
	for step := uint64(1); step <= 65; step++ {
		n, batch := 4, uint64(1000)
		if step <= 48 {
			n, batch = 2, 4000
		}
		o.Steps.Add(sense.StepSample{Step: step, Seconds: took(n), Samples: batch, Batch: batch,
			Size: n, Generation: uint64(n)})
		if o.Step = step; step == 48 { // the epoch that four members make begins
			o.Epoch, o.Now = 3, sense.Second
			_, state = b.Decide(o, sized{now: 4, took: took}, state)
		}
	}
	o.Epoch, o.Now = 4, o.Now+sense.Duration(16*took(4)*float64(sense.Second))
	d, _ := b.Decide(o, sized{now: 4, took: took}, state)
	if want := "an epoch takes 6.4 s and costs 0.0142 with 4 members"; d.To != nil ||
		!strings.Contains(d.Because, want) {
		t.Errorf("%+v, want no change: %s", d, want)
	}
}

// Each policy has its name, and only names of policies have one.
func TestNamed(t *testing.T) {
	for _, name := range policy.Names() {
		if p := policy.Named(name); p == nil || p.Name() != name || len(p.Levers()) == 0 {
			t.Errorf("%s: %v", name, p)
		}
	}
	if p := policy.Named("budget"); p != nil {
		t.Errorf("a budget of nothing: %v", p)
	}
}
