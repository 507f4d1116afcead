package spp

import (
	"math"
	"slices"
)

// mostTails bounds how many limits of the tail Partition tries for one number of stages.
const mostTails = 64

// A Problem is layers in a row and devices in a row. Seconds are those of a micro-batch.
type Problem struct {
	Seconds []float64 // by layer, forward and back, on one device
	Devices int
	Micro   int // micro-batches of a step
	// Transfer returns the seconds in which a link carries a micro-batch over the cut before a
	// layer, and its gradient back, at the same time where it can: from a stage on the devices from
	// a to b, without b, to one on those from b to c.
	Transfer func(layer, a, b, c int) float64
	// Tail returns the seconds that a stage of the layers from i to j on the devices from a to b
	// takes after its last backward pass; +Inf = it does not fit into memory. More layers take no
	// less.
	Tail func(i, j, a, b int) float64
}

// A Plan is stages, each with its own devices.
type Plan struct {
	Starts []int // first layer of each stage
	Places []int // first device of each stage; those up to the next stage's are its replicas
	// Slowest is the seconds that a micro-batch takes forward and back on the slowest stage, or
	// between two of them. A stage's replicas share a micro-batch.
	Slowest float64
	Tail    float64 // the longest of a stage
}

// Guarantee returns the seconds of a step of a plan that Cyclic is never above, for its numbers of
// stages and of micro-batches.
func (p *Plan) Guarantee(micro int) float64 {
	return float64(float64(micro+4*len(p.Starts)-4)*p.Slowest) + p.Tail
}

// Cyclic returns of how many micro-batches each of some stages holds what their backward passes
// need, in the order whose time Guarantee bounds. In a cycle as long as Slowest, each stage takes
// one micro-batch forward and another one back, and each link one in both directions: a micro-batch
// is on the next of these in the next cycle. It has been everywhere after 4·stages - 3 cycles.
func Cyclic(stages, micro int) []int {
	held := make([]int, stages)
	for s := range held {
		held[s] = min(4*(stages-1-s)+1, micro)
	}
	return held
}

// Partition returns the plan of so many stages on all devices with the least Guarantee that it
// finds with mostTails limits, of those whose Slowest is below most; nil = there is none that fits.
func Partition(p *Problem, stages int, most float64) (best *Plan) {
	n := len(p.Seconds)
	if stages < 1 || stages > n || stages > p.Devices {
		return nil
	}
	t := newTable(p, stages)
	// Without a limit of the tail, the slowest stage is the fastest that it can be. Each further
	// plan has a shorter tail, and so a slower stage. None is better once that alone takes longer.
	limit := math.Inf(1)
	for range mostTails {
		plan := t.fastest(most, limit)
		if plan == nil {
			break
		}
		if best == nil || plan.Guarantee(p.Micro) < best.Guarantee(p.Micro) {
			best = plan
		}
		if plan.Tail == 0 {
			break
		}
		limit = plan.Tail
		most = min(most, best.Guarantee(p.Micro)/float64(p.Micro+4*stages-4))
	}
	return best
}

// A table is what the dynamic programme knows: of the first layers on the first devices, cut into
// stages, how fast the slowest can be. It belongs to one call of Partition, on its goroutine.
type table struct {
	*Problem
	stages int
	sums   []float64 // of the first 0, 1, … layers
	// value is by layers, devices, and replicas of the last stage; entered is by layers, devices
	// and replicas of the next stage, with the transfer to that.
	value, entered []float64
	from           [][]int32 // by stage: where the last stage begins
	replicas       [][]int32 // by stage: how many replicas the stage has, before the next one
}

// newTable returns an empty table.
func newTable(p *Problem, stages int) *table {
	t := &table{Problem: p, stages: stages, sums: make([]float64, len(p.Seconds)+1)}
	for i, s := range p.Seconds {
		t.sums[i+1] = t.sums[i] + s
	}
	size := (len(p.Seconds) + 1) * (p.Devices + 1) * (p.Devices + 1)
	t.value, t.entered = make([]float64, size), make([]float64, size)
	for range stages {
		t.from = append(t.from, make([]int32, size))
		t.replicas = append(t.replicas, make([]int32, size))
	}
	return t
}

// index returns where value and entered have the entry of so many layers, devices and replicas.
func (t *table) index(layers, devices, replicas int) int {
	return (layers*(t.Devices+1)+devices)*(t.Devices+1) + replicas
}

