package pool

import (
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/sense/predict"
)

// When jobs end, as the ends of earlier ones were missed: the core expects an end by the steps that
// are left and the speed, and what jobs take on top of that follows from those that have ended. The
// methods run on the goroutine that uses the Machine. Times are milliseconds since 1970.

const (
	// maxEnds is how many ended jobs of a kind are kept, and fewEnds below how many those of all
	// kinds count in their place.
	maxEnds, fewEnds = 32, 9
	// priorLow and priorHigh are the 10 % and 90 % quantiles of what a job takes, as a part of what
	// is expected, as long as no job has ended here. The speed with another number of workers is
	// assumed then, and a step of other jobs may be under way on the same processors.
	priorLow, priorHigh = 0.7, 1.5
	// leastPart and mostPart bound a part, so that one strange job does not count for more.
	leastPart, mostPart = 0.1, 10.0
)

// foreseen is what is expected of the end of a job before it is corrected, to be compared with the
// end that comes. Times are milliseconds since 1970; 0 = nothing was expected.
type foreseen struct {
	at, end int64 // when its slots were last decided, and the end that was expected then
	last    int64 // the end that was expected by its last report
}

// correct returns an expectation of the end of a job that was made now, as it is by the ends of
// earlier jobs.
func (m *Machine) correct(e *entry, x Expectation) Expectation {
	if x.End == 0 {
		return x
	}
	parts, tail := m.endsOf(e.Submission.Kind)
	low, mid, high := priorLow, 1.0, priorHigh
	if n := len(parts); n > 0 {
		slices.Sort(parts)
		low = min(low, parts[0])
		mid = parts[n/2]
		high = max(high, parts[n-1])
		if n >= fewEnds {
			rank := predict.ConformalRank(n, 0.9)
			low, high = parts[n-rank], parts[rank-1]
			x.Low, x.High = x.End, x.End // their spread is part of how these ends were missed
		}
	}
	at := func(end int64, part float64) int64 {
		return m.after(float64(part*float64(max(end-m.now, 0)))) + tail
	}
	return Expectation{Pause: x.Pause, End: at(x.End, mid), Low: at(x.Low, low),
		High: at(x.High, high)}
}

// after returns the time so many milliseconds from now, and at most 30,000 years: a program may say
// that it has any number of steps.
func (m *Machine) after(ms float64) int64 {
	const far = 1e15
	return m.now + int64(min(max(ms, 0), far))
}

// endsOf returns, of ended jobs of a kind, which part each took of what was expected, and how many
// milliseconds a job takes after its last step; of jobs of all kinds where there are few.
func (m *Machine) endsOf(kind string) (parts []float64, tail int64) {
	if p := m.past[kind]; p != nil && len(p.Ends) >= fewEnds {
		return slices.Clone(p.Ends), int64(p.Tail)
	}
	sum, n := 0.0, 0
	for _, name := range slices.Sorted(maps.Keys(m.past)) {
		if p := m.past[name]; len(p.Ends) > 0 {
			parts = append(parts, p.Ends...)
			sum, n = sum+p.Tail, n+1
		}
	}
	return parts, int64(sum / max(float64(n), 1))
}

// learnEnd takes into the past of a kind how a job has ended now.
func (m *Machine) learnEnd(e *entry, p *Past) {
	f := e.foreseen
	if f.end <= f.at || f.last == 0 {
		return
	}
	tail := float64(max(m.now-f.last, 0))
	if len(p.Ends) == 0 {
		p.Tail = tail
	}
	p.Tail += float64(smoothing * (tail - p.Tail))
	part := max(float64(m.now-f.at)-p.Tail, 0) / float64(f.end-f.at)
	p.Ends = append(p.Ends, min(max(part, leastPart), mostPart))
	if n := len(p.Ends) - maxEnds; n > 0 {
		p.Ends = slices.Delete(p.Ends, 0, n)
	}
}
