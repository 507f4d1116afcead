package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// batchCandidates is how many batches of a range are compared, at equal factors (Pollux, OSDI
	// 2021, §4.3).
	batchCandidates = 50
	// maxBatchFactor is by which factor the batch changes at once at most.
	maxBatchFactor = 2
	// otherFactor is by which factor two batches differ at least that are worth comparing: between
	// nearer ones there is nothing to be gained.
	otherFactor = 1.2
)

// replicasDiffer is why no batch is chosen by the noise where setting.KeepsReplicas.
const replicasDiffer = "the parameters of workers differ, so their gradients differ by more than " +
	"noise: no batch is chosen by that (sync=sma, sync=pair)"

// Batch chooses the batch with the greatest goodput, which is throughput times efficiency (Pollux,
// OSDI 2021), in the range that the program has opened, and the learning rate that goes with it.
// Where the batch stays and the noise grows, the rate follows (followNoise).
// As long as the noise of the gradients is unknown, or replicas of workers differ when they compute
// what it is estimated from, it leaves the batch as it is. No batch becomes
// larger than what surely fits into the memory of the hosts. It remembers nothing.
type Batch struct{}

// Name implements decide.Policy.
func (Batch) Name() string { return "batch" }

// Levers implements decide.Policy.
func (Batch) Levers() []string { return []string{"batch", "rate"} }

// Decide implements decide.Policy.
func (Batch) Decide(o sense.Observation, twin decide.Twin,
	state []byte) (decide.Decision, []byte) {
	switch {
	case !o.Levers.Batch.IsOpen():
		return decide.NoChange("the program has not opened the batch (batch_range)"), state
	case !o.Noise.Known:
		return decide.NoChange("the gradient noise scale is unknown: " + o.Noise.Why), state
	case setting.KeepsReplicas(o.Setting.Sync):
		return decide.NoChange(replicasDiffer), state
	}
	otherwise := followNoise(o)
	o, tooLarge := fitOf(o).boundBatches(o)
	var list []decide.Scored
	for _, batch := range batchesToCompare(o.Levers.Batch, o.Setting.Batch, o.Size) {
		to := decide.Target{Setting: withBatch(o, batch)}
		list = append(list, decide.Scored{Target: to, Prediction: twin.Predict(to)})
	}
	slices.SortStableFunc(list, func(a, b decide.Scored) int {
		return cmp.Compare(b.Gain(), a.Gain())
	})
	learns := false
	if len(list) > 0 && !(list[0].Gain() > decide.MinGain) { // what was not measured may be better
		hope := slices.MaxFunc(list, func(a, b decide.Scored) int {
			return cmp.Compare(a.HopedGain(), b.HopedGain())
		})
		if learns = hope.HopedGain() > decide.MinHope; learns {
			at := slices.IndexFunc(list, func(x decide.Scored) bool {
				return x.Setting.Batch == hope.Setting.Batch
			})
			list = slices.Insert(slices.Delete(list, at, at+1), 0, hope)
		}
	}
	if len(list) == 0 || !learns && !(list[0].Gain() > 1) {
		text := fmt.Sprintf("%s, and no batch up to twice as large or small is better than %d",
			describeNoise(o.Noise), o.Setting.Batch)
		if len(list) > 0 && list[0].Gain() == 0 && list[0].Guess != "" {
			text = list[0].Guess
		}
		if tooLarge != "" {
			text += "; " + tooLarge
		}
		d := decide.NoChange(text)
		d.Else = otherwise
		return d, state
	}
	best := list[0]
	because := describeNoise(o.Noise)
	if best.Guess != "" && !learns {
		because += "; " + best.Guess
	}
	if tooLarge != "" && best.Setting.Batch > o.Setting.Batch {
		because += "; " + tooLarge
	}
	return decide.Decision{To: &best.Target, Because: because, Alternatives: distinctOthers(list),
		Else: otherwise}, state
}

// batchesToCompare returns the batches of a range that are worth comparing with the one of now:
// those at equal factors, and the largest and the smallest that are allowed at once. They are
// multiples of the size of the job where the range allows it, so that all workers have the same.
// The one of now is not among them, nor one that is too near to it, but for the ends of the range.
func batchesToCompare(r setting.Range, now uint64, size int) (list []uint64) {
	least := max(r.From, (now+maxBatchFactor-1)/maxBatchFactor)
	most := min(r.To, maxBatchFactor*now)
	candidates := []uint64{least, most}
	growth := portable.Log(float64(r.To)) - portable.Log(float64(r.From))
	for i := range batchCandidates {
		x := portable.Exp(portable.Log(float64(r.From)) + growth*float64(i)/(batchCandidates-1))
		candidates = append(candidates, uint64(math.Round(x)))
	}
	each := uint64(max(size, 1))
	for _, x := range candidates {
		if even := (x + each/2) / each * each; even >= least && even <= most {
			x = even
		}
		isEnd := x == r.From || x == r.To
		if x >= least && x <= most && x != now && (isEnd || !areTooNear(x, now)) {
			list = append(list, x)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// withBatch returns the setting of a job with another batch, and the learning rate that goes with
// it (rateOf).
func withBatch(o sense.Observation, batch uint64) setting.Setting {
	s := o.Setting
	s.Batch = batch
	s.Rate, _ = strconv.ParseFloat(strconv.FormatFloat(rateOf(o, batch), 'g', 4, 64), 64)
	return s
}

// describeNoise returns what is known of the noise scale, in words; it is known.
func describeNoise(n noise.Estimate) string {
	if n.Above {
		return fmt.Sprintf("the gradient noise scale is %s or more", formatSamples(n.Scale.High))
	}
	return fmt.Sprintf("the gradient noise scale is %s (%s–%s)", formatSamples(n.Scale.Mid),
		formatSamples(n.Scale.Low), formatSamples(n.Scale.High))
}

// formatSamples writes a number of samples as people read it: from 100 on as a whole one, and else
// with up to three digits.
func formatSamples(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.3g", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// areTooNear reports whether two batches differ by less than otherFactor, too little
// to be worth a comparison.
func areTooNear(a, b uint64) bool {
	return float64(max(a, b)) < otherFactor*float64(min(a, b))
}

// distinctOthers returns up to three alternatives to the best of a sorted list whose batches
// clearly differ from it and from each other, the best first.
func distinctOthers(list []decide.Scored) (others []decide.Scored) {
	for _, x := range list[1:] {
		// near reports whether the batch of another one is about as large.
		near := func(y decide.Scored) bool { return areTooNear(x.Setting.Batch, y.Setting.Batch) }
		if len(others) < 3 && !near(list[0]) && !slices.ContainsFunc(others, near) {
			others = append(others, x)
		}
	}
	return others
}
