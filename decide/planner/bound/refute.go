package bound

import "slices"

// A pipeline is what is known of the stages of one cut, or of all cuts of a box at once: the least
// that each of them takes.
type pipeline struct {
	// length is the seconds of each pass of a micro-batch: forward from the first stage to the
	// last, then back from the last to the first, twice as many as stages.
	length []float64
	// starts has, for a pass x and a later pass y of a micro-batch, the seconds at least between
	// their starts, and ends those between their ends, in [x*len(length)+y].
	starts, ends []float64
	// before is the seconds before the first micro-batch can begin a pass, and after those that a
	// step takes at least when the last one has ended it.
	before, after []float64
	// held is how many micro-batches a stage can hold: one begins when the one so many before it
	// has gone back.
	held []int
	// exact says that it is one cut: starts and ends are sums, so that neighbours are enough.
	exact bool
}

// A refuter proves that no order of the micro-batches of a pipeline makes a step as short as some
// time. It keeps its working space, so one goroutine uses it at a time: that of its Prover.
//
// Micro-batches are alike, so some best order takes them first in, first out in each direction.
// Each pass of each micro-batch has a window, from when it can begin to when it must have ended.
// Take those passes of a stage that must lie between two times. One that does not fit between them
// as well comes after all of them, or before, which makes its window smaller (edge finding;
// Carlier and Pinson 1989). A window that is too small for its pass, or a time that is too short
// for the passes that must lie in it, refutes.
type refuter struct {
	work       int // elementary operations so far, whatever the machine
	most       int // of them; where there are more, nothing is refuted any more
	micro      int
	begin, end []float64 // windows, by pass and micro-batch
	was, limit []float64 // copies that a round of edge finding reads
	slack      float64   // of rounding, seconds
	rooms      []room    // of the stage for which they were listed last
	largest    [2]float64
	list       bool // whether a round lists rooms
}

// A room is the seconds that a stage has for so many passes forward and back, whatever the cut of a
// box.
type room struct{ forward, back, seconds float64 }

const (
	// mostRounds bounds the rounds of edge finding for a box, which can be split as well, and
	// mostExact those for a cut.
	mostRounds, mostExact = 4, 60
	// leastProgress and leastExact are by which part of the step all windows together must become
	// smaller in a round, for another one.
	leastProgress, leastExact = 1e-2, 1e-6
)

// refute reports that no order of so many micro-batches through p ends within some seconds. False =
// nothing is known, and windows are those that passes have if one does.
func (r *refuter) refute(p *pipeline, micro int, seconds float64) bool {
	passes := len(p.length)
	r.micro, r.slack = micro, 1e-10*seconds
	for _, list := range []*[]float64{&r.begin, &r.end, &r.was, &r.limit} {
		*list = slices.Grow((*list)[:0], passes*micro)[:passes*micro]
	}
	for x, length := range p.length {
		for k := range micro {
			r.begin[x*micro+k] = p.before[x] + float64(float64(k)*length)
			r.end[x*micro+k] = seconds - p.after[x] - float64(float64(micro-1-k)*length)
		}
	}
	rounds, progress := mostRounds, leastProgress
	if p.exact {
		rounds, progress = mostExact, leastExact
	}
	for range rounds {
		if r.forward(p) || r.backward(p) {
			return true
		}
		copy(r.was, r.begin)
		copy(r.limit, r.end)
		for s := range passes / 2 {
			if r.stage(s, p) {
				return true
			}
			if r.isSpent() {
				return false
			}
		}
		sum := 0.0
		for i, b := range r.begin {
			sum += b - r.was[i] + r.limit[i] - r.end[i]
		}
		r.work += passes * micro
		if sum < progress*seconds {
			return false
		}
	}
	return false
}

// isSpent reports that there have been more operations than there may be.
func (r *refuter) isSpent() bool { return r.work > r.most }

// forward makes passes begin later: after those that their micro-batch makes before, and after
// those of the micro-batches before. It reports that one cannot end in time.
func (r *refuter) forward(p *pipeline) bool {
	passes, m := len(p.length), r.micro
	for y, length := range p.length {
		begin := r.begin[y*m : (y+1)*m]
		from := 0
		if p.exact {
			from = max(y-1, 0)
		}
		for x := from; x < y; x++ {
			apart := p.starts[x*passes+y]
			for k, b := range r.begin[x*m : (x+1)*m] {
				begin[k] = max(begin[k], b+apart)
			}
		}
		if y < passes/2 {
			back := passes - 1 - y
			for k := p.held[y]; k < m; k++ {
				begin[k] = max(begin[k], r.begin[back*m+k-p.held[y]]+p.length[back])
			}
		}
		for k := 1; k < m; k++ {
			begin[k] = max(begin[k], begin[k-1]+length)
		}
		for k, e := range r.end[y*m : (y+1)*m] {
			if begin[k]+length > e+r.slack {
				return true
			}
		}
		r.work += (y - from + 3) * m
	}
	return false
}

