package twin

import (
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/predict"
	"github.com/shoal-ml/shoal/setting"
)

// How the Twin learns from its own errors: each change that was measured tells how far off the
// prediction was, and later bands become wider or narrower by that. The methods of Twin are for the
// goroutine that uses it; Predict reads what Learn and LearnCost have kept.

const (
	// maxScores is how many past errors of a kind of change count.
	maxScores = 64
	// fewScores is below how many past errors the bands still rest on the prior, which then counts
	// as priorScores errors.
	fewScores, priorScores = 10, 2
	// leastFactor is by how much a few small errors make bands narrower at most: the first changes
	// of a job are easy to predict.
	leastFactor = 0.9
	// maxScore bounds an error, so that one strange measurement does not widen bands for long.
	maxScore = 4
	// tail80 is the half-width of the band of 80 % of a normal distribution, in standard
	// deviations.
	tail80 = 1.28
	// target is the share of measurements that should miss their band, and gain how quickly alpha
	// follows from what was missed (Gibbs and Candès, "Adaptive Conformal Inference Under
	// Distribution Shift", 2021).
	target, gain = 0.2, 0.02
)

// calibration is what was learnt from the changes of a kind: how far off predictions were, in
// half-widths of the band that the twin would state without it, and what the changes cost.
type calibration struct {
	name   string
	scores []float64 // the newest last; at most maxScores
	alpha  float64   // share of the scores that the band leaves out
	costs  []float64 // seconds of training that changes cost; at most maxScores
}

// kindOf returns the kind of a change: "size" where members come or leave, and else its first part.
func kindOf(c setting.Change) string {
	parts := c.Parts()
	switch {
	case slices.Contains(parts, "size"):
		return "size"
	case len(parts) == 0:
		return ""
	}
	return parts[0]
}

// calibrationOf returns the calibration of a kind of change, as kindOf names it, and adds
// one for a kind that is new.
func (t *Twin) calibrationOf(name string) *calibration {
	for _, c := range t.kinds {
		if c.name == name {
			return c
		}
	}
	t.kinds = append(t.kinds, &calibration{name: name, alpha: target})
	return t.kinds[len(t.kinds)-1]
}

// Learn tells the twin what came of a change that was measured to its end; others tell it nothing.
// Where another size was kept that brought less than it was sure to, and no more than a job may
// become faster by itself unseen, it may be that which was measured, so nobody knows what steps of
// the size before would take now.
func (t *Twin) Learn(c setting.Change) {
	p := c.Predicted
	if !p.IsKnown() || !(p.Low > 0) || !(c.Measured > 0) || c.Phase == setting.Void {
		return
	}
	wrong, half := portable.Log(c.Measured/p.Mid), portable.Log(p.High/p.Mid)
	if wrong < 0 {
		wrong, half = -wrong, portable.Log(p.Mid/p.Low)
	}
	if !(half > 0) || math.IsInf(wrong, 0) || math.IsInf(half, 0) {
		return
	}
	k := t.calibrationOf(kindOf(c))
	if k.name == "size" && c.Phase == setting.Kept && c.Measured < min(p.Low, creepFactor) {
		t.doubted, _ = strconv.Atoi(setting.PartOf(c.From, "size"))
		t.known = false
	}
	score := min(wrong/half*k.widthFactor(), maxScore)
	missed := 0.0
	if !p.Contains(c.Measured) {
		missed = 1
	}
	k.alpha = min(max(k.alpha+float64(gain*(target-missed)), 0.01), 0.5)
	k.scores = sense.AppendNewest(k.scores, score, maxScores)
}

// LearnCost tells the twin how many seconds of training a change has cost; that may be below 0,
// where steps differ by more than the cost.
func (t *Twin) LearnCost(c setting.Change, seconds float64) {
	k := t.calibrationOf(kindOf(c))
	k.costs = sense.AppendNewest(k.costs, seconds, maxScores)
}

// widthFactor returns by how much the band of a prediction must be wider than the twin would state
// without what it has learnt: a quantile of the past errors, and as long as these are few their
// root mean square, in which the prior counts as two, and not much narrower.
func (c *calibration) widthFactor() float64 {
	n := len(c.scores)
	if n < fewScores {
		sum := priorScores / (tail80 * tail80)
		for _, s := range c.scores {
			sum += float64(s * s)
		}
		return max(leastFactor, tail80*math.Sqrt(sum/float64(priorScores+n)))
	}
	sorted := slices.Sorted(slices.Values(c.scores))
	factor, _ := predict.ConformalQuantile(sorted, 1-c.alpha)
	return max(factor, 0.1)
}

// costSeconds returns what a change of this kind costs, in seconds of training, where a step takes
// so many seconds: as much as the past ones, and as long as there are none about half a step.
func (c *calibration) costSeconds(step float64) setting.Band {
	if len(c.costs) == 0 {
		return setting.Band{High: 2 * step, Mid: step / 2}
	}
	sorted := slices.Sorted(slices.Values(c.costs))
	n := len(sorted)
	return setting.Band{Low: max(sorted[n/10], 0), Mid: max(sorted[n/2], 0),
		High: max(sorted[n-1-n/10], 0)}
}
