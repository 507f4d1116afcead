package main

import (
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/predict"
)

// forecast replaces how slow workers were by how slow they are predicted to be soon. It is told
// once a second how slow they were, as the head of a job is. One goroutine uses it, that of the run
// that is played.
type forecast struct {
	make    func() predict.Predictor // nil = nothing is replaced
	ahead   int                      // seconds
	workers []predict.Predictor      // by rank: seconds for a sample
	next    sense.Duration           // from when on the next sample counts
}

// fixedSamples is what the part of the work is worth in samples that does not depend on these. The
// forecast knows it, so that a change of the shares is no change of speed.
const fixedSamples = fixed / each

// withForecast returns an observation with what is predicted in place of how slow hosts were, and
// learns from what they were.
func (f *forecast) withForecast(o sense.Observation) sense.Observation {
	work, beside, why := decide.WorkOf(o)
	if f.make == nil || why != "" {
		return o
	}
	if f.workers == nil {
		for range work {
			f.workers = append(f.workers, f.make())
		}
	}
	if o.Now >= f.next {
		f.next = o.Now + sense.Second
		for rank, w := range work {
			f.workers[rank].Add(w.Seconds / (fixedSamples + w.Samples))
		}
	}
	for rank := range work {
		each, _ := f.workers[rank].Predict(f.ahead)
		work[rank].Seconds = max(each, 1e-6) * (fixedSamples + work[rank].Samples)
	}
	slowest := slices.MaxFunc(work, func(a, b decide.Work) int {
		return int(a.Seconds*1e9) - int(b.Seconds*1e9)
	}).Seconds
	o.Split.Slack = make([]float64, len(work))
	for rank, w := range work {
		o.Split.Slack[rank] = slowest - w.Seconds
	}
	o.Split.Seconds = beside + slowest
	return o
}
