package twin

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// What becomes of a step when work is divided otherwise among the workers. A worker of slowness s
// works s·(φ + n) seconds on n samples, where φ is what the fixed part of its work is worth in
// samples, and the same for all: it is how a model computes. A step takes as long as the worker
// that takes longest. The methods of Twin are for the goroutine that uses it.

const (
	// headMost is up to how many times the mean samples of a worker φ is looked for.
	headMost = 8
	// headMisfit is up to which mean error, in logarithms, workers are as slow as before.
	headMisfit = 0.1
	// headDoubt is by which factor φ may be wrong that was measured.
	headDoubt = 1.5
	// guessedHeadMid and guessedHeadHigh are the band of φ, as a multiple of the mean samples of
	// a worker, as long as nothing is known of it. In its middle a quarter of the work does not
	// depend on the samples.
	guessedHeadMid, guessedHeadHigh = 1.0 / 3, 3.0
)

// division is how work was divided, and what the workers did.
type division struct {
	deal uint32 // sense.DealOf the shares
	work []decide.Work
}

// learnDivision takes in what the workers do now. Where work was divided otherwise before, that
// shows which part of it does not depend on the samples, if they are as slow as then.
func (t *Twin) learnDivision() {
	work, _, why := decide.WorkOf(t.now)
	if why != "" {
		return
	}
	before := t.divided
	t.divided = division{sense.DealOf(t.now.Setting.Shares), work}
	if before.deal == t.divided.deal || len(before.work) != len(work) {
		return
	}
	mean, moved := 0.0, 0.0
	for i, w := range work {
		if w.Samples == 0 || before.work[i].Samples == 0 {
			return
		}
		mean += w.Samples / float64(len(work))
		moved = max(moved, math.Abs(portable.Log(w.Samples/before.work[i].Samples)))
	}
	// error returns how badly a φ explains what the workers take now, by what they took before.
	error := func(head float64) (sum float64) {
		for i, w := range work {
			b := before.work[i]
			sum += math.Abs(portable.Log(w.Seconds/b.Seconds) -
				portable.Log((head+w.Samples)/(head+b.Samples)))
		}
		return sum / float64(len(work))
	}
	best, least := 0.0, error(0)
	for x := 1.0 / 64; x <= headMost; x *= 1.1 {
		if e := error(float64(x * mean)); e < least {
			best, least = x*mean, e
		}
	}
	if moved > 2*headMisfit && least < headMisfit {
		t.head, t.headKnown = best, true
	}
}

// predictShares returns by which factor the samples a second grow when work is divided as a
// setting says, and what of it is a guess; zero = nothing is known.
func (t *Twin) predictShares(to setting.Setting) (b setting.Band, guess string) {
	work, beside, why := decide.WorkOf(t.now)
	if why != "" {
		return setting.Band{}, why
	}
	after := decide.SamplesOf(to, t.now.Size)
	mean := t.now.Setting.Batch / uint64(t.now.Size)
	heads := setting.Band{Low: t.head / headDoubt, Mid: t.head,
		High: float64(t.head*headDoubt) + float64(0.05*float64(mean))}
	if !t.headKnown {
		heads = setting.Band{Mid: guessedHeadMid * float64(mean),
			High: guessedHeadHigh * float64(mean)}
		guess = "how much of a step does not depend on its samples is a guess"
	}
	deviation := min(sense.Deviation(t.MeasuredSteps()), 0.5)
	now := make([]float64, len(work))
	for i, w := range work {
		now[i] = w.Seconds
	}
	before := expectedMax(now, deviation) + beside
	// growth returns the factor for a φ.
	growth := func(head float64) float64 {
		then := make([]float64, len(work))
		for i, w := range work {
			then[i] = w.Seconds * (head + after[i]) / max(head+w.Samples, 1)
		}
		return before / (expectedMax(then, deviation) + beside)
	}
	low, mid, high := growth(heads.High), growth(heads.Mid), growth(heads.Low)
	spread := portable.Exp((portable.Log(t.rate.High) - portable.Log(t.rate.Low)) / math.Sqrt2)
	return setting.Band{Low: min(low, mid, high) / spread, Mid: mid,
		High: max(low, mid, high) * spread}, guess
}

// expectedMax returns the mean of the longest of some times that are drawn around their means, each
// with a standard deviation that is that share of its mean.
func expectedMax(means []float64, deviation float64) float64 {
	longest := slices.Max(means)
	if deviation == 0 {
		return longest
	}
	// The mean is the integral of how probable it is that the longest is longer than x.
	const parts = 64
	from := float64(longest * (1 - float64(3*deviation)))
	to := float64(longest * (1 + float64(4*deviation)))
	sum, step := max(from, 0), (to-max(from, 0))/parts
	for i := range parts {
		x, below := max(from, 0)+float64((float64(i)+0.5)*step), 1.0
		for _, m := range means {
			below *= portable.NormalBelow((x - m) / (m * deviation))
		}
		sum += float64((1 - below) * step)
	}
	return sum
}

// unknownPart returns that the twin does not know what a part of a setting changes, beside which
// others; "" = it does.
func unknownPart(parts []string) string {
	for _, part := range parts {
		switch part {
		case "batch", "rate", "save", "size", "round", "sync":
		case "shares":
			if len(parts) > 1 {
				return "what shares change together with other parts is not known"
			}
		default:
			return fmt.Sprintf("what %s changes is not known", part)
		}
	}
	return ""
}
