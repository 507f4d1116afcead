// Package twin predicts what a running job would do with another setting, from what it has been
// seen to do: how long a step takes by its size, what a sample of a larger batch is worth, and how
// far off such predictions were before. It is pure: it has no clock, and who gives it the same
// observations gets the same predictions.
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

const (
	// levelSteps is how many of the newest steps say how fast the job is now, and minSteps how many
	// it takes at least.
	levelSteps, minSteps = 16, 3

	// trustedGrowth is up to how many times the stated batch the formula of the efficiency is
	// trusted. With each doubling from there the true one may be lower by the share tooHopeful or
	// higher by tooCareful. On the profiles of Pollux, one run in ten needed 7 % more samples than
	// the formula says at 4 times, 1 % at 16 times and fewer beyond, but some never arrived; one in
	// ten needed less than 62 % at 8 times, 50 % at 16 and 30 % at 128 times.
	trustedGrowth, tooHopeful, tooCareful = 8, 0.02, 0.2
)

// Twin implements decide.Twin. The zero value has observed nothing. One goroutine uses it at a
// time.
type Twin struct {
	now          sense.Observation
	known        bool           // rate and line are those of now
	rate         setting.Band   // samples a second now; zero = it is not known
	line         line           // seconds of a step by its size
	members      membersModel   // seconds of a step by its members too
	membersKnown bool           // members is that of now
	sizes        []size         // what steps took, the newest size first; at most maxSizes
	under        under          // how workers trained that sizes are of
	doubted      int            // members of which steps are doubted at the next fit; 0 = of none
	since        uint64         // steps up to this one say nothing any more
	drifts       []Drift        // the newest last; at most maxDrifts
	kinds        []*calibration // what was learnt of changes, by kind, the first to come first

	divided   division // how work is divided
	head      float64  // samples that the fixed part of a worker's work is worth
	headKnown bool     // it was measured
	exchange  exchange // between workers
}

// Observe tells the twin how the job does now, with which it compares its predictions.
func (t *Twin) Observe(o sense.Observation) {
	t.now, t.known = o, false
	t.learnExchange()
}

// SamplesPerSecond returns how many samples a second the job trains on now; zero = it is not known.
func (t *Twin) SamplesPerSecond() setting.Band {
	t.refit()
	return t.rate
}

// LastInvalidStep returns the number of the step up to which nothing counts any more, because the
// job has become much faster or slower since, by itself; 0 = that has not happened.
func (t *Twin) LastInvalidStep() uint64 {
	t.refit()
	return t.since
}

// LastOtherStep returns the number of the step up to which none says how fast the job is: see
// LastInvalidStep, or workers synchronised in another way then.
func (t *Twin) LastOtherStep() uint64 { return max(t.LastInvalidStep(), t.exchange.since) }

// MeasuredSteps returns the steps that tell how the job does now.
func (t *Twin) MeasuredSteps() []sense.StepSample {
	t.refit()
	return t.currentSteps(t.stepsDividedAsNow())
}

// refit brings rate and line up to the newest observation.
func (t *Twin) refit() {
	if t.known {
		return
	}
	t.known, t.membersKnown = true, false
	t.learnDivision()
	steps := t.stepsDividedAsNow()
	current, since := t.currentSteps(steps), t.since
	t.rescaleForDivision(current)
	if t.detectDrift(current); t.since != since {
		steps = t.stepsDividedAsNow()
		current = t.currentSteps(steps)
	}
	t.rate, t.line = setting.Band{}, line{}
	if len(current) < minSteps {
		return
	}
	t.rate, _ = sense.Rate(current[max(0, len(current)-levelSteps):])
	t.rememberSizes(steps)
	t.doubtSizes()
	fixed := t.now.Split.Exposed + t.now.Split.Optimizer
	at := samplesOfBusiestWorker(t.now.Setting.Batch, t.now.Size)
	t.line = fitLine(nearestSizes(t.sizesFor(t.now.Size), at), at, sense.Deviation(current),
		fixed*t.rate.Mid/float64(t.now.Setting.Batch))
}

