package sense

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

// MaxSteps is the number of samples that a StepSeries keeps.
const MaxSteps = 512

// StepSample is a committed step.
type StepSample struct {
	Step       uint64  // number of committed steps, with this one
	Seconds    float64 // from the commit before to this one; a mean where Alike or Round is set
	Samples    uint64  // samples that the step has trained on, over all workers
	Batch      uint64  // samples of a whole step; the last step of an epoch can have fewer
	Size       int     // members
	Generation uint64  // of the members
	Change     uint64  // number of the newest change when it was made; 0 = there was none
	Deal       uint32  // DealOf the shares of work; 0 = all ranks have the same
	// Alike is how many steps before this one were as this one, and are in Seconds, which is the
	// mean over all of them: of short steps not each is measured.
	Alike uint64
	// Round is of how many optimizer steps the round was that each worker made on its own until the
	// commit; 0 = one. Seconds and Samples are the means over them, and Step and Alike count
	// commits.
	Round uint32
}

// Steps is how many optimizer steps the sample is of.
func (x *StepSample) Steps() uint64 { return x.Count() * uint64(max(x.Round, 1)) }

// IsInRounds reports whether the step was made in a round of so many; 0 is as 1.
func (x *StepSample) IsInRounds(n uint32) bool { return max(x.Round, 1) == max(n, 1) }

// Count is how many commits the sample is of.
func (x *StepSample) Count() uint64 { return x.Alike + 1 }

// StepSeries holds the newest committed steps of a job. It knows which of them were disturbed, and
// say nothing of the next ones: the first of all, those before and after a change of members, the
// first one with another setting, and one after a gap in the numbers. The zero value has no steps.
// Only Add changes it; one goroutine uses it at a time.
type StepSeries struct {
	steps [MaxSteps]step // a ring: step i lies at i % MaxSteps
	n     int            // steps ever added
}

// step is an element of a StepSeries.
type step struct {
	StepSample
	disturbed bool
}

// Add adds the step that has committed last, in place of the oldest one when the series is full.
// A step that took no time, or had no samples or members, tells nothing and is left out.
func (s *StepSeries) Add(x StepSample) {
	if !(x.Seconds > 0) || math.IsInf(x.Seconds, 1) || x.Samples == 0 || x.Size < 1 {
		return
	}
	next := step{x, s.n == 0}
	if s.n > 0 {
		before := &s.steps[(s.n-1)%MaxSteps]
		moved := before.Generation != x.Generation || before.Size != x.Size
		before.disturbed = before.disturbed || moved
		next.disturbed = moved || before.Change != x.Change || before.Batch != x.Batch ||
			before.Deal != x.Deal || before.Step+x.Count() != x.Step
	}
	s.steps[s.n%MaxSteps] = next
	s.n++
}

// DealOf returns a number that tells shares of work among ranks from others; 0 = all have the same.
func DealOf(shares []uint16) uint32 {
	if len(shares) == 0 || slices.Min(shares) == slices.Max(shares) {
		return 0
	}
	hash := uint32(2166136261)
	for _, n := range shares {
		hash = mix(hash, uint32(n))
	}
	return max(hash, 1)
}

// DealUnder returns a number that tells a deal (DealOf) of workers that make so many steps a round,
// and synchronise in some way, from others.
func DealUnder(deal, round uint32, sync string) uint32 {
	hash := mix(deal, round)
	for _, letter := range []byte(sync) {
		hash = mix(hash, uint32(letter))
	}
	return hash
}

// mix goes on with a hash by FNV-1a, over the 32 bits of n at once.
func mix(hash, n uint32) uint32 { return (hash ^ n) * 16777619 }

// Newest returns the step that was added last, and whether there is one. A nil series has none.
func (s *StepSeries) Newest() (StepSample, bool) {
	if s == nil || s.n == 0 {
		return StepSample{}, false
	}
	return s.steps[(s.n-1)%MaxSteps].StepSample, true
}

