package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// leastWork and mostWork bound the work of a worker, as multiples of the mean. Who is so slow
	// that a quarter is too much holds up the others, and should go.
	leastWork, mostWork = 0.25, 2.0
	// sameSpeed is by which share of the speed of most workers another one differs at most that
	// counts as as fast as they.
	sameSpeed = 0.05
	// sharesGain is by which factor the samples a second must grow for a change of the shares, and
	// guessedGain where it is a guess which part of the work depends on samples.
	sharesGain, guessedGain = 1.03, 1.05
	// stay is for how many optimizer steps workers must have been slow before work moves; a round
	// of local steps has several of them. steadyFactor is by which factor their speeds may change
	// meanwhile from one look to the next. A bottleneck that goes by itself moves no work (late
	// binding: Lube, HotCloud 2017, §3). After maxUnsteady steps they may change by more.
	stay, steadyFactor, maxUnsteady = 10, 1.1, 60
	// look is after how many steps the policy looks again while it waits.
	look = 5
)

// fixedParts are what the part of a worker's work that does not depend on its samples may be worth,
// in mean samples of a worker. The least moves the least work.
var fixedParts = []float64{0, 1.0 / 32, 1.0 / 16, 0.125, 0.25, 0.5, 1, 2, 4}

// Shares divides the work among the workers by their measured speeds, so that all are ready at the
// same time and a slow one does not hold up the others. What is learned does not depend on it: each
// sample counts as much. It remembers how slow the workers were at the last look.
type Shares struct {
	// AtOnce has work move as soon as a worker is slow, to measure what it is worth to wait.
	AtOnce bool
}

// Name implements decide.Policy.
func (Shares) Name() string { return "shares" }

// Levers implements decide.Policy.
func (Shares) Levers() []string { return []string{"shares"} }

// seen is what Shares remembers of what it waits for.
type seen struct {
	Since uint64    `json:"since"` // step at which a change would have paid first
	Slow  []float32 `json:"slow"`  // by rank: seconds for a sample
	Deal  uint32    `json:"deal"`  // sense.DealOf the shares
}

// Decide implements decide.Policy.
func (p Shares) Decide(o sense.Observation, twin decide.Twin,
	state []byte) (decide.Decision, []byte) {
	if o.Levers.Alike {
		return decide.NoChange(setting.WhyAlike), nil
	}
	work, _, why := decide.WorkOf(o)
	if why != "" {
		return decide.NoChange(why), nil
	}
	if o.Setting.Batch < 2*uint64(o.Size) {
		return decide.NoChange(fmt.Sprintf("a batch of %d is too small to be divided otherwise "+
			"among %d workers", o.Setting.Batch, o.Size)), nil
	}
	list := scoreShares(o, twin, work)
	if len(list) == 0 {
		return decide.NoChange("work is divided as the workers are fast"), nil
	}
	best := list[0]
	because := describeSpeeds(o, best.slow)
	if best.tooSlow >= 0 {
		because += fmt.Sprintf("; a quarter of the mean is too much for %s",
			nameOf(o, best.tooSlow))
		if slices.ContainsFunc(o.Hosts, func(h string) bool { return h != o.Hosts[0] }) {
			because += ": see shoal drain"
		}
	}
	if why := whyTooLittle(best.Prediction); why != "" {
		return decide.NoChange(because + "; " + why), nil
	}
	move := decide.Decision{To: &best.Target, Because: because,
		Alternatives: alternativeShares(list)}
	if p.AtOnce {
		return move, nil
	}
	old := seen{}
	if json.Unmarshal(state, &old) != nil || len(old.Slow) != o.Size ||
		old.Deal != sense.DealOf(o.Setting.Shares) {
		old = seen{Since: o.Step}
	}
	slow := make([]float32, o.Size) // short enough to be remembered of many
	for rank, w := range work {
		slow[rank] = float32(w.Seconds / max(w.Samples, 1))
	}
	round := uint64(max(o.Setting.Round, 1))
	isNew, waits := !slices.Equal(old.Slow, slow), (o.Step-old.Since)*round
	if waits >= stay && isNew && (isSteady(old.Slow, slow) || waits >= maxUnsteady) {
		return move, nil
	}
	d := decide.NoChange(fmt.Sprintf("%s; it must stay so for %d steps", because, stay))
	switch {
	case waits >= stay && isNew:
		d.Because = because + "; that still changes"
	case waits >= stay:
		d.Because = because + "; it waits for newer measurements"
	}
	d.Again = (look-1)/round + 1
	old.Slow, old.Deal = slow, sense.DealOf(o.Setting.Shares)
	state, _ = json.Marshal(old)
	return d, state
}

// whyTooLittle returns why what is predicted of other shares is not worth a change, in words; "" =
// it is. Not as for batches, the middle counts where it is a guess, and else also the low end:
// chance makes some worker look slow in every job, and what may come of that is not worth a try.
func whyTooLittle(p decide.Prediction) string {
	switch gain := p.Throughput; {
	case p.Gain() == 0:
		return p.Guess
	case p.Guess != "" && gain.Mid <= guessedGain:
		return fmt.Sprintf("other shares bring %.3gx, and %s", gain.Mid, p.Guess)
	case p.Guess == "" && (gain.Mid <= sharesGain || gain.Low <= 1):
		return fmt.Sprintf("other shares bring %.3gx (%.3g–%.3g)", gain.Mid, gain.Low, gain.High)
	}
	return ""
}

