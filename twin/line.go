package twin

import (
	"cmp"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// maxWeight is how many steps of a size count at most: more of them say nothing about the
	// others.
	maxWeight = 32
	// huber is beyond which error, in logarithms, a size counts as an outlier (Huber, "Robust
	// Estimation of a Location Parameter", 1964).
	huber = 0.05
	// shares is into how many parts the fixed share is divided in the search for it.
	shares = 256

	// guessLow and guessHigh are the ends of the band of the fixed share as long as nothing is
	// known of it. On the profiles of Pollux, with 4 GPUs, a step of twice the size then takes what
	// the middle says times or over 1.38, give or take 2 %, in 86 of 100 cases.
	guessLow, guessHigh = 0.09, 0.91
	// doubtOutside is the error, in logarithms, of a line at twice the largest size that was
	// measured: on the same profiles 80 of 100 errors are below it, and half are below 0.06.
	doubtOutside = 0.2
	// doubtInside is the error for a doubling between sizes that were measured.
	doubtInside = 0.03
	// misfit is how far, in logarithms, sizes lie from the line where steps do not differ.
	misfit = 0.05
)

// line says how long a step takes by the samples that the busiest worker has: a + b·samples, and
// between sizes that were measured as much more or less as these. It is a multiple of what a step
// takes now. The zero value knows nothing.
type line struct {
	at     float64      // samples of a worker now, where a + b·samples is 1
	fixed  setting.Band // a; the share of the step that does not depend on its samples
	points []point      // measured sizes, the smallest first; with fewer than two a is a guess
	scaled bool         // some of them are from before the job became another one
}

// point is a size that was measured.
type point struct {
	samples float64 // of a worker
	off     float64 // logarithm of what it took, over what a + b·samples says
	error   float64 // standard error of what it took, in logarithms
}

// fitLine returns the line through some sizes, the smallest first, of a job whose busiest worker
// has `at` samples now, and whose steps differ by a standard deviation, in logarithms. Known is the
// share of the step that is known not to depend on its samples.
func fitLine(sizes []size, at, deviation, known float64) line {
	known = min(max(known, 0), 0.9)
	l := line{at: at}
	if len(sizes) < 2 {
		free := 1 - known
		l.fixed = setting.Band{Low: known + float64(guessLow*free), Mid: known + float64(free/2),
			High: known + float64(guessHigh*free)}
		return l
	}
	share, level := fitShare(sizes, at, known)
	l.fixed = setting.Band{Low: share, Mid: share, High: share}
	for _, s := range sizes {
		l.scaled = l.scaled || s.scaled
	}
	for _, s := range sizes {
		off := s.log - level - portable.Log(share+(1-share)*s.samples/at)
		// What differs because steps do is not believed (James and Stein, 1961).
		n := float64(s.steps)
		off *= n / (n + portable.Pow(medianError*deviation/misfit, 2))
		if l.scaled { // of a job that has become another one only the share may still hold
			off = 0
		}
		l.points = append(l.points, point{s.samples, off,
			medianError * deviation / math.Sqrt(n)})
	}
	return l
}

// fitShare returns the share of a step with `at` samples that does not depend on them, which is at
// least the one that is known, and the logarithm of its seconds, as two sizes or more say.
func fitShare(sizes []size, at, known float64) (best, level float64) {
	best, least := known, math.Inf(1)
	for i := range shares + 1 {
		share := known + float64((1-known)*float64(i)/shares)
		if loss, middle := lossOf(share, at, sizes); loss < least {
			best, least, level = share, loss, middle
		}
	}
	return best, level
}

// lossOf returns how badly a fixed share explains what some sizes take, and the logarithm of what a
// step of now takes then.
func lossOf(share, at float64, sizes []size) (loss, level float64) {
	type residual struct{ error, weight float64 }
	list, half := make([]residual, len(sizes)), 0.0
	for i, s := range sizes {
		weight := float64(min(s.steps, maxWeight)) / (1 + math.Abs(portable.Log2(s.samples/at)))
		list[i] = residual{s.log - portable.Log(share+(1-share)*s.samples/at), weight}
		half += float64(weight / 2)
	}
	slices.SortFunc(list, func(a, b residual) int { return cmp.Compare(a.error, b.error) })
	middle := 0
	for sum := list[0].weight; sum < half; sum += list[middle].weight {
		middle++
	}
	level = list[middle].error
	for _, r := range list {
		e := math.Abs(r.error - level)
		if e > huber {
			e = math.Sqrt(huber * (2*e - huber))
		}
		loss += float64(r.weight * e * e)
	}
	return loss, level
}

// isMeasured reports whether steps of two sizes were measured; else fixed is a guess.
func (l line) isMeasured() bool { return len(l.points) > 1 }

// seconds returns how long a step takes in which the busiest worker has so many samples, as a
// multiple of a step of now.
func (l line) seconds(samples float64) setting.Band {
	x, off := samples/l.at, portable.Exp(l.deviationAt(samples)-l.deviationAt(l.at))
	// with returns that for a fixed share.
	with := func(share float64) float64 { return (share + float64((1-share)*x)) * off }
	low, high := with(l.fixed.Low), with(l.fixed.High)
	return setting.Band{Low: min(low, high), Mid: with(l.fixed.Mid), High: max(low, high)}
}

// deviationAt returns by how much, in logarithms, a step of a size takes longer than a + b·samples:
// as the sizes on both sides do, and outside of them as the nearest one.
func (l line) deviationAt(samples float64) float64 {
	for i, p := range l.points {
		if samples > p.samples {
			continue
		}
		if i == 0 {
			return p.off
		}
		before := l.points[i-1]
		part := portable.Log(samples/before.samples) / portable.Log(p.samples/before.samples)
		return before.off + float64(part*(p.off-before.off))
	}
	if n := len(l.points); n > 0 {
		return l.points[n-1].off
	}
	return 0
}

// standardErrorAt returns the standard error, in logarithms, of what is said of a size: that of the
// worse of the sizes around it that were measured.
func (l line) standardErrorAt(samples float64) (worst float64) {
	i := 1 // after the point below, or that of the two at the end
	for i < len(l.points)-1 && l.points[i].samples < samples {
		i++
	}
	if !l.isMeasured() {
		return 0
	}
	return max(l.points[i-1].error, l.points[i].error)
}

// doubtAt returns how wrong the line may be at a size, in logarithms, beside what its share says.
func (l line) doubtAt(samples float64) float64 {
	if !l.isMeasured() {
		return 0
	}
	least, most := l.points[0].samples, l.points[len(l.points)-1].samples
	outside := portable.Log2(max(1, samples/most, least/samples))
	away := math.Abs(portable.Log2(samples / l.at))
	if l.scaled {
		outside = max(outside, away)
	}
	return portable.Hypot(doubtOutside*outside, doubtInside*min(1, away))
}
