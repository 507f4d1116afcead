package twin

import (
	"cmp"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// maxWeight is how many steps of a size count at most: more of them say nothing about the
	// others.
	maxWeight = 32
	// huber is beyond which error, in logarithms, a size counts as an outlier (Huber, "Robust
	// Estimation of a Location Parameter", 1964).
	huber = 0.1
	// shares is into how many parts the fixed share is divided in the search for it.
	shares = 256

	// guessLow and guessHigh are the ends of the band of the fixed share as long as nothing is
	// known of it. On the profiles of Pollux, with 4 GPUs, a step of twice the size then takes what
	// the middle says times or over 1.45, in 80 of 100 cases.
	guessLow, guessHigh = 0.05, 0.95
	// doubtOutside is the error, in logarithms, of a line at twice the largest size that was
	// measured: on the same profiles 80 of 100 errors are below it, and half are below 0.06.
	doubtOutside = 0.2
	// doubtInside is the error for a doubling between sizes that were measured.
	doubtInside = 0.03
)

// line says how long a step takes by the samples that the busiest worker has: a + b·samples, as a
// multiple of what it takes now. The zero value knows nothing.
type line struct {
	at          float64      // samples of a worker now, where the step takes 1
	fixed       setting.Band // the share of the step that does not depend on its samples
	measured    bool         // steps of two sizes were measured; false = fixed is a guess
	least, most float64      // the smallest and the largest size that was measured
}

// size is all steps in which a worker had as many samples.
type size struct {
	samples float64 // of a worker
	log     float64 // logarithm of the median of their seconds
	weight  float64
}

// fitLine returns the line through steps of a job with so many members, whose busiest worker has
// `at` samples now. Known is the share of the step that is known not to depend on its samples.
func fitLine(steps []sense.StepSample, members int, at, known float64) line {
	known = min(max(known, 0), 0.9)
	groups := groupBySize(steps, members, at)
	if len(groups) < 2 {
		groups = groupBySize(steps, 0, at)
	}
	if len(groups) < 2 {
		free := 1 - known
		return line{at: at, least: at, most: at, fixed: setting.Band{Low: known + guessLow*free,
			Mid: known + free/2, High: known + guessHigh*free}}
	}
	best, least := known, math.Inf(1)
	for i := range shares + 1 {
		share := known + (1-known)*float64(i)/shares
		if loss := lossOf(share, at, groups); loss < least {
			best, least = share, loss
		}
	}
	return line{at: at, fixed: setting.Band{Low: best, Mid: best, High: best}, measured: true,
		least: groups[0].samples, most: groups[len(groups)-1].samples}
}

// groupBySize returns the sizes of steps with so many members (0 = any) that occurred often enough,
// the smallest first. Those nearer to `at` have more weight.
func groupBySize(steps []sense.StepSample, members int, at float64) (groups []size) {
	type point struct{ samples, seconds float64 }
	var points []point
	for _, x := range steps {
		if members == 0 || x.Size == members {
			points = append(points, point{perWorker(x.Samples, x.Size), x.Seconds})
		}
	}
	slices.SortFunc(points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.samples, b.samples), cmp.Compare(a.seconds, b.seconds))
	})
	for len(points) > 0 {
		n := 1
		for n < len(points) && points[n].samples == points[0].samples {
			n++
		}
		if n >= minSteps {
			x := points[0].samples
			groups = append(groups, size{x, math.Log(points[n/2].seconds),
				float64(min(n, maxWeight)) / (1 + math.Abs(math.Log2(x/at)))})
		}
		points = points[n:]
	}
	return groups
}

// lossOf returns how badly a fixed share explains the seconds of some sizes, whatever the level.
func lossOf(share, at float64, groups []size) (loss float64) {
	type residual struct{ error, weight float64 }
	list, half := make([]residual, len(groups)), 0.0
	for i, g := range groups {
		list[i] = residual{g.log - math.Log(share+(1-share)*g.samples/at), g.weight}
		half += g.weight / 2
	}
	slices.SortFunc(list, func(a, b residual) int { return cmp.Compare(a.error, b.error) })
	middle := 0
	for sum := list[0].weight; sum < half; sum += list[middle].weight {
		middle++
	}
	for _, r := range list {
		e := math.Abs(r.error - list[middle].error)
		if e > huber {
			e = math.Sqrt(huber * (2*e - huber))
		}
		loss += r.weight * e * e
	}
	return loss
}

// seconds returns how long a step takes in which a worker has so many samples, as a multiple of a
// step of now.
func (l line) seconds(samples float64) setting.Band {
	x := samples / l.at
	// with returns that for a fixed share.
	with := func(share float64) float64 { return share + (1-share)*x }
	low, high := with(l.fixed.Low), with(l.fixed.High)
	return setting.Band{Low: min(low, high), Mid: with(l.fixed.Mid), High: max(low, high)}
}

// doubt returns how wrong the line may be at a size, in logarithms, beside what its share says.
func (l line) doubt(samples float64) float64 {
	if !l.measured {
		return 0
	}
	outside := math.Log2(max(1, samples/l.most, l.least/samples))
	return math.Hypot(doubtOutside*outside, doubtInside*min(1, math.Abs(math.Log2(samples/l.at))))
}
