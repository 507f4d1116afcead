package history

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/sense"
)

const (
	// rowSeconds is after how many seconds of steps a row is over.
	rowSeconds = 10
	// maxTimes is of how many steps of a row the seconds are kept until it is over. Of more, only
	// every second one, every fourth one and so on counts for the quantiles.
	maxTimes = 1024
)

// Recorder makes rows of the steps of a job. The zero value has none. A step allocates no memory
// but where a row ends. One goroutine uses it at a time.
type Recorder struct {
	row     Row
	last    sense.StepSample  // that was added last
	times   [maxTimes]float64 // seconds of whole steps that nothing has disturbed
	n       int               // how many of times are set
	every   int               // one in so many steps is kept in times
	skipped int               // steps since the last one that was kept

	looked uint64    // steps of the row before the last AddSplit
	told   float64   // steps that AddSplit was told of
	split  Split     // sums over these
	slack  []float64 // sums by rank over those with slack, and their number; nil = none
	losses float64   // steps with a loss
	loss   float64   // sum over these
}

// Add adds the step that has committed last. It returns the row that is over by that, or nil: the
// one before, where it has ten seconds, or members or setting are others since: until then, what is
// told of its last step is still to come. began is whether the step is the first of a row of other
// members or setting, which Describe is to describe. A step without members is left out.
// optimizerSteps is as Row.OptimizerSteps, after the step.
func (r *Recorder) Add(x sense.StepSample, optimizerSteps uint64) (over *Row, began bool) {
	if x.Size < 1 || x.Seconds < 0 || math.IsNaN(x.Seconds) || math.IsInf(x.Seconds, 0) {
		return nil, false
	}
	moved := !r.isAlike(x)
	if moved || r.row.Span >= rowSeconds {
		over = r.EndRow()
	}
	if r.row.Steps == 0 {
		r.row = Row{Generation: x.Generation, Size: x.Size, Batch: x.Batch, Change: x.Change}
		r.every = 1
	}
	r.row.Step, r.row.OptimizerSteps = x.Step, optimizerSteps
	n := x.Count()
	r.row.Steps += n
	r.row.Round = max(r.row.Round, x.Round)
	r.row.Span += float64(float64(x.Steps()) * x.Seconds)
	r.row.Samples += x.Steps() * x.Samples
	if !moved && x.Seconds > 0 && x.Samples == x.Batch && x.Step == r.last.Step+n {
		r.sampleSeconds(x.Seconds)
	}
	r.last = x
	return over, moved
}

// AddPause adds seconds that have held up the steps of the row, and are of none of them.
func (r *Recorder) AddPause(seconds float64) {
	if r.HasSteps() {
		r.row.Span += seconds
	}
}

// isAlike reports whether a step has the members and the setting of the one before.
func (r *Recorder) isAlike(x sense.StepSample) bool {
	l := r.last
	return l.Generation == x.Generation && l.Size == x.Size && l.Batch == x.Batch &&
		l.Change == x.Change
}

// sampleSeconds keeps the seconds of one in every so many steps for the quantiles of the row.
func (r *Recorder) sampleSeconds(seconds float64) {
	if r.skipped++; r.skipped < r.every {
		return
	}
	r.skipped = 0
	if r.n == maxTimes {
		for i := range maxTimes / 2 {
			r.times[i] = r.times[2*i+1]
		}
		r.n = maxTimes / 2
		r.every *= 2
	}
	r.times[r.n] = seconds
	r.n++
}

// Describe tells of the job what the row that has just begun is to have.
func (r *Recorder) Describe(hosts []Host, data *Data) { r.row.Hosts, r.row.Data = hosts, data }

// SetGradientBytes takes in how many bytes of gradients a worker has given to be averaged in the
// last step. A row has the most of all its steps.
func (r *Recorder) SetGradientBytes(n uint64) { r.row.Gradients = max(r.row.Gradients, n) }

// HasSteps reports whether a row has begun.
func (r *Recorder) HasSteps() bool { return r.row.Steps > 0 }

// AddSplit adds what is known of the steps since the last AddSplit, about once a second: where
// their time goes, zero where that is not known, and their loss; told is whether workers tell one.
// A row has the means over the steps of which it is known.
func (r *Recorder) AddSplit(s sense.Split, loss float64, told bool) {
	n := float64(r.row.Steps - r.looked)
	r.looked = r.row.Steps
	if n == 0 {
		return
	}
	if s.Data+s.Compute+s.Exposed+s.Optimizer > 0 {
		r.told += n
	}
	r.split.Data += float64(n * s.Data)
	r.split.Compute += float64(n * s.Compute)
	r.split.Exposed += float64(n * s.Exposed)
	r.split.Optimizer += float64(n * s.Optimizer)
	if len(s.Slack) == r.row.Size {
		if r.slack == nil {
			r.slack = make([]float64, r.row.Size+1)
		}
		for i, x := range s.Slack {
			r.slack[i] += float64(n * x)
		}
		r.slack[len(s.Slack)] += n
	}
	if told && !math.IsNaN(loss) && !math.IsInf(loss, 0) {
		r.losses += n
		r.loss += float64(n * loss)
	}
}

// EndRow returns the row that is under way, which is over; nil = it has no steps.
func (r *Recorder) EndRow() *Row {
	if r.row.Steps == 0 {
		return nil
	}
	over := r.row
	over.Span = round(over.Span)
	if r.n > 0 {
		t := r.times[:r.n]
		slices.Sort(t)
		over.Seconds = &Quantiles{P10: round(t[(r.n+4)/10]),
			Median: round((t[(r.n-1)/2] + t[r.n/2]) / 2), P90: round(t[(9*r.n-4)/10])}
	}
	if n := r.told; n > 0 && r.split != (Split{}) {
		over.Split = &Split{round(r.split.Data / n), round(r.split.Compute / n),
			round(r.split.Exposed / n), round(r.split.Optimizer / n)}
	}
	if n := len(r.slack) - 1; n == over.Size {
		over.Slack = make([]float64, n)
		for i := range n {
			over.Slack[i] = round(r.slack[i] / r.slack[n])
		}
	}
	if r.losses > 0 {
		mean := round(r.loss / r.losses)
		over.Loss = &mean
	}
	last := r.last
	*r = Recorder{last: last}
	return &over
}