// backward makes passes end earlier: before those that their micro-batch makes after, and before
// those of the micro-batches after. It reports that one cannot begin in time.
func (r *refuter) backward(p *pipeline) bool {
	passes, m := len(p.length), r.micro
	for x := passes - 1; x >= 0; x-- {
		length, end := p.length[x], r.end[x*m:(x+1)*m]
		to := passes
		if p.exact {
			to = min(x+2, passes)
		}
		for y := x + 1; y < to; y++ {
			apart := p.ends[x*passes+y]
			for k, e := range r.end[y*m : (y+1)*m] {
				end[k] = min(end[k], e-apart)
			}
		}
		if s := passes - 1 - x; x >= passes/2 {
			for k := p.held[s]; k < m; k++ {
				back := k - p.held[s]
				end[back] = min(end[back], r.end[s*m+k]-p.length[s])
			}
		}
		for k := m - 2; k >= 0; k-- {
			end[k] = min(end[k], end[k+1]-length)
		}
		for k, b := range r.begin[x*m : (x+1)*m] {
			if b+length > end[k]+r.slack {
				return true
			}
		}
		r.work += (to - x + 2) * m
	}
	return false
}

// stage makes the windows of one stage smaller, by its passes forward and back; it reports that
// there is no room for all of them. It reads the copies and writes the windows. It takes time by
// the square of the micro-batches, and so ends amid them where its work is spent.
func (r *refuter) stage(s int, p *pipeline) bool {
	m := r.micro
	back := len(p.length) - 1 - s
	at := [2]int{s * m, back * m}
	length := [2]float64{p.length[s], p.length[back]}
	// first and behind bound, for each direction, those passes that must lie between two times: the
	// first one that cannot begin earlier, and the first one that need not have ended.
	var first, behind [2]int
	for c := range 2 {
		first[1-c] = 0
		for i := range m {
			if r.work += 4 * m; r.isSpent() {
				return false
			}
			from := r.was[at[c]+i]
			first[c] = i
			for first[1-c] < m && r.was[at[1-c]+first[1-c]] < from {
				first[1-c]++
			}
			behind = [2]int{}
			for behind[0]+behind[1] < 2*m { // all ends, ascending
				last := 1
				if behind[1] == m || behind[0] < m &&
					r.limit[at[0]+behind[0]] <= r.limit[at[1]+behind[1]] {
					last = 0
				}
				to := r.limit[at[last]+behind[last]]
				behind[last]++
				if behind[c] <= i || behind[last] <= first[last] {
					continue // it begins later, or ended earlier
				}
				var n [2]float64
				n[c], n[1-c] = float64(behind[c]-i), float64(max(behind[1-c]-first[1-c], 0))
				sum := float64(n[0]*length[0]) + float64(n[1]*length[1])
				if from+sum > to+r.slack {
					return true
				}
				if r.list {
					r.add(n, to-from+r.slack)
					continue
				}
				r.squeeze(at, length, first, behind, from, to, sum)
			}
		}
	}
	return false
}

// squeeze moves passes that do not fit between two times, from and to, beside those that must lie
// there and take sum seconds together, behind or before all of these. Lists are by direction,
// forward and back: `at` is where its passes begin in the windows, length is the seconds of a pass,
// and from first up to behind are the micro-batches whose passes must lie between the times.
func (r *refuter) squeeze(at [2]int, length [2]float64, first, behind [2]int, from, to,
	sum float64) {
	room := to - from - sum + r.slack
	for c := range 2 {
		if length[c] <= room {
			continue
		}
		// None of this direction must lie there: these may begin before, and end behind.
		for k := behind[c]; k < first[c]; k++ {
			i := at[c] + k
			if r.was[i]+length[c]+sum > to+r.slack { // it is not before, nor are those after it
				r.begin[i] = max(r.begin[i], from+sum)
				break
			}
			if from+sum+length[c] > r.limit[i]+r.slack {
				r.end[i] = min(r.end[i], to-sum)
			}
		}
		if k := max(first[c], behind[c]); k < r.micro { // it cannot begin earlier
			i := at[c] + k
			r.begin[i] = max(r.begin[i], from+sum)
		}
		if k := min(first[c], behind[c]) - 1; k >= 0 { // it must end by then
			i := at[c] + k
			r.end[i] = min(r.end[i], to-sum)
		}
	}
}

// listRooms lists the rooms of stage s that passes of the lengths forward and back, the longest in
// a box, in seconds, would not fit into. It follows refute.
func (r *refuter) listRooms(s int, p *pipeline, forward, back float64) []room {
	r.rooms, r.largest = r.rooms[:0], [2]float64{forward, back}
	copy(r.was, r.begin)
	copy(r.limit, r.end)
	r.list = true
	r.stage(s, p)
	r.list = false
	return r.rooms
}

// add lists a room for so many passes forward and back, if the longest do not fit into it.
func (r *refuter) add(n [2]float64, seconds float64) {
	if float64(n[0]*r.largest[0])+float64(n[1]*r.largest[1]) > seconds {
		r.rooms = append(r.rooms, room{n[0], n[1], seconds})
	}
}
