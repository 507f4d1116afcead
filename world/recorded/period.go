package recorded

import (
	"cmp"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense/history"
)

// period is all that was measured of the steps with a number of members and a batch. Its methods
// only read it.
type period struct {
	size  int
	batch uint64 // 0 = the program states none
	round uint32 // optimizer steps of a round, which workers make on their own; 1 = none are
	steps float64

	median, p10, p90 float64 // seconds of an optimizer step
	exposed, data    float64 // of these, means; 0 where nothing tells
	gradients        uint64  // bytes; 0 = not known
	slack            []float64
	hosts            []history.Host // nil = not known
}

// few is of how many steps a period tells something.
const few = 3

// periodsOf returns the periods of rows, in the order in which they began, and which one is the
// newest; none that has fewer than some steps, unless all have.
func periodsOf(rows []history.Row) (list []period, newest int) {
	type key struct {
		size  int
		batch uint64
		round uint32
	}
	by := map[key][]history.Row{}
	var keys []key
	var described history.Row // the newest row that tells of hosts
	for _, r := range rows {
		if r.Hosts != nil {
			described = r
		} else if r.Generation == described.Generation && r.Size == described.Size {
			r.Hosts = described.Hosts // also where the row that tells of them has no such steps
		}
		if r.Seconds == nil {
			continue
		}
		k := key{r.Size, r.Batch, r.Round}
		if by[k] == nil {
			keys = append(keys, k)
		}
		by[k] = append(by[k], r)
	}
	last := uint64(0)
	for _, least := range []float64{few, 0} {
		for _, k := range keys {
			p := newPeriod(by[k])
			if p.steps < least {
				continue
			}
			list = append(list, p)
			if step := by[k][len(by[k])-1].Step; step >= last {
				last, newest = step, len(list)-1
			}
		}
		if len(list) > 0 {
			break
		}
	}
	return list, newest
}

// withMostSteps returns the periods with the most steps, mostPeriods of them, and the newest, in
// their order.
func withMostSteps(all []period, newest int) []period {
	if len(all) <= mostPeriods {
		return all
	}
	var steps []float64
	for _, p := range all {
		steps = append(steps, p.steps)
	}
	slices.Sort(steps)
	least := steps[len(steps)-mostPeriods]
	var list []period
	for i, p := range all {
		if i == newest || p.steps >= least && len(list) < mostPeriods {
			list = append(list, p)
		}
	}
	return list
}

// newPeriod returns what rows with the same members and batch say together. All have quantiles.
func newPeriod(rows []history.Row) period {
	p := period{size: rows[0].Size, batch: rows[0].Batch, round: max(rows[0].Round, 1)}
	var medians, lows, highs, exposed, data []weighted
	most, members := uint64(0), uint64(0) // of the row and the generation that slack is of
	for _, r := range rows {
		w := float64(r.Steps)
		p.steps += w
		medians = append(medians, weighted{r.Seconds.Median, w})
		lows = append(lows, weighted{r.Seconds.P10, w})
		highs = append(highs, weighted{r.Seconds.P90, w})
		if s := r.Split; s != nil {
			whole := meanSeconds(&r)
			exposed = append(exposed, weighted{min(s.Exposed/whole, 0.95), w})
			data = append(data, weighted{s.Data / whole, w})
			if r.Slack != nil && (r.Steps >= most || r.Generation != members) {
				most, members = r.Steps, r.Generation
				p.slack = scaled(r.Slack, r.Seconds.Median/whole)
			}
		}
		p.gradients = max(p.gradients, r.Gradients)
		if r.Hosts != nil && (p.slack == nil || r.Generation == members) { // both are by ranks
			p.hosts = r.Hosts
		}
	}
	p.median, p.p10, p.p90 = weightedMedian(medians), weightedMedian(lows), weightedMedian(highs)
	p.exposed = weightedMedian(exposed) * p.median
	p.data = min(weightedMedian(data)*p.median, 0.95*(p.median-p.exposed))
	return p
}

// meanSeconds returns the mean of what the steps of a row take, as the parts of their time tell;
// where these do not tell all, the median. Parts are means, which a few long steps raise.
func meanSeconds(r *history.Row) float64 {
	s := r.Split
	sum := s.Data + s.Compute + s.Optimizer + s.Exposed
	for _, x := range r.Slack {
		sum += x / float64(len(r.Slack))
	}
	if s.Compute == 0 || r.Size > 1 && r.Slack == nil {
		return r.Seconds.Median
	}
	return sum
}

// scaled returns numbers times a factor, as a new list.
func scaled(list []float64, factor float64) []float64 {
	out := slices.Clone(list)
	for i := range out {
		out[i] *= factor
	}
	return out
}

// weighted is a number that counts so much.
type weighted struct{ value, weight float64 }

// weightedQuantile returns below which number a part of the weight lies. It sorts the list; 0 of
// none.
func weightedQuantile(list []weighted, part float64) float64 {
	slices.SortFunc(list, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	whole := 0.0
	for _, x := range list {
		whole += x.weight
	}
	sum := 0.0
	for _, x := range list {
		if sum += x.weight; sum >= part*whole {
			return x.value
		}
	}
	return 0
}

// weightedMedian returns the median of numbers by their weights.
func weightedMedian(list []weighted) float64 { return weightedQuantile(list, 0.5) }

// samplesOfBusiestWorker returns how many samples of a step the worker has that has most. Without a
// batch, a worker has one.
func (p *period) samplesOfBusiestWorker() float64 {
	return math.Ceil(float64(max(p.batch, 1)) / float64(p.size))
}

// slowness returns by rank how many times longer than most a worker takes; nil = it is not known.
// What differs by less than a tenth is 1.
func (p *period) slowness() []float64 {
	slowest := p.median - p.exposed - p.data
	if len(p.slack) != p.size || !(slowest > 0) {
		return nil
	}
	took := make([]float64, p.size)
	for i, s := range p.slack {
		took[i] = max(slowest-s, slowest/20)
	}
	sorted := slices.Sorted(slices.Values(took))
	usual := sorted[len(sorted)/2]
	for i := range took {
		if took[i] /= usual; math.Abs(portable.Log(took[i])) < 0.1 {
			took[i] = 1
		}
	}
	return took
}

// stepDeviation returns the standard deviation of the logarithm of what a worker takes, by what
// steps take, of which a round is the mean, and how many times longer than usual the slowest of
// those takes that are as slow as any.
func (p *period) stepDeviation() (deviation, longer float64) {
	alike, spread := p.size, portable.Log(p.p90/p.p10)
	if s := p.slowness(); s != nil {
		alike = 0
		least := slices.Max(s) * min(0.95, portable.Exp(-spread/2.56)) // a standard deviation below
		for _, f := range s {
			if f >= least {
				alike++
			}
		}
	}
	// at returns where a part of the maxima of so many normal numbers lie below.
	at := func(part float64) float64 {
		return portable.NormalQuantile(portable.Pow(part, 1/float64(alike)))
	}
	deviation = min(spread/(at(0.9)-at(0.1)), 0.9)
	return deviation, portable.Exp(deviation * at(0.5))
}
