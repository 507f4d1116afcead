package pool

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/sense/predict"
)

// When jobs end, as the ends of earlier ones were missed: the core expects an end by the steps that
// are left and the speed, and what jobs take on top of that follows from those that have ended. An
// interval is a quantile of how they were off (split conformal prediction). How much it leaves out
// on each side follows from how often the last intervals were missed there (Gibbs and Candes,
// "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, section 2): when a machine
// gets busier, all jobs take longer than those before them, of whatever kind they are.
//
// The methods run on the goroutine that uses the Machine. Times are milliseconds since 1970.

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
	// outside is the part of jobs that should end before their interval, and after it, and
	// leastOutside and mostOutside bound what an interval leaves out on a side. Below 0 it is wider
	// than all that was seen.
	outside, leastOutside, mostOutside = 0.1, -0.4, 0.4
	// recentEnds is how many of the last jobs, of all kinds, say how often intervals are missed,
	// and adaption by how much less is left out for each that was.
	recentEnds, adaption = 32, 0.1
	// looksApart is which part of the time since the slots of a job were decided passes from one
	// expectation that is kept to the next: about a dozen lie in the later half of that time.
	looksApart = 16
)

// moment is when an end was expected: what is not known yet differs.
type moment int

// The moments.
const (
	whenDecided moment = iota // when the slots of the job were decided
	underWay                  // while it was under way
	moments
)

// PastEnd is how the expected end of a job that has ended was off.
type PastEnd struct {
	At     int64   `json:"at"`     // when the job has ended
	Part   float64 `json:"part"`   // what it took, as a part of the time that was expected
	Missed int     `json:"missed"` // -1 = it ended before its interval, 1 = after it, 0 = inside
}

// recentEnd is an end that says how often intervals are missed.
type recentEnd struct {
	PastEnd
	kind string
}

// look is what was expected of a job at a time, before it was corrected and after that.
type look struct{ at, end, low, high int64 }

// foreseen is what is expected of the end of a job before it is corrected, to be compared with the
// end that comes. Times are milliseconds since 1970; 0 = nothing was expected.
type foreseen struct {
	look         // when its slots were last decided
	last  int64  // the end that was expected by its last report
	looks []look // some of what was expected in the later half of the time since at, in order
}

// dropEarly leaves the looks of the later half of the time until now.
func (f *foreseen) dropEarly(now int64) {
	f.looks = slices.DeleteFunc(f.looks, func(x look) bool { return x.at < f.at+(now-f.at)/2 })
}

// foresee notes what is expected of a job that is under way.
func (m *Machine) foresee(e *entry, end int64) {
	f := &e.foreseen
	f.last = end
	if e.State != Running || end <= m.now {
		return
	}
	if f.at == 0 { // its work was not known when they were decided
		f.at = m.now
	}
	if n := len(f.looks); n > 0 && m.now-f.looks[n-1].at < max((m.now-f.at)/looksApart, 1) {
		return
	}
	f.dropEarly(m.now)
	x := m.expectNow(e)
	f.looks = append(f.looks, look{m.now, end, x.Low, x.High})
}

// correct returns an expectation of the end of a job that was made now, as it is by the ends of
// earlier jobs.
func (m *Machine) correct(e *entry, x Expectation, when moment) Expectation {
	if x.End == 0 {
		return x
	}
	parts, tail := m.endsOf(e.Submission.Kind, when)
	low, mid, high := priorLow, 1.0, priorHigh
	if n := len(parts); n > 0 {
		slices.Sort(parts)
		low = min(low, parts[0])
		mid = parts[n/2]
		high = max(high, parts[n-1])
		if n >= fewEnds {
			before, after := m.leftOut(when)
			low = parts[n-rankFor(n, before)]
			low -= float64((mid - low) * max(-before, 0) / outside)
			high = parts[rankFor(n, after)-1]
			high += float64((high - mid) * max(-after, 0) / outside)
			x.Low, x.High = x.End, x.End // their spread is part of how these ends were missed
		}
	}
	at := func(end int64, part float64) int64 {
		return m.after(float64(part*float64(max(end-m.now, 0)))) + tail
	}
	return Expectation{Pause: x.Pause, End: at(x.End, mid), Low: at(x.Low, low),
		High: at(x.High, high)}
}