// stepsDividedAsNow returns the steps that count in which work was divided as it is now, in rounds
// of as many steps.
func (t *Twin) stepsDividedAsNow() []sense.StepSample {
	deal := sense.DealOf(t.now.Setting.Shares)
	from := max(t.since, t.exchange.since)
	return slices.DeleteFunc(t.now.Steps.Between(min(from, t.now.Step), t.now.Step),
		func(x sense.StepSample) bool {
			return x.Deal != deal || !x.IsInRounds(t.now.Setting.Round)
		})
}

// currentSteps returns those of some steps that are whole and were made as the job trains now.
func (t *Twin) currentSteps(steps []sense.StepSample) (list []sense.StepSample) {
	for _, x := range steps {
		if x.Batch == t.now.Setting.Batch && x.Samples == x.Batch && x.Size == t.now.Size {
			list = append(list, x)
		}
	}
	return list
}

// samplesOfBusiestWorker returns how many samples of a step the worker has that has most, of some
// workers with equal shares.
func samplesOfBusiestWorker(samples uint64, size int) float64 {
	return math.Ceil(float64(samples) / float64(max(size, 1)))
}

// Predict implements decide.Twin. It knows what the batch, the size, the shares of work and the way
// to synchronise change, that the steps between checkpoints change what these cost and save, and
// that the rate changes nothing else.
func (t *Twin) Predict(to decide.Target) decide.Prediction {
	t.refit()
	size := to.Members(t.now)
	to.Setting = to.Setting.WithStated(t.now.First, t.now.Levers)
	from, batch := t.now.Setting, to.Setting.Batch
	before, after := from.Diff(to.Setting)
	change := setting.Change{From: before, To: after}
	parts := change.Parts()
	if unknown := unknownPart(parts); unknown != "" {
		return decide.Prediction{Guess: unknown}
	}
	if !t.rate.IsKnown() || from.Batch == 0 || batch == 0 {
		return decide.Prediction{Guess: t.whyNoRate()}
	}
	kind := t.calibrationOf(kindOf(change))
	p := decide.Prediction{Throughput: unit, Efficiency: unit}
	if kind.name == "shares" {
		if p.Throughput, p.Guess = t.predictShares(to.Setting); !p.Throughput.IsKnown() {
			return decide.Prediction{Guess: p.Guess}
		}
		p.Throughput = widenBand(p.Throughput, kind.widthFactor())
	}
	if size != t.now.Size {
		p.Throughput, p.Guess = t.membersThroughput(batch, size)
		p.Untried = p.Guess != ""
		p.Throughput = widenBand(p.Throughput, kind.widthFactor())
	} else if batch != from.Batch {
		p.Throughput, p.Guess = t.batchThroughput(batch)
		p.Untried = !t.line.isMeasured()
		p.Throughput = widenBand(p.Throughput, kind.widthFactor())
	}
	if batch != from.Batch {
		p.Efficiency = t.batchEfficiency(batch)
	}
	if changesRound(parts) {
		way := wayOf(to.Setting)
		in := t.roundThroughput(way)
		if !in.IsKnown() {
			return decide.Prediction{Guess: "where the time of steps goes is not known"}
		}
		p.Throughput = bandProduct(p.Throughput, widenBand(in, kind.widthFactor()))
		b, careful := t.roundEfficiency(way, float64(from.Batch)/t.rate.Mid)
		p.Careful = p.Efficiency.Low * careful
		if p.Efficiency.IsKnown() && b.IsKnown() {
			p.Efficiency = bandProduct(p.Efficiency, b)
		} else {
			p.Efficiency = setting.Band{}
		}
	}
	p.Goodput = bandProduct(p.Throughput, p.Efficiency)
	seconds := float64(batch) / t.rate.Mid
	p.StepSeconds = setting.Band{Low: seconds / p.Throughput.High, Mid: seconds / p.Throughput.Mid,
		High: seconds / p.Throughput.Low}
	p.CostSeconds = kind.costSeconds(float64(from.Batch) / t.rate.Mid)
	if to.Setting.Save != from.Save {
		if p = t.withSaves(p, to.Setting); !p.Throughput.IsKnown() {
			return p
		}
	}
	if !p.Efficiency.IsKnown() {
		p.Goodput = setting.Band{}
		p.Guess = "the gradient noise scale is unknown: " + t.now.Noise.Why
	}
	return p
}

