package sense_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// numbers returns the numbers of steps.
func numbers(steps []sense.StepSample) (list []uint64) {
	for _, x := range steps {
		list = append(list, x.Step)
	}
	return list
}

// Steps around a change of members and the first one by another setting are left out, and so is
// what is no step.
func TestStepsThatWereDisturbed(t *testing.T) {
	var s sense.StepSeries
	generation, change := uint64(1), uint64(0)
	for i := uint64(1); i <= 12; i++ {
		switch i {
		case 5:
			generation = 2
		case 9:
			change = 1
		}
		s.Add(sense.StepSample{Step: i, Seconds: 1, Samples: 8, Batch: 8, Size: 2,
			Generation: generation, Change: change})
	}
	for _, none := range []sense.StepSample{{Seconds: 0, Samples: 8, Size: 2},
		{Seconds: math.NaN(), Samples: 8, Size: 2}, {Seconds: math.Inf(1), Samples: 8, Size: 2},
		{Seconds: 1, Size: 2}, {Seconds: 1, Samples: 8}} {
		none.Step, none.Batch, none.Generation, none.Change = 13, 8, 2, 1
		s.Add(none)
	}
	s.Add(sense.StepSample{Step: 14, Seconds: 1, Samples: 8, Batch: 8, Size: 2, Generation: 2,
		Change: 1}) // 13 is missing: its seconds may be those of two steps
	s.Add(sense.StepSample{Step: 15, Seconds: 1, Samples: 8, Batch: 8, Size: 2, Generation: 2,
		Change: 1})
	if diff := cmp.Diff([]uint64{2, 3, 6, 7, 8, 10, 11, 12, 15},
		numbers(s.Between(0, 99))); diff != "" {
		t.Errorf("undisturbed steps (-want +got): %s", diff)
	}
	if diff := cmp.Diff([]uint64{7, 8, 10}, numbers(s.Between(6, 10))); diff != "" {
		t.Errorf("steps from 7 to 10 (-want +got): %s", diff)
	}
	for i := uint64(16); i < 19; i++ { // the first one with other shares of work
		s.Add(sense.StepSample{Step: i, Seconds: 1, Samples: 8, Batch: 8, Size: 2, Generation: 2,
			Change: 1, Deal: sense.DealOf([]uint16{3, 1})})
	}
	if diff := cmp.Diff([]uint64{15, 17, 18}, numbers(s.Between(14, 99))); diff != "" {
		t.Errorf("undisturbed steps (-want +got): %s", diff)
	}
	if sense.DealOf(nil) != 0 || sense.DealOf([]uint16{7, 7}) != 0 ||
		sense.DealOf([]uint16{3, 1}) == sense.DealOf([]uint16{1, 3}) {
		t.Error("shares are mixed up")
	}
	if x, is := s.Newest(); !is || x.Step != 18 {
		t.Errorf("the newest step is %d", x.Step)
	}
	if _, is := (*sense.StepSeries)(nil).Newest(); is || (*sense.StepSeries)(nil).Between(0,
		9) != nil {
		t.Error("no series has steps")
	}
}

// Of steps that are alike a series may have one with the mean of all: it is between two numbers
// when all of them are, and disturbs nothing.
func TestStepsThatStandForOthers(t *testing.T) {
	var s sense.StepSeries
	for _, x := range []sense.StepSample{{Step: 1}, {Step: 9, Alike: 7}, {Step: 17, Alike: 7},
		{Step: 20, Alike: 2}} {
		x.Seconds, x.Samples, x.Size = 1, 8, 2
		s.Add(x)
	}
	for from, want := range []int{3, 3, 2, 2} {
		if got := s.Between(uint64(from), 20); len(got) != want {
			t.Errorf("after step %d: %v", from, got)
		}
	}
	s.Add(sense.StepSample{Step: 29, Alike: 7, Seconds: 1, Samples: 8, Size: 2}) // one is missing
	if got := s.Between(20, 29); len(got) != 0 || len(s.AllBetween(20, 29)) != 1 {
		t.Errorf("a step is missing before %v", got)
	}
}