// rankFor returns the rank, from 1 to n, of the part that leaves so much out above it.
func rankFor(n int, out float64) int { return min(predict.ConformalRank(n, 1-max(out, 0)), n) }

// leftOut returns which part of jobs an interval leaves out on each side, as the last ones were
// missed; below 0 it is wider than all that was seen.
func (m *Machine) leftOut(when moment) (before, after float64) {
	early, late := 0, 0
	for _, x := range m.recent[when] {
		if x.Missed < 0 {
			early++
		} else if x.Missed > 0 {
			late++
		}
	}
	part := func(missed int) float64 {
		should := float64(outside * float64(len(m.recent[when])))
		return min(max(outside+float64(adaption*(should-float64(missed))), leastOutside),
			mostOutside)
	}
	return part(early), part(late)
}

// after returns the time so many milliseconds from now, and at most 30,000 years: a program may say
// that it has any number of steps.
func (m *Machine) after(ms float64) int64 {
	const far = 1e15
	return m.now + int64(min(max(ms, 0), far))
}

// endsOf returns, of ended jobs of a kind, which part each took of what was expected at a moment,
// and how many milliseconds a job takes after its last step; of jobs of all kinds where there are
// few.
func (m *Machine) endsOf(kind string, when moment) (parts []float64, tail int64) {
	if p := m.past[kind]; p != nil && len(*p.ends(when)) >= fewEnds {
		return partsOf(*p.ends(when)), int64(p.Tail)
	}
	sum, n := 0.0, 0
	for _, name := range slices.Sorted(maps.Keys(m.past)) {
		if p := m.past[name]; len(*p.ends(when)) > 0 {
			parts = append(parts, partsOf(*p.ends(when))...)
			sum, n = sum+p.Tail, n+1
		}
	}
	return parts, int64(sum / max(float64(n), 1))
}

// partsOf returns the parts of some ends.
func partsOf(list []PastEnd) []float64 {
	parts := make([]float64, len(list))
	for i, x := range list {
		parts[i] = x.Part
	}
	return parts
}

// ends returns the ends that were expected at a moment.
func (p *Past) ends(when moment) *[]PastEnd {
	if when == underWay {
		return &p.Halves
	}
	return &p.Ends
}

// learnEnd takes into the past of a kind how a job has ended now.
func (m *Machine) learnEnd(e *entry, p *Past) {
	f := &e.foreseen
	if f.last == 0 {
		return
	}
	tail := float64(max(m.now-f.last, 0))
	if len(p.Ends)+len(p.Halves) == 0 {
		p.Tail = tail
	}
	p.Tail += float64(smoothing * (tail - p.Tail))
	if f.end > f.at {
		m.keepEnd(p, whenDecided, f.look)
	}
	if f.dropEarly(m.now); len(f.looks) > 0 {
		m.keepEnd(p, underWay, f.looks[0])
	}
}

// keepEnd keeps how what was expected of a job at a moment was off, which has ended now.
func (m *Machine) keepEnd(p *Past, when moment, x look) {
	part := max(float64(m.now-x.at)-p.Tail, 0) / float64(x.end-x.at)
	end := PastEnd{At: m.now, Part: min(max(part, leastPart), mostPart)}
	if m.now < x.low {
		end.Missed = -1
	} else if m.now > x.high {
		end.Missed = 1
	}
	list := p.ends(when)
	*list = append(*list, end)
	if n := len(*list) - maxEnds; n > 0 {
		*list = slices.Delete(*list, 0, n)
	}
	m.keepRecent(when, p.Kind, end)
}

// keepRecent counts an end among the last ones of all kinds, in an order that does not depend on
// who comes first.
func (m *Machine) keepRecent(when moment, kind string, end PastEnd) {
	list := append(m.recent[when], recentEnd{end, kind})
	slices.SortFunc(list, func(a, b recentEnd) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.kind, b.kind),
			cmp.Compare(a.Missed, b.Missed))
	})
	m.recent[when] = list[max(len(list)-recentEnds, 0):]
}

// dropOld forgets jobs that are over, those that ended first, where there are more than are kept.
// The name of one is not given again.
func (m *Machine) dropOld() {
	n := len(m.over) - maxOver
	if n <= 0 {
		return
	}
	m.over = slices.DeleteFunc(m.over, func(id string) bool {
		if n <= 0 || m.ending[id] {
			return false
		}
		n--
		delete(m.jobs, id)
		return true
	})
}
