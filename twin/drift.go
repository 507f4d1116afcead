package twin

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
)

// How the Twin notices that the job became faster or slower by itself, and what of earlier steps it
// still believes then. The methods run on the goroutine that uses the Twin: Twin.refit calls
// detectDrift, and act.Loop calls Drifts and RecordDrift.

const (
	// driftSteps is how many steps show that the job has become faster or slower by itself, and
	// driftFactor by which factor it must have, and driftSigmas by how many standard deviations.
	driftSteps, driftFactor, driftSigmas = 8, 1.3, 5
	// creepFactor is driftFactor for a job that becomes faster or slower little by little.
	creepFactor = 1.15
	// oneSigmas is driftSigmas for the newest step alone, which may be the first since a drift.
	oneSigmas = 3
	// maxDrifts is how many drifts a twin remembers.
	maxDrifts = 16
	// medianError is how much larger the error of a median is than that of a mean.
	medianError = 1.25
)

// Drift is that the steps of a job took longer or shorter from one step on, though nothing that the
// job can change had changed.
type Drift struct {
	Since  uint64  // committed steps before the first one that took as long as since then
	Factor float64 // by which they took longer; below 1 where they took shorter

	until uint64 // the last step that took as long as before
}

// Drifts returns the newest drifts of the job, the newest last, in a list that is the twin's.
func (t *Twin) Drifts() []Drift {
	t.refit()
	return t.drifts
}

// MayHaveDrifted reports whether the newest step took so much longer or shorter than those by which
// it is known how fast the job is that it may be one of the first since a drift, which only eight
// of them show. Until then a change would be compared with steps of before the drift.
func (t *Twin) MayHaveDrifted() bool {
	steps := t.MeasuredSteps()
	if !t.rate.IsKnown() {
		return false
	}
	newest := steps[len(steps)-1]
	off := math.Abs(portable.Log(newest.Seconds * t.rate.Mid / float64(newest.Samples)))
	return off >= max(portable.Log(driftFactor), oneSigmas*sense.Deviation(steps))
}

// detectDrift takes in what equal steps that were made as the job trains now took, the oldest
// first: eight at a time, so that it does not matter how often the twin is asked. Where eight
// differ clearly from those before, the job has drifted.
func (t *Twin) detectDrift(steps []sense.StepSample) {
	if len(steps) < minSteps {
		return
	}
	members, samples := steps[0].Size, samplesOfBusiestWorker(steps[0].Samples, steps[0].Size)
	logs, deviation := logsOf(steps), jitter(steps)
	at := 0
	if i := t.findSize(members, samples); i >= 0 {
		for at < len(steps) && steps[at].Step <= t.sizes[i].newest {
			at++
		}
	}
	for at < len(steps) {
		i, end := t.findSize(members, samples), min(at+driftSteps, len(steps))
		// Fewer than eight wait until there are as many, but that the newest eight show a drift.
		wait, from := i >= 0 && end < at+driftSteps, at
		if wait {
			from = max(end-driftSteps, 0)
		}
		next := size{members: members, samples: samples, log: median(logs[from:end]),
			steps: end - from, newest: steps[end-1].Step}
		switch {
		case i < 0:
			t.sizes = append(t.sizes, next)
		case !t.sizes[i].scaled && next.steps == driftSteps && t.sizes[i].differs(next, deviation):
			t.adoptDrift(t.sizes[i], next, steps[:end], logs[:end])
		case !wait:
			t.sizes[i] = t.sizes[i].merge(next)
			t.detectSlowDrift(i, deviation)
		}
		at = end
	}
}

// differs reports whether newer steps of the size, eight of them, take clearly longer or shorter:
// by a factor, and by more than chance does, where steps have a standard deviation.
func (s size) differs(newer size, deviation float64) bool {
	chance := deviation * medianError *
		math.Sqrt(1/float64(min(s.steps, mergedSteps))+1/float64(newer.steps))
	return math.Abs(newer.log-s.log) >= max(portable.Log(driftFactor), driftSigmas*chance)
}

// detectSlowDrift takes in whether the job has become faster or slower so slowly that no eight
// steps show it: whether what is known of a size is clearly another time than when others were last
// compared with it, where steps have a standard deviation.
func (t *Twin) detectSlowDrift(i int, deviation float64) {
	s := &t.sizes[i]
	if s.base == 0 {
		if s.steps >= mergedSteps {
			s.base = s.log
		}
		return
	}
	longer := s.log - s.base
	chance := deviation * medianError * math.Sqrt(2.0/mergedSteps)
	if math.Abs(longer) < max(portable.Log(creepFactor), driftSigmas*chance) {
		return
	}
	now := *s
	now.base = now.log
	t.appendDrift(Drift{Since: now.newest - mergedSteps, Factor: portable.Exp(longer),
		until: now.newest - mergedSteps})
	t.sizes[i] = now
}

// adoptDrift takes in that the newest eight of some steps, with the logarithms of their seconds,
// differ from what was known of their size. All that is known of others is scaled by as much.
func (t *Twin) adoptDrift(before, newer size, steps []sense.StepSample, logs []float64) {
	middle, slower := (before.log+newer.log)/2, newer.log > before.log
	// isNew reports whether a step is like the newest.
	isNew := func(i int) bool { return (logs[i] > middle) == slower }
	at := len(steps) - newer.steps
	for at > 0 && isNew(at-1) {
		at--
	}
	for !isNew(at) {
		at++
	}
	newer.log = median(logs[at:])
	newer.steps = len(steps) - at
	d := Drift{Since: steps[at].Step - 1, Factor: portable.Exp(newer.log - before.log),
		until: before.newest}
	if at > 0 {
		d.until = steps[at-1].Step
	}
	t.appendDrift(d)
	if i := t.findSize(newer.members, newer.samples); i >= 0 {
		t.sizes[i] = newer
	} else {
		t.sizes = append(t.sizes, newer)
	}
}

// RecordDrift tells the twin that the job became another one by itself at about the step at which
// its setting changed too, since when steps take a factor times as long as predicted.
func (t *Twin) RecordDrift(step uint64, factor float64) {
	t.known = false
	t.appendDrift(Drift{Since: step, Factor: factor, until: step})
}

// appendDrift remembers a drift, and forgets the oldest of more than maxDrifts. Steps before it do
// not count any more, and what is known of sizes is scaled by it.
func (t *Twin) appendDrift(d Drift) {
	t.drifts = sense.AppendNewest(t.drifts, d, maxDrifts)
	t.since = d.Since
	t.rescaleSizes(d)
}

// logsOf returns the logarithms of the seconds of steps.
func logsOf(steps []sense.StepSample) []float64 {
	logs := make([]float64, len(steps))
	for i, x := range steps {
		logs[i] = portable.Log(x.Seconds)
	}
	return logs
}

// median returns the median of at least one number, and leaves them as they are.
func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// jitter returns the standard deviation of the logarithms of the seconds of some equal steps, by
// how much each differs from the one before, so that a drift among them does not count. There are
// two steps at least.
func jitter(steps []sense.StepSample) float64 {
	differences := make([]float64, len(steps)-1)
	for i := range differences {
		differences[i] = math.Abs(portable.Log(steps[i+1].Seconds / steps[i].Seconds))
	}
	slices.Sort(differences)
	return differences[len(differences)/2] / (0.6745 * math.Sqrt2) // 0.6745: a normal quartile
}