// fastest returns the plan whose slowest stage or transfer is the fastest, below most seconds, with
// tails below limit; nil = there is none. It begins with little more than the mean of the devices,
// which leaves few cuts that are worth a look.
func (t *table) fastest(most, limit float64) *Plan {
	all := t.sums[len(t.Seconds)]
	longest := float64(2 * all) // more than any stage, and any transfer
	for layer := 1; layer < len(t.Seconds); layer++ {
		for b := 1; b < t.Devices; b++ {
			longest = max(longest, 2*t.Transfer(layer, b-1, b, b+1))
		}
	}
	const least = 1e-6 // of the longest, from which a limit grows in few steps
	for tried := max(all/float64(t.Devices), least*longest); tried < min(most, longest); {
		tried = min(float64(1.3*tried), most)
		if plan := t.fill(tried, limit); plan != nil {
			return plan
		}
	}
	if math.IsInf(most, 1) {
		return t.fill(most, limit)
	}
	return nil
}

// fill fills the table with what is below most seconds, and returns its best plan; nil = none.
func (t *table) fill(most, limit float64) *Plan {
	n := len(t.Seconds)
	for i := range t.entered {
		t.entered[i] = math.Inf(1)
	}
	for r := 1; r <= t.Devices; r++ {
		t.entered[t.index(0, 0, r)] = 0
	}
	for s := range t.stages {
		for i := range t.value {
			t.value[i] = math.Inf(1)
		}
		for devices := s + 1; devices <= t.Devices-(t.stages-1-s); devices++ {
			for layers := s + 1; layers <= n-(t.stages-1-s); layers++ {
				// Neither the devices before nor those after can make up for more than this.
				if t.sums[layers] >= most*float64(devices) ||
					t.sums[n]-t.sums[layers] > most*float64(t.Devices-devices) {
					continue
				}
				for r := 1; r <= devices-s; r++ {
					t.extend(s, layers, devices, r, most, limit)
				}
			}
		}
		if s+1 < t.stages {
			t.enter(s, most)
		}
	}
	return t.trace()
}

// extend fills in, for the first so many layers on the first devices, where the last of s + 1
// stages begins best, if it has r replicas; what is not below most seconds, or has a tail that is
// not below limit, is left out.
func (t *table) extend(s, layers, devices, r int, most, limit float64) {
	at := t.index(layers, devices, r)
	best := most
	for from := layers - 1; from >= s; from-- {
		load := (t.sums[layers] - t.sums[from]) / float64(r)
		if load >= best {
			break
		}
		before := t.entered[t.index(from, devices-r, r)]
		if v := max(load, before); v < best {
			if t.Tail(from, layers, devices-r, devices) >= limit {
				break
			}
			best, t.value[at], t.from[s][at] = v, v, int32(from)
		}
	}
}

// enter fills in with how many replicas the stage before a cut is best, for each number of those
// after it.
func (t *table) enter(s int, most float64) {
	n := len(t.Seconds)
	for i := range t.entered {
		t.entered[i] = math.Inf(1)
	}
	for layers := s + 1; layers < n; layers++ {
		for devices := s + 1; devices < t.Devices; devices++ {
			for r := 1; r <= devices; r++ {
				v := t.value[t.index(layers, devices, r)]
				if v >= most {
					continue
				}
				for next := 1; next <= t.Devices-devices; next++ {
					at := t.index(layers, devices, next)
					if v >= t.entered[at] {
						continue
					}
					sent := t.Transfer(layers, devices-r, devices, devices+next)
					if w := max(v, sent); w < t.entered[at] && w < most {
						t.entered[at], t.replicas[s][at] = w, int32(r)
					}
				}
			}
		}
	}
}

// trace returns the best plan that a full table has; nil = none.
func (t *table) trace() *Plan {
	layers, devices, r := len(t.Seconds), t.Devices, 0
	slowest := math.Inf(1)
	for k := 1; k <= devices; k++ {
		if v := t.value[t.index(layers, devices, k)]; v < slowest {
			slowest, r = v, k
		}
	}
	if r == 0 {
		return nil
	}
	plan := &Plan{Slowest: slowest}
	for s := t.stages - 1; s >= 0; s-- {
		from := int(t.from[s][t.index(layers, devices, r)])
		plan.Tail = max(plan.Tail, t.Tail(from, layers, devices-r, devices))
		layers, devices = from, devices-r
		plan.Starts, plan.Places = append(plan.Starts, layers), append(plan.Places, devices)
		if s > 0 {
			r = int(t.replicas[s-1][t.index(layers, devices, r)])
		}
	}
	slices.Reverse(plan.Starts)
	slices.Reverse(plan.Places)
	return plan
}
