package noise

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// halfLife is after how many steps a step counts half as much.
	halfLife = 50
	// maxBlocks is how many blocks of steps an Estimator keeps, and minBlocks is how many an
	// interval needs.
	maxBlocks, minBlocks = 16, 8
	// maxBlockSteps is the number of steps of a block in the long run. The oldest of 16 blocks then
	// counts a 28th of the newest.
	maxBlockSteps = 16
	// resamples is how many times the blocks are drawn to find an interval.
	resamples = 200
	// tail is the probability on either side of an interval.
	tail = 0.1
	// maxSpread is the widest interval that says something: its high end over its low end.
	maxSpread = 4
	// maxBatches is up to how many batches a noise scale can be told. The relative error grows with
	// the number of batches, and the ratio of two estimates is then biased upwards.
	maxBatches = 8
	// maxWrong is after how many steps in a row whose gradients are not finite nothing counts any
	// more that was known before. Single ones are ordinary where gradients are scaled.
	maxWrong = 8
)

// Estimator estimates the noise scale from sums. A step counts half as much after 50 steps; where
// more than 16 steps come with each Add, after about three more of these. The zero value has no
// steps. One goroutine uses it at a time.
type Estimator struct {
	blocks  []Sums  // those that are full, the oldest first; at most maxBlocks
	open    Sums    // the block that is being filled
	steps   float64 // how many fill a block; 0 = none came yet
	wrong   float64 // steps without a finite gradient since the newest one with it
	counter uint64  // numbers ever drawn, so that each draw is another one
}

// Add adds the sums of new steps. Sums that no host can have are ignored.
func (e *Estimator) Add(s Sums) {
	if !s.Valid() || s.total() == 0 {
		return
	}
	if e.steps == 0 {
		e.steps = 1
	}
	if s.Wrong > s.Steps {
		e.wrong += s.Wrong
	} else if s.Steps > 0 {
		e.wrong = 0
	}
	if e.wrong >= maxWrong { // what is measured after this is of another state of the training
		e.blocks, e.open, e.steps = e.blocks[:0], Sums{}, 1
		return
	}
	e.open.Add(s)
	if e.open.total() < e.steps {
		return
	}
	if len(e.blocks) == maxBlocks && e.steps < maxBlockSteps {
		e.mergePairs()
	}
	if len(e.blocks) == maxBlocks {
		e.blocks = slices.Delete(e.blocks, 0, 1)
	}
	e.blocks = append(e.blocks, e.open)
	e.open = Sums{}
}

// Clone returns an Estimator with the same sums, of which an estimate can be made while this one is
// used. This one skips the numbers that one estimate of the clone draws.
func (e *Estimator) Clone() Estimator {
	c := *e
	c.blocks = slices.Clone(e.blocks)
	e.counter += resamples * maxBlocks
	return c
}

// mergePairs makes half as many blocks of twice the length: the first blocks of a job are short, so
// that something is known soon.
func (e *Estimator) mergePairs() {
	for i := range maxBlocks / 2 {
		pair := e.blocks[2*i]
		pair.Add(e.blocks[2*i+1])
		e.blocks[i] = pair
	}
	e.blocks = e.blocks[:maxBlocks/2]
	e.steps *= 2
}

// Estimate returns what the sums that were added tell.
func (e *Estimator) Estimate() Estimate {
	var weights [maxBlocks]float64
	var all, weighted Sums
	age := 0.0
	for i := len(e.blocks) - 1; i >= 0; i-- {
		weights[i] = portable.Exp2(-age / halfLife)
		weighted.addTimes(e.blocks[i], weights[i])
		all.Add(e.blocks[i])
		age += min(e.blocks[i].total(), maxBlockSteps)
	}
	est := Estimate{Steps: all.Steps}
	switch {
	case e.wrong >= maxWrong:
		est.NotFinite = true
		est.Why = fmt.Sprintf("the gradients are not finite: in each of the last %.0f steps",
			e.wrong)
	case all.Steps < minBlocks && all.Alone > all.Steps:
		est.Why = "one worker computes the gradient: noise shows between workers only"
	case all.Wrong > all.Steps:
		est.NotFinite = true
		est.Why = fmt.Sprintf("the gradients are not finite: in %.0f of the last %.0f steps",
			all.Wrong, all.total())
	case all.Steps+e.open.Steps == 0:
		est.Why = "no gradient was measured: agents measure what they average themselves"
	case len(e.blocks) < minBlocks || all.Steps < minBlocks:
		est.Why = fmt.Sprintf("too few steps to tell: %.0f, in %d of %d blocks",
			all.Steps+e.open.Steps, len(e.blocks), minBlocks)
	default:
		e.measure(&est, weighted, weights[:len(e.blocks)])
	}
	return est
}

// measure completes an estimate by the sums of all blocks, and by the blocks and their weights.
func (e *Estimator) measure(est *Estimate, sums Sums, weights []float64) {
	est.SquaredNorm, est.Variance = sums.solve()
	if !isFinite(est.SquaredNorm) || !isFinite(est.Variance) {
		est.SquaredNorm, est.Variance = 0, 0
		est.Why = "the gradients cannot be told apart: one worker has nearly all samples"
		return
	}
	if est.SquaredNorm <= 0 {
		est.Why = fmt.Sprintf("the gradient is lost in its noise over %.0f steps", est.Steps)
		return
	}
	if est.Variance <= 0 {
		est.Why = "no noise is seen between the workers"
		return
	}
	batch := sums.batch()
	b := setting.Band{Mid: est.Variance / est.SquaredNorm}
	b.Low, b.High = e.interval(weights)
	b.Low, b.High = min(b.Low, b.Mid), max(b.High, b.Mid)
	limit := maxBatches * batch
	switch {
	case b.Low >= limit:
		b = setting.Band{Low: limit, Mid: limit, High: limit}
		est.Above = true
	case b.Low <= 0 || b.High > maxSpread*b.Low:
		est.Why = fmt.Sprintf("it is too uncertain after %.0f steps: about %s samples, "+
			"from %s to %s", est.Steps, plural.Number(b.Mid, 3),
			plural.Number(max(b.Low, 0), 3), plural.Number(b.High, 3))
		return
	case b.Mid > limit:
		b = setting.Band{Low: b.Low, Mid: limit, High: limit}
		est.Above = true
	}
	est.Known, est.Scale = true, b
}

// interval returns between which scales 80 of 100 estimates lie when blocks are drawn anew, with
// replacement: three quarters of as many as there are, since few blocks, of unequal weights, are
// less unlike each other than the truth. An estimate without a positive norm counts as infinite.
func (e *Estimator) interval(weights []float64) (low, high float64) {
	var scales [resamples]float64
	for i := range scales {
		var s Sums
		for range len(weights) * 3 / 4 {
			j := e.draw(len(weights))
			s.addTimes(e.blocks[j], weights[j])
		}
		norm, variance := s.solve()
		if scales[i] = variance / norm; !(norm > 0) || math.IsNaN(scales[i]) {
			scales[i] = math.Inf(1)
		}
	}
	slices.Sort(scales[:])
	return scales[int(resamples*tail)], scales[resamples-1-int(resamples*tail)]
}

// draw returns a number from 0 to n−1, which follows from how many were drawn before (splitmix64).
func (e *Estimator) draw(n int) int {
	e.counter++
	return int(portable.RandomBits(0, e.counter) % uint64(n))
}