// Between returns the samples of steps that were not disturbed and whose numbers are above from and
// up to to, in their order. The slice is the caller's. A nil series has no steps.
func (s *StepSeries) Between(from, to uint64) []StepSample { return s.list(from, to, false) }

// AllBetween is Between, from and up to the same numbers, with the disturbed steps too.
func (s *StepSeries) AllBetween(from, to uint64) []StepSample { return s.list(from, to, true) }

// list returns the steps whose numbers are above from and up to to, in their order; disturbed is
// whether the disturbed ones are among them.
func (s *StepSeries) list(from, to uint64, disturbed bool) (list []StepSample) {
	if s == nil {
		return nil
	}
	for i := max(0, s.n-MaxSteps); i < s.n; i++ {
		x := s.steps[i%MaxSteps]
		if (disturbed || !x.disturbed) && x.Step > from && x.Step-from >= x.Count() &&
			x.Step <= to {
			list = append(list, x.StepSample)
		}
	}
	return list
}

// Churn is how many members of a job come and go.
type Churn struct {
	Left, Joined float64 // a second, all members together; 0 = nobody
}

// Churn returns how many members came and went a second in the newest steps, up to so many seconds
// of them; where these steps took less than a minute in all, as if they had taken one. A nil series
// has none.
func (s *StepSeries) Churn(seconds float64) (c Churn) {
	if s == nil {
		return c
	}
	past := 0.0
	for i := s.n - 1; i > max(0, s.n-MaxSteps) && past < seconds; i-- {
		x, before := s.steps[i%MaxSteps], s.steps[(i-1)%MaxSteps]
		past += float64(x.Seconds * float64(x.Steps()))
		c.Left += max(float64(before.Size-x.Size), 0)
		c.Joined += max(float64(x.Size-before.Size), 0)
		if x.Size == before.Size && x.Generation != before.Generation { // one took another's place
			c.Left, c.Joined = c.Left+1, c.Joined+1
		}
	}
	past = max(past, 60)
	return Churn{c.Left / past, c.Joined / past}
}

// Rate returns the samples a second of steps, and of how many of them: the median of the whole
// steps, so that a few that were held up do not count. Its band is where that median lies in 80 of
// 100 cases if steps do not depend on each other. Without a whole step it says nothing.
func Rate(steps []StepSample) (rate setting.Band, n int) {
	var rates []float64
	for _, x := range steps {
		if x.Samples == x.Batch {
			rates = append(rates, float64(x.Samples)/x.Seconds)
		}
	}
	return medianBand(rates), len(rates)
}

// Deviation returns the standard deviation of the logarithms of the seconds of whole steps, by
// their quartiles, so that a few that were held up do not count; 0 = there are fewer than three.
func Deviation(steps []StepSample) float64 {
	var logs []float64
	for _, x := range steps {
		if x.Samples == x.Batch {
			logs = append(logs, portable.Log(x.Seconds))
		}
	}
	slices.Sort(logs)
	if n := len(logs); n > 2 {
		return (logs[3*(n-1)/4] - logs[(n-1)/4]) / 1.35
	}
	return 0
}

// medianBand returns the median of numbers and its interval, by their order (Conover, "Practical
// Nonparametric Statistics", §3.2). It sorts the numbers.
func medianBand(list []float64) setting.Band {
	if len(list) == 0 {
		return setting.Band{}
	}
	slices.Sort(list)
	n := float64(len(list))
	half := float64(1.28 / 2 * math.Sqrt(n)) // a tenth of a normal distribution lies above 1.28
	low := max(0, int(math.Floor(float64((n-1)/2)-half)))
	high := min(len(list)-1, int(math.Ceil(float64((n-1)/2)+half)))
	return setting.Band{Low: list[low], Mid: (list[(len(list)-1)/2] + list[len(list)/2]) / 2,
		High: list[high]}
}