// isSteady reports whether workers are about as slow as at another look.
func isSteady(before, now []float32) bool {
	if len(before) != len(now) {
		return false
	}
	for i, x := range now {
		if math.Abs(portable.Log(float64(x/before[i]))) > portable.Log(steadyFactor) {
			return false
		}
	}
	return true
}

// division is how work could be divided, and why.
type division struct {
	decide.Scored
	slow    []float64 // by rank: seconds for a sample, as the division takes it
	tooSlow int       // the rank for which leastWork is too much; -1 = none
}

// scoreShares returns how work could be divided otherwise, the best first.
func scoreShares(o sense.Observation, twin decide.Twin, work []decide.Work) (list []division) {
	mean := float64(o.Setting.Batch) / float64(o.Size)
	now := decide.SamplesOf(o.Setting, o.Size)
	for _, part := range fixedParts {
		d := division{tooSlow: -1, slow: make([]float64, o.Size)}
		for rank, w := range work {
			d.slow[rank] = w.Seconds / max(float64(part*mean)+w.Samples, 1)
		}
		like := slices.Clone(d.slow)
		slices.Sort(like)
		middle := like[(len(like)-1)/2]
		for rank, x := range d.slow {
			if math.Abs(portable.Log(x/middle)) < sameSpeed {
				d.slow[rank] = middle
			}
		}
		d.Setting = o.Setting
		d.Setting.Shares, d.tooSlow = divideWork(d.slow, part*mean, mean)
		if slices.Equal(decide.SamplesOf(d.Setting, o.Size), now) {
			continue
		}
		d.Prediction = twin.Predict(d.Target)
		list = append(list, d)
	}
	slices.SortStableFunc(list, func(a, b division) int { return cmp.Compare(b.Gain(), a.Gain()) })
	return list
}

// divideWork returns the shares by which workers are ready at the same time that take so many
// seconds for a sample, where a fixed part of their work is worth some samples, as percentages of
// the mean of samples; nil = all have the same. It returns also the slowest rank that should have
// less than it can, -1 if there is none.
func divideWork(slow []float64, fixed, mean float64) (shares []uint16, tooSlow int) {
	least, most := max(leastWork*mean, min(2, mean)), mostWork*mean
	// samples returns what a worker has if all work for so many seconds.
	samples := func(x, seconds float64) float64 { return seconds/x - fixed }
	low, high := 0.0, slices.Max(slow)*(fixed+most)
	for range 60 { // bisection
		middle, sum := (low+high)/2, 0.0
		for _, x := range slow {
			sum += min(max(samples(x, middle), least), most)
		}
		if sum < mean*float64(len(slow)) {
			low = middle
		} else {
			high = middle
		}
	}
	tooSlow = -1
	for rank, x := range slow {
		n := samples(x, high)
		if n < leastWork*mean*(1-sameSpeed) && (tooSlow < 0 || x > slow[tooSlow]) {
			tooSlow = rank
		}
		shares = append(shares, uint16(math.Round(100*min(max(n, least), most)/mean)))
	}
	if sense.DealOf(shares) == 0 {
		return nil, tooSlow
	}
	return shares, tooSlow
}

// describeSpeeds says which worker is slow, or else fast, compared with most others.
func describeSpeeds(o sense.Observation, slow []float64) string {
	sorted := slices.Sorted(slices.Values(slow))
	middle := sorted[(len(sorted)-1)/2]
	at, word := slices.Index(slow, slices.Max(slow)), "long"
	factor := slow[at] / middle
	if fastest := slices.Min(slow); middle/fastest > factor {
		at, factor, word = slices.Index(slow, fastest), middle/fastest, "short"
	}
	if factor < 1+sameSpeed {
		return "all workers are about as fast"
	}
	if word == "short" {
		return fmt.Sprintf("%s is %.1f times as fast as most", nameOf(o, at), factor)
	}
	text := fmt.Sprintf("%s takes %.1f times as long for a sample as most", nameOf(o, at), factor)
	if at < len(o.Hosts) {
		if why := o.WhySlow(o.Hosts[at]); why != "" {
			text += ", and " + why
		}
	}
	return text
}

// nameOf returns what people call the worker of a rank: its rank, and its host where that is known.
func nameOf(o sense.Observation, rank int) string {
	if rank < len(o.Hosts) && o.Hosts[rank] != "" {
		return fmt.Sprintf("rank %d on %s", rank, o.Hosts[rank])
	}
	return fmt.Sprintf("rank %d", rank)
}

// alternativeShares returns up to three alternatives to the first division of a sorted list, each
// of which divides the work otherwise, the best first.
func alternativeShares(list []division) (others []decide.Scored) {
	known := []decide.Scored{list[0].Scored}
	for _, d := range list[1:] {
		// same reports whether another one divides the work alike.
		same := func(x decide.Scored) bool {
			return slices.Equal(x.Setting.Shares, d.Setting.Shares)
		}
		if len(others) < 3 && !slices.ContainsFunc(known, same) {
			known, others = append(known, d.Scored), append(others, d.Scored)
		}
	}
	return others
}
