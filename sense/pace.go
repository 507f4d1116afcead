package sense

import (
	"cmp"
	"slices"
)

// Pace is what the optimizer steps of a job take, by their quartiles, in seconds: the time from
// commit to commit, divided by the steps of a round.
type Pace struct {
	Steps                uint64 // that were looked at; 0 = there were none, and nothing is known
	Batch                uint64 // samples of each
	First, Median, Third float64
}

// PaceOf returns the pace of those of some steps, the newest last, that were made as the newest:
// with as many members, and the same setting. Only whole steps count: the last of an epoch can have
// fewer samples.
func PaceOf(steps []StepSample) (p Pace) {
	if len(steps) == 0 {
		return p
	}
	newest := steps[len(steps)-1]
	whole := slices.DeleteFunc(slices.Clone(steps), func(x StepSample) bool {
		return x.Samples != x.Batch || x.Size != newest.Size || x.Batch != newest.Batch ||
			x.Change != newest.Change || x.Deal != newest.Deal || !x.IsInRounds(newest.Round)
	})
	if len(whole) == 0 {
		return p
	}
	p.Batch = newest.Batch
	slices.SortFunc(whole, func(a, b StepSample) int { return cmp.Compare(a.Seconds, b.Seconds) })
	for _, x := range whole {
		p.Steps += x.Steps()
	}
	// at returns what the i-th of the steps takes, from the fastest on.
	at := func(i uint64) float64 {
		for _, x := range whole {
			if n := x.Steps(); i < n {
				return x.Seconds
			} else {
				i -= n
			}
		}
		return whole[len(whole)-1].Seconds
	}
	last := p.Steps - 1
	p.First, p.Third = at(last/4), at(last-last/4)
	p.Median = (at(last/2) + at(last-last/2)) / 2
	return p
}
