package bound

import "math"

// A ReplicatedChain is layers in a row whose stages have own numbers of replicas, which share each
// micro-batch. Seconds are those of a micro-batch on one device.
type ReplicatedChain struct {
	Forward, Backward []float64
	// Tail returns the least seconds that a stage of the layers from i to j, without j, on so many
	// devices takes from the end of its last backward pass to that of its step; nil = 0.
	Tail func(i, j, devices int) float64
}

// Replicated returns a lower bound of the seconds of a step of so many micro-batches, over all ways
// to cut a chain into stages, any number of them, to deal so many devices to the stages, and all
// orders. The terms are the first three of Cuts, where r devices take the r-th part of the seconds
// of one.
// The layers before a stage are on the d devices before it, and so the first micro-batch takes a
// d-th part of their seconds at least until it comes; those after it likewise.
func Replicated(c ReplicatedChain, devices, micro int) float64 {
	n := len(c.Forward)
	if n == 0 || devices < 1 || micro < 1 {
		return math.Inf(1)
	}
	forward, backward := sums(c.Forward), sums(c.Backward)
	m := float64(micro)
	// least returns the largest of the three terms, where before devices come first, and those up
	// to upTo have the stage.
	least := func(i, j, before, upTo int) float64 {
		r := float64(upTo - before)
		f, b := (forward[j]-forward[i])/r, (backward[j]-backward[i])/r
		head, back := 0.0, 0.0
		if i > 0 {
			head, back = forward[i]/float64(before), backward[i]/float64(before)
		}
		behind := 0.0
		if j < n {
			behind = (forward[n] - forward[j] + backward[n] - backward[j]) / float64(devices-upTo)
		}
		tail := 0.0
		if c.Tail != nil {
			tail = c.Tail(i, j, upTo-before)
		}
		return max(head+float64(m*(f+b))+max(back, tail), head+float64(m*f)+behind+b+back,
			head+f+behind+float64(m*b)+back)
	}
	best := make([][]float64, n+1) // by layers and devices
	for j := range best {
		best[j] = make([]float64, devices+1)
		for d := range best[j] {
			best[j][d] = math.Inf(1)
		}
	}
	best[0][0] = 0
	for j := 1; j <= n; j++ {
		for upTo := 1; upTo <= devices; upTo++ {
			if (j == n) != (upTo == devices) {
				continue // devices are left over, or layers
			}
			for before := upTo - 1; before >= 0; before-- {
				part := m / float64(upTo-before)
				for i := j - 1; i >= 0; i-- {
					load := forward[j] - forward[i] + backward[j] - backward[i]
					if part*load >= best[j][upTo] {
						break // and with more layers it is no shorter
					}
					if best[i][before] >= best[j][upTo] {
						continue
					}
					best[j][upTo] = min(best[j][upTo],
						max(best[i][before], least(i, j, before, upTo)))
				}
			}
		}
	}
	return best[n][devices]
}
