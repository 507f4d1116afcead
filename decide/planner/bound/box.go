package bound

import (
	"math"
	"math/bits"
	"sort"
)

// A box is all cuts of which each is in a range: stage s begins at a layer from low[s] to high[s].
// Both have an entry more than there are stages, for the end of the last one.
type box struct{ low, high []int }

// A view is a chain with sums, from which the least seconds that the cuts of a box take are read
// off. A Prover, or one call of Cuts or Count, has one, on its goroutine: lags, fillPipeline and
// squeeze keep in it what is known of the box at hand. Stages are numbered by s, x and y, and
// layers by i and j: a stage of the layers from i to j does not have j.
type view struct {
	Chain
	stages, micro           int
	forward, backward       []float64 // sums over the layers before
	lagForward, lagBackward []float64 // least lags over the cuts up to a stage, of the box at hand
	leastForward            minima    // of the lags before each layer, with Lag only
	leastBackward           minima
	pipeline                pipeline
	rooms                   []room // of all stages, those of stage s in bounds[s] to bounds[s+1]
	bounds                  []int
}

// newView returns a view of a chain that is cut into so many stages, for so many micro-batches.
func newView(c Chain, stages, micro int) *view {
	v := &view{Chain: c, stages: stages, micro: micro, forward: sums(c.Forward),
		backward: sums(c.Backward), lagForward: make([]float64, stages),
		lagBackward: make([]float64, stages), bounds: make([]int, stages+1)}
	if c.Lag != nil {
		down, up := make([]float64, len(c.Forward)), make([]float64, len(c.Forward))
		for i := range down {
			down[i], up[i] = c.Lag(i)
		}
		v.leastForward, v.leastBackward = newMinima(down), newMinima(up)
	}
	v.pipeline = pipeline{length: make([]float64, 2*stages), before: make([]float64, 2*stages),
		after: make([]float64, 2*stages), starts: make([]float64, 4*stages*stages),
		ends: make([]float64, 4*stages*stages), held: make([]int, stages)}
	return v
}

// whole returns the box of all cuts.
func (v *view) whole() box {
	n, layers := v.stages, len(v.Chain.Forward)
	b := box{make([]int, n+1), make([]int, n+1)}
	for s := 1; s < n; s++ {
		b.low[s], b.high[s] = s, layers-(n-s)
	}
	b.low[n], b.high[n] = layers, layers
	return b
}

// lags sets lagForward and lagBackward to the sums of the least lags of the cuts of a box.
func (v *view) lags(b box) {
	if v.Lag == nil {
		return
	}
	for s := 1; s < v.stages; s++ {
		v.lagForward[s] = v.lagForward[s-1] + v.leastForward.of(b.low[s], b.high[s])
		v.lagBackward[s] = v.lagBackward[s-1] + v.leastBackward.of(b.low[s], b.high[s])
	}
}

// A minima has the least of any neighbours of a list: in row k, for each number, that of it and of
// those after it, 2^k in all (a sparse table; Bender and Farach-Colton 2000).
type minima [][]float64

// newMinima returns the minima of a list.
func newMinima(list []float64) minima {
	m := minima{list}
	for width := 1; 2*width <= len(list); width *= 2 {
		last := m[len(m)-1]
		row := make([]float64, len(list)-2*width+1)
		for i := range row {
			row[i] = min(last[i], last[i+width])
		}
		m = append(m, row)
	}
	return m
}

// of returns the least of the numbers of the list from one index to another, both included.
func (m minima) of(from, to int) float64 {
	row := bits.Len(uint(to-from+1)) - 1
	return min(m[row][from], m[row][to+1-1<<row])
}

// terms returns the largest of the four terms that Cuts has, in seconds of a step, for stage s if
// it has the layers from i to j; +Inf where it does not fit into memory.
func (v *view) terms(s, i, j int) float64 {
	most := v.threeTerms(s, i, j)
	if v.Held == nil || i >= j {
		return most
	}
	held := v.Held(i, j)
	if held < 1 {
		return math.Inf(1)
	}
	if held < v.micro {
		last, layers := v.stages-1, len(v.forward)-1
		turn := v.forward[layers] - v.forward[i] + v.lagForward[last] - v.lagForward[s] +
			v.backward[layers] - v.backward[i] + v.lagBackward[last] - v.lagBackward[s]
		turns := float64((v.micro + held - 1) / held)
		after := v.backward[i] + v.lagBackward[s]
		if v.Tail != nil {
			after = max(after, v.Tail(i, j))
		}
		most = max(most, v.forward[i]+v.lagForward[s]+float64(turns*turn)+after)
	}
	return most
}

// threeTerms returns the largest of the first three terms that Cuts has, those that do not depend
// on memory, for stage s if it has the layers from i to j.
func (v *view) threeTerms(s, i, j int) float64 {
	last, layers, m := v.stages-1, len(v.forward)-1, float64(v.micro)
	f, b := v.forward[j]-v.forward[i], v.backward[j]-v.backward[i]
	head, back := v.forward[i]+v.lagForward[s], v.backward[i]+v.lagBackward[s]
	behind := v.forward[layers] - v.forward[j] + v.lagForward[last] - v.lagForward[s] +
		v.backward[layers] - v.backward[j] + v.lagBackward[last] - v.lagBackward[s]
	after := back
	if v.Tail != nil && i < j {
		after = max(after, v.Tail(i, j))
	}
	return max(head+float64(m*(f+b))+after, head+float64(m*f)+behind+b+back,
		head+f+behind+float64(m*b)+back)
}