// A series has the newest steps, as many as it keeps.
func TestStepSeriesIsBounded(t *testing.T) {
	var s sense.StepSeries
	for i := range uint64(2 * sense.MaxSteps) {
		s.Add(sense.StepSample{Step: i, Seconds: 1, Samples: 1, Batch: 1, Size: 1})
	}
	if got := s.Between(0, math.MaxUint64); len(got) != sense.MaxSteps ||
		got[0].Step != sense.MaxSteps {
		t.Errorf("it has %d steps from %d on", len(got), got[0].Step)
	}
}

// The rate is that of whole steps, a few that were held up do not move it out of what the others
// have, and its band holds the middle.
func TestRate(t *testing.T) {
	if rate, n := sense.Rate(nil); rate.IsKnown() || n != 0 {
		t.Errorf("of no steps: %v of %d", rate, n)
	}
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.SliceOfN(rapid.Float64Range(0.9, 1.1), 3, 40).Draw(t, "seconds")
		var steps []sense.StepSample
		for _, x := range seconds {
			steps = append(steps, sense.StepSample{Seconds: x, Samples: 10, Batch: 10})
		}
		for range rapid.IntRange(0, (len(seconds)-1)/2).Draw(t, "held up") {
			steps = append(steps, sense.StepSample{Seconds: 99, Samples: 10, Batch: 10})
		}
		want := len(steps)
		steps = append(steps, sense.StepSample{Seconds: 1, Samples: 1, Batch: 10})
		rate, n := sense.Rate(steps)
		if n != want || rate.Mid < 10/1.1-1e-9 || rate.Mid > 10/0.9+1e-9 ||
			!rate.Contains(rate.Mid) {
			t.Fatalf("%v of %d steps", rate, n)
		}
	})
	if rate, _ := sense.Rate([]sense.StepSample{{Seconds: 2, Samples: 8, Batch: 8}}); rate !=
		(setting.Band{Low: 4, Mid: 4, High: 4}) {
		t.Errorf("of one step: %v", rate)
	}
}

// The band of the rate is where the median lies in about 80 of 100 cases: by the binomial
// distribution of how many of the steps are slower than most.
func TestRateBand(t *testing.T) {
	for _, n := range []int{9, 20, 101, 400} {
		var steps []sense.StepSample
		for i := range n {
			steps = append(steps, sense.StepSample{Seconds: 1 / float64(i+1), Samples: 1, Batch: 1})
		}
		rate, _ := sense.Rate(steps) // the i-th rate is i
		if want := float64(n+1) / 2; math.Abs(rate.Mid-want) > 1e-9 {
			t.Errorf("the median of 1 to %d is %v, want %v", n, rate.Mid, want)
		}
		within, each := 0.0, math.Pow(2, -float64(n))
		for slower := range n + 1 {
			if k := float64(slower); k > rate.Low-0.5 && k < rate.High-0.5 {
				within += each
			}
			each *= float64(n-slower) / float64(slower+1)
		}
		if within < 0.79 || within > 0.89 {
			t.Errorf("the band of %d rates is from number %v to %v: in %.3g of the cases", n,
				rate.Low, rate.High, within)
		}
	}
}

// Members that come and go are counted by the second, also where one takes another's place.
func TestChurn(t *testing.T) {
	var s sense.StepSeries
	step, members := uint64(0), uint64(0)
	train := func(steps, size int) {
		members++
		for range steps {
			step++
			s.Add(sense.StepSample{Step: step, Seconds: 0.5, Samples: 8, Batch: 8, Size: size,
				Generation: members, Round: 4})
		}
	}
	train(50, 4)
	train(50, 2) // two left
	train(50, 2) // another one came for one that left
	train(50, 3)
	if c := s.Churn(1e9); c.Left != 3.0/398 || c.Joined != 2.0/398 { // the first begins it
		t.Errorf("%+v", c)
	}
	if c := s.Churn(100); c.Left != 0 || c.Joined != 1.0/100 {
		t.Errorf("of the newest: %+v", c)
	}
	if c := s.Churn(10); c != (sense.Churn{}) { // nobody came in the last ten seconds
		t.Errorf("of ten seconds: %+v", c)
	}
	train(1, 9)
	if c := s.Churn(2); c.Left != 0 || c.Joined != 6.0/60 { // as if in a minute
		t.Errorf("of two seconds: %+v", c)
	}
	if c := (*sense.StepSeries)(nil).Churn(9); c != (sense.Churn{}) {
		t.Errorf("of none: %+v", c)
	}
}