// whyNoRate returns why it is not known how fast the job is, in words.
func (t *Twin) whyNoRate() string {
	s := t.now.Setting
	switch round := uint64(max(s.Round, 1)); {
	case t.now.Samples == 0 || s.Batch <= t.now.Samples/round:
	case round == 1:
		return fmt.Sprintf("no step is whole: an epoch has %d samples, and a batch %d",
			t.now.Samples, s.Batch)
	default:
		return fmt.Sprintf("no round is whole: an epoch of %d samples is shorter than %d steps",
			t.now.Samples, s.Round)
	}
	return fmt.Sprintf("fewer than %d steps by the setting of now were measured", minSteps)
}

// batchThroughput returns by which factor the samples a second grow with another batch, and what of
// it is a guess.
func (t *Twin) batchThroughput(batch uint64) (b setting.Band, guess string) {
	from := t.now.Setting.Batch
	x := samplesOfBusiestWorker(batch, t.now.Size)
	growth := float64(batch) / float64(from)
	seconds := t.line.seconds(x)
	if !t.line.isMeasured() {
		guess = fmt.Sprintf("only steps of %d samples were measured", from)
	} else if t.line.scaled && t.since == 0 {
		guess = "other batches were measured with other members"
	} else if t.line.scaled {
		guess = fmt.Sprintf("other batches were measured before step %d, when the job became "+
			"another one", t.since)
	}
	spread := (portable.Log(t.rate.High) - portable.Log(t.rate.Low)) / math.Sqrt2
	chance := t.line.standardErrorAt(x)
	wide := portable.Exp(portable.Hypot(portable.Hypot(t.line.doubtAt(x), spread), chance))
	return setting.Band{Low: growth / seconds.High / wide, Mid: growth / seconds.Mid,
		High: growth / seconds.Low * wide}, guess
}

// batchEfficiency returns by which factor what a sample brings grows with another batch, (φ + B) /
// (φ + B') where φ is the noise scale (McCandlish et al. 2018, §2.2; Pollux, OSDI 2021, §3.1);
// zero = the noise is not known.
func (t *Twin) batchEfficiency(batch uint64) setting.Band {
	if !t.now.Noise.Known {
		return setting.Band{}
	}
	from, to := float64(t.now.Setting.Batch), float64(batch)
	// at returns the factor at a noise scale.
	at := func(scale float64) float64 { return (1 + from/scale) / (1 + to/scale) }
	scale := t.now.Noise.Scale
	if t.now.Noise.Above { // it is anywhere from there on, and a larger batch will see where
		scale = setting.Band{Low: 2 * scale.Low, Mid: 4 * scale.Low, High: math.Inf(1)}
	}
	low, high := at(scale.Low), at(scale.High)
	first := float64(t.now.First)
	if first == 0 {
		first = from
	}
	// beyond returns by how many doublings a batch is beyond what the formula is trusted for.
	beyond := func(batch float64) float64 {
		return portable.Log2(max(1, batch/(trustedGrowth*first)))
	}
	up, down := max(beyond(to)-beyond(from), 0), max(beyond(from)-beyond(to), 0)
	less := portable.Exp(float64(-tooHopeful*up) - float64(tooCareful*down))
	more := portable.Exp(float64(tooCareful*up) + float64(tooHopeful*down))
	return setting.Band{Low: min(low, high) * less, Mid: at(scale.Mid), High: max(low, high) * more}
}

// unit is the factor of what does not change.
var unit = setting.Band{Low: 1, Mid: 1, High: 1}

// bandProduct returns the band of the product of two positive numbers that do not depend on each
// other: the squares of their relative widths add up.
func bandProduct(a, b setting.Band) setting.Band {
	mid := a.Mid * b.Mid
	below := portable.Hypot(portable.Log(a.Mid/a.Low), portable.Log(b.Mid/b.Low))
	above := portable.Hypot(portable.Log(a.High/a.Mid), portable.Log(b.High/b.Mid))
	return setting.Band{Low: mid * portable.Exp(-below), Mid: mid, High: mid * portable.Exp(above)}
}

// widenBand returns a band around the same middle whose relative widths are multiplied by a factor.
func widenBand(b setting.Band, factor float64) setting.Band {
	return setting.Band{Low: b.Mid * portable.Pow(b.Low/b.Mid, factor), Mid: b.Mid,
		High: b.Mid * portable.Pow(b.High/b.Mid, factor)}
}
