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

// Rate returns how many samples a second the job trains on now; zero = it is not known.
func (t *Twin) Rate() setting.Band {
	t.fit()
	return t.rate
}

// Since returns the number of the step before which nothing counts any more, because the job has
// become much faster or slower since, by itself; 0 = that has not happened.
func (t *Twin) Since() uint64 {
	t.fit()
	return t.since
}

// Measured returns the steps that tell how the job does now.
func (t *Twin) Measured() []sense.StepSample {
	t.fit()
	return t.current(t.dealtAsNow())
}

// fit brings rate and line up to the newest observation.
func (t *Twin) fit() {
	if t.known {
		return
	}
	t.known, t.membersKnown = true, false
	t.learnDivision()
	steps := t.dealtAsNow()
	current, since := t.current(steps), t.since
	t.redeal(current)
	if t.absorb(current); t.since != since {
		steps = t.dealtAsNow()
		current = t.current(steps)
	}
	t.rate, t.line = setting.Band{}, line{}
	if len(current) < minSteps {
		return
	}
	t.rate, _ = sense.Rate(current[max(0, len(current)-levelSteps):])
	t.remember(steps)
	t.doubt()
	fixed := t.now.Split.Exposed + t.now.Split.Optimizer
	at := perWorker(t.now.Setting.Batch, t.now.Size)
	t.line = fitLine(nearest(t.sizesFor(t.now.Size), at), at, sense.Deviation(current),
		fixed*t.rate.Mid/float64(t.now.Setting.Batch))
}

// dealtAsNow returns the steps that count in which work was divided as it is now, in rounds of as
// many steps.
func (t *Twin) dealtAsNow() []sense.StepSample {
	deal := sense.DealOf(t.now.Setting.Shares)
	from := max(t.since, t.exchange.since)
	return slices.DeleteFunc(t.now.Steps.Between(min(from, t.now.Step), t.now.Step),
		func(x sense.StepSample) bool {
			return x.Deal != deal || !x.IsInRounds(t.now.Setting.Round)
		})
}

// current returns those of some steps that are whole and were made as the job trains now.
func (t *Twin) current(steps []sense.StepSample) (list []sense.StepSample) {
	for _, x := range steps {
		if x.Batch == t.now.Setting.Batch && x.Samples == x.Batch && x.Size == t.now.Size {
			list = append(list, x)
		}
	}
	return list
}

// perWorker returns how many samples of a step the worker has that has most.
func perWorker(samples uint64, size int) float64 {
	return math.Ceil(float64(samples) / float64(max(size, 1)))
}

// Predict implements decide.Twin. It knows what the batch, the size, the shares of work and the way
// to synchronise change, that the steps between checkpoints change what these cost and save, and
// that the rate changes nothing else.
func (t *Twin) Predict(to decide.Target) decide.Prediction {
	t.fit()
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
		return decide.Prediction{Guess: fmt.Sprintf("fewer than %d steps by the setting of now "+
			"were measured", minSteps)}
	}
	kind := t.kind(kindOf(change))
	p := decide.Prediction{Throughput: unit, Efficiency: unit}
	if kind.name == "shares" {
		if p.Throughput, p.Guess = t.predictShares(to.Setting); !p.Throughput.IsKnown() {
			return decide.Prediction{Guess: p.Guess}
		}
		p.Throughput = stretch(p.Throughput, kind.factor())
	}
	if size != t.now.Size {
		p.Throughput, p.Guess = t.membersThroughput(batch, size)
		p.Untried = p.Guess != ""
		p.Throughput = stretch(p.Throughput, kind.factor())
	} else if batch != from.Batch {
		p.Throughput, p.Guess = t.throughput(batch)
		p.Untried = !t.line.isMeasured()
		p.Throughput = stretch(p.Throughput, kind.factor())
	}
	if batch != from.Batch {
		p.Efficiency = t.efficiency(batch)
	}
	if changesRound(parts) {
		way := wayOf(to.Setting)
		in := t.roundThroughput(way)
		if !in.IsKnown() {
			return decide.Prediction{Guess: "where the time of steps goes is not known"}
		}
		p.Throughput = times(p.Throughput, stretch(in, kind.factor()))
		b, careful := t.roundEfficiency(way, float64(from.Batch)/t.rate.Mid)
		p.Careful = p.Efficiency.Low * careful
		if p.Efficiency.IsKnown() && b.IsKnown() {
			p.Efficiency = times(p.Efficiency, b)
		} else {
			p.Efficiency = setting.Band{}
		}
	}
	p.Goodput = times(p.Throughput, p.Efficiency)
	seconds := float64(batch) / t.rate.Mid
	p.StepSeconds = setting.Band{Low: seconds / p.Throughput.High, Mid: seconds / p.Throughput.Mid,
		High: seconds / p.Throughput.Low}
	p.CostSeconds = kind.costSeconds(float64(from.Batch) / t.rate.Mid)
	if to.Setting.Save != from.Save {
		p = t.withSaves(p, to.Setting)
	}
	if !p.Efficiency.IsKnown() {
		p.Goodput = setting.Band{}
		p.Guess = "the gradient noise scale is unknown: " + t.now.Noise.Why
	}
	return p
}

// throughput returns by which factor the samples a second grow with another batch, and what of it
// is a guess.
func (t *Twin) throughput(batch uint64) (b setting.Band, guess string) {
	from := t.now.Setting.Batch
	x := perWorker(batch, t.now.Size)
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
	chance := t.line.chance(x)
	wide := portable.Exp(portable.Hypot(portable.Hypot(t.line.doubt(x), spread), chance))
	return setting.Band{Low: growth / seconds.High / wide, Mid: growth / seconds.Mid,
		High: growth / seconds.Low * wide}, guess
}

// efficiency returns by which factor what a sample brings grows with another batch, (φ + B) /
// (φ + B') where φ is the noise scale (McCandlish et al. 2018, §2.2; Pollux, OSDI 2021, §3.1);
// zero = the noise is not known.
func (t *Twin) efficiency(batch uint64) setting.Band {
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

// times returns the band of the product of two positive numbers that do not depend on each other:
// the squares of their relative widths add up.
func times(a, b setting.Band) setting.Band {
	mid := a.Mid * b.Mid
	below := portable.Hypot(portable.Log(a.Mid/a.Low), portable.Log(b.Mid/b.Low))
	above := portable.Hypot(portable.Log(a.High/a.Mid), portable.Log(b.High/b.Mid))
	return setting.Band{Low: mid * portable.Exp(-below), Mid: mid, High: mid * portable.Exp(above)}
}

// stretch returns a band around the same middle whose relative widths are multiplied by a factor.
func stretch(b setting.Band, factor float64) setting.Band {
	return setting.Band{Low: b.Mid * portable.Pow(b.Low/b.Mid, factor), Mid: b.Mid,
		High: b.Mid * portable.Pow(b.High/b.Mid, factor)}
}