// tighten makes a box smaller, in place, by the terms of its stages, and reports whether it has a
// cut that is not above some seconds by them. The lags must be those of a box around b. A box
// without a cut is left half changed.
func (v *view) tighten(b box, seconds float64) bool {
	return v.shrink(b, func(s, i, j int) bool { return v.terms(s, i, j) <= seconds })
}

// squeeze makes a box smaller, in place, by the rooms that a refuter has found for it, and reports
// whether it has a cut whose stages fit into them.
func (v *view) squeeze(b box, r *refuter) bool {
	v.rooms = v.rooms[:0]
	for s := range v.stages {
		v.bounds[s] = len(v.rooms)
		v.rooms = append(v.rooms, r.listRooms(s, &v.pipeline,
			v.forward[b.high[s+1]]-v.forward[b.low[s]],
			v.backward[b.high[s+1]]-v.backward[b.low[s]])...)
	}
	v.bounds[v.stages] = len(v.rooms)
	return v.shrink(b, func(s, i, j int) bool {
		f, b := v.forward[j]-v.forward[i], v.backward[j]-v.backward[i]
		rooms := v.rooms[v.bounds[s]:v.bounds[s+1]]
		r.work += len(rooms)
		for k := range rooms {
			x := &rooms[k]
			if float64(x.forward*f)+float64(x.back*b) > x.seconds {
				return false
			}
		}
		return true
	})
}

// shrink makes a box smaller, in place, by which stages s of the layers from i to j fit, and
// reports whether it has a cut. A stage that fits also does with fewer layers, so the farthest end
// of a stage is reached from its farthest begin.
func (v *view) shrink(b box, fits func(s, i, j int) bool) bool {
	for s := 1; s <= v.stages; s++ {
		b.low[s] = max(b.low[s], b.low[s-1]+1)
		from, to := b.low[s], b.high[s]
		if from <= to && !fits(s-1, b.high[s-1], to) {
			to = from - 1 + sort.Search(to-from+1, func(k int) bool {
				return !fits(s-1, b.high[s-1], from+k)
			})
		}
		if b.high[s] = to; to < from {
			return false
		}
	}
	for s := v.stages - 1; s >= 0; s-- {
		b.high[s] = min(b.high[s], b.high[s+1]-1)
		from, to := b.low[s], b.high[s]
		if from <= to && !fits(s, from, b.low[s+1]) {
			from += sort.Search(to-from+1, func(k int) bool {
				return fits(s, from+k, b.low[s+1])
			})
		}
		if b.low[s] = from; to < from {
			return false
		}
	}
	return true
}

// fillPipeline puts the least that the cuts of a box take into the pipeline of the view.
func (v *view) fillPipeline(b box) {
	p, n := &v.pipeline, v.stages
	passes := 2 * n
	p.exact = true
	for s := range n {
		p.length[s] = max(v.forward[b.low[s+1]]-v.forward[b.high[s]], 0)
		p.length[passes-1-s] = max(v.backward[b.low[s+1]]-v.backward[b.high[s]], 0)
		p.exact = p.exact && b.low[s] == b.high[s]
		if p.held[s] = v.micro; v.Held != nil && b.high[s] < b.low[s+1] {
			p.held[s] = v.Held(b.high[s], b.low[s+1])
		}
	}
	for x := range passes {
		for y := x; y < passes; y++ {
			p.starts[x*passes+y] = v.apart(b, x, y, 0)
			p.ends[x*passes+y] = v.apart(b, x, y, 1)
		}
		p.after[x] = 0
		for y := max(x, n); y < passes; y++ {
			after := p.ends[x*passes+y]
			if t := passes - 1 - y; v.Tail != nil && b.high[t] < b.low[t+1] {
				after += v.Tail(b.high[t], b.low[t+1])
			}
			p.after[x] = max(p.after[x], after)
		}
	}
	copy(p.before, p.starts[:passes]) // from the first pass
}

// between returns the least seconds that the layers from the begin of one stage to before that of
// another take in a direction, whose sums over the layers are given.
func (b box) between(sum []float64, from, to int) float64 {
	parts := 0.0
	for s := from; s < to; s++ {
		parts += max(sum[b.low[s+1]]-sum[b.high[s]], 0)
	}
	return max(sum[b.low[to]]-sum[b.high[from]], parts)
}

// apart returns the least seconds between the starts of two passes x and y of a micro-batch,
// numbered as in pipeline, or, with an end of 1, between their ends.
func (v *view) apart(b box, x, y, end int) float64 {
	last := v.stages - 1
	if y <= last {
		return b.between(v.forward, x+end, y+end) + v.lagForward[y] - v.lagForward[x]
	}
	to := 2*last + 1 - y
	if from := 2*last + 1 - x; x > last {
		return b.between(v.backward, to+1-end, from+1-end) + v.lagBackward[from] -
			v.lagBackward[to]
	}
	return b.between(v.forward, x+end, last+1) + v.lagForward[last] - v.lagForward[x] +
		b.between(v.backward, to+1-end, last+1) + v.lagBackward[last] - v.lagBackward[to]
}

// width returns over how much work the begins of stages are spread in a box.
func (v *view) width(b box) (sum float64) {
	for s := 1; s < v.stages; s++ {
		low, high := b.low[s], b.high[s]
		sum += v.forward[high] - v.forward[low] + v.backward[high] - v.backward[low]
	}
	return sum
}

// widest returns the stage whose begin is spread over most work in a box; 0 = the box is one cut.
func (v *view) widest(b box) (stage int) {
	wide := 0.0
	for s := 1; s < v.stages; s++ {
		low, high := b.low[s], b.high[s]
		width := v.forward[high] - v.forward[low] + v.backward[high] - v.backward[low]
		if low < high && (stage == 0 || width > wide) {
			stage, wide = s, width
		}
	}
	return stage
}
