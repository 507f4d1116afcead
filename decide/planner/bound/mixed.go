package bound

import (
	"math"
	"sort"
)

// A Kind is a kind of device: what layers take on it, without lags, and how many stages can be on
// it.
type Kind struct {
	Chain
	Units int
	// Between is the seconds at least that a cut keeps a stage on it from computing, for each
	// micro-batch, because transfers are waited for.
	Between float64
}

// A Mixed is layers in a row whose stages are on kinds of devices, each stage on one. It remembers
// what it has found for the seconds that are tried, so one goroutine uses it at a time. Kinds are
// numbered by k, and a stage of the layers from i to j does not have j.
type Mixed struct {
	Micro int // micro-batches

	kinds               []Kind
	forward, backward   [][]float64 // by kind, sums over the layers before
	fastForward, fastBW []float64   // those of the fastest kind of each layer
	ends                [][]int     // by kind and first layer: the farthest end; 0 = not known
	reach               []int       // by units of each kind: the most layers that they can take
}

// mostStates bounds the numbers of units of each kind, in all combinations, that are looked at.
const mostStates = 1 << 18

// NewMixed returns layers on kinds of devices, of which there must be one, all with as many layers.
func NewMixed(kinds []Kind, micro int) *Mixed {
	m := &Mixed{Micro: micro, kinds: kinds}
	n := len(kinds[0].Forward)
	fast, fastBW := make([]float64, n), make([]float64, n)
	for l := range n {
		fast[l], fastBW[l] = math.Inf(1), math.Inf(1)
		for _, k := range kinds {
			fast[l], fastBW[l] = min(fast[l], k.Forward[l]), min(fastBW[l], k.Backward[l])
		}
	}
	m.fastForward, m.fastBW = sums(fast), sums(fastBW)
	states := 1
	for _, k := range kinds {
		m.forward, m.backward = append(m.forward, sums(k.Forward)),
			append(m.backward, sums(k.Backward))
		m.ends = append(m.ends, make([]int, n))
		if states *= min(k.Units, n) + 1; states > mostStates {
			return m // which has too many to look at
		}
	}
	m.reach = make([]int, states)
	return m
}

// Least returns the seconds of a step that no plan takes less than, from low, a bound that is
// known, up to high, what a plan takes. Stages are of any number and on any kinds, as far as there
// are units, passes in any order. The terms are those of Cuts, where layers before and after a
// stage are as fast as on the fastest kind.
func (m *Mixed) Least(low, high float64) float64 {
	if low >= high || !m.Allows(high) {
		return high
	}
	if m.Allows(low) {
		return low
	}
	return Bisect(low, high, func(seconds float64) bool { return !m.Allows(seconds) })
}

// Bisect returns the most seconds that are refuted, from low, which are, to high, which are not: to
// a part in 2^13, by which those that it looks at differ. They are the same whatever low and high
// are, so that who has another plan proves the same.
func Bisect(low, high float64, refuted func(seconds float64) bool) float64 {
	const rest = 52 - 13 // bits of a number that are 0
	number := func(seconds float64) int { return int(math.Float64bits(seconds) >> rest) }
	seconds := func(number int) float64 { return math.Float64frombits(uint64(number) << rest) }
	first := number(low)
	more := sort.Search(number(high)-first, func(i int) bool {
		return !refuted(seconds(first + 1 + i))
	})
	return max(low, seconds(first+more))
}

// Allows reports that the terms do not rule out all plans that take so long at most.
func (m *Mixed) Allows(seconds float64) bool {
	if m.reach == nil {
		return true
	}
	n := len(m.kinds[0].Forward)
	for _, list := range m.ends {
		clear(list)
	}
	// A stage that begins later ends as late at least, so the farthest of all ways counts.
	for state := range m.reach {
		most, stride := 0, 1
		for k := range m.kinds {
			units := min(m.kinds[k].Units, n) + 1
			if state/stride%units > 0 {
				from := m.reach[state-stride]
				if m.ends[k][from] == 0 {
					m.ends[k][from] = m.end(k, from, seconds)
				}
				if most = max(most, m.ends[k][from]); most == n {
					return true
				}
			}
			stride *= units
		}
		m.reach[state] = most
	}
	return false
}

// end returns the farthest end of a stage on kind k that begins at a layer and whose terms are not
// above some seconds; the begin = there is none.
func (m *Mixed) end(k, from int, seconds float64) int {
	n := len(m.kinds[k].Forward)
	if m.terms(k, from, n) <= seconds {
		return n
	}
	return from + sort.Search(n-1-from, func(i int) bool {
		return m.terms(k, from, from+1+i) > seconds
	})
}

// terms returns the seconds that a step takes at least with a stage of the layers from i to j on
// kind k, as the terms of Cuts say; +Inf where they do not fit into memory.
func (m *Mixed) terms(k, i, j int) float64 {
	kind, n, micro := &m.kinds[k], len(m.fastForward)-1, float64(m.Micro)
	f, b := m.forward[k][j]-m.forward[k][i], m.backward[k][j]-m.backward[k][i]
	head, back := m.fastForward[i], m.fastBW[i]
	behind := m.fastForward[n] - m.fastForward[j] + m.fastBW[n] - m.fastBW[j]
	cuts := 0.0
	if i > 0 {
		cuts++
	}
	if j < n {
		cuts++
	}
	after := back
	if kind.Tail != nil {
		after = max(after, kind.Tail(i, j))
	}
	most := max(head+float64(micro*(f+b+float64(cuts*kind.Between)))+after,
		head+float64(micro*f)+behind+b+back, head+f+behind+float64(micro*b)+back)
	if kind.Held == nil {
		return most
	}
	switch held := kind.Held(i, j); {
	case held < 1:
		return math.Inf(1)
	case held < m.Micro:
		turns := float64((m.Micro + held - 1) / held)
		most = max(most, head+float64(turns*(f+behind+b))+after)
	}
	return most
}
