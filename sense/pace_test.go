package sense_test

import (
	"testing"

	"github.com/shoal-ml/shoal/sense"
)

// TestPace takes the quartiles of whole steps; several that are alike count as so many.
func TestPace(t *testing.T) {
	step := func(seconds float64, samples, alike uint64) sense.StepSample {
		return sense.StepSample{Seconds: seconds, Samples: samples, Batch: 8, Alike: alike}
	}
	for _, c := range []struct {
		name  string
		steps []sense.StepSample
		want  sense.Pace
	}{
		{"none", nil, sense.Pace{}},
		{"only the torn end of an epoch", []sense.StepSample{step(1, 3, 0)}, sense.Pace{}},
		{"one", []sense.StepSample{step(2, 8, 0)}, sense.Pace{1, 8, 2, 2, 2}},
		{"two", []sense.StepSample{step(3, 8, 0), step(1, 8, 0)}, sense.Pace{2, 8, 1, 2, 3}},
		{"five, and one that is not whole", []sense.StepSample{step(5, 8, 0), step(1, 8, 0),
			step(9, 4, 0), step(2, 8, 0), step(4, 8, 0), step(3, 8, 0)},
			sense.Pace{5, 8, 2, 3, 4}},
		{"one slow, and nine that are alike", []sense.StepSample{step(7, 8, 0), step(1, 8, 8)},
			sense.Pace{10, 8, 1, 1, 1}},
		{"another batch since", []sense.StepSample{step(7, 8, 0), {Seconds: 1, Samples: 4,
			Batch: 4}}, sense.Pace{1, 4, 1, 1, 1}},
		{"more members since", []sense.StepSample{step(7, 8, 0), {Seconds: 1, Samples: 8,
			Batch: 8, Size: 3}}, sense.Pace{1, 8, 1, 1, 1}},
		{"another setting since", []sense.StepSample{step(7, 8, 0), {Seconds: 1, Samples: 8,
			Batch: 8, Change: 1}}, sense.Pace{1, 8, 1, 1, 1}},
		{"other shares since", []sense.StepSample{step(7, 8, 0), {Seconds: 1, Samples: 8,
			Batch: 8, Deal: 1}}, sense.Pace{1, 8, 1, 1, 1}},
		{"rounds of two since", []sense.StepSample{step(7, 8, 0), {Seconds: 1, Samples: 8,
			Batch: 8, Round: 2}}, sense.Pace{2, 8, 1, 1, 1}},
	} {
		if got := sense.PaceOf(c.steps); got != c.want {
			t.Errorf("%s: %+v; want %+v", c.name, got, c.want)
		}
	}
}
