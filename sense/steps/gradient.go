package steps

import "github.com/shoal-ml/shoal/sense/noise"

// Gradient gathers the squared norms of a step's gradients over the parts of the step. The zero
// value has none. One goroutine uses it at a time.
type Gradient struct {
	members  []member
	norms    []float64 // by member: |g_i|² over what was measured; 0 for members elsewhere
	mean     float64   // of the mean of all gradients
	measured int       // elements that were measured
	elements int       // elements of all parts
	here     int       // members of this host
	unlike   bool      // a part has other members or weights than the first, or was unusable
	samples  []float64 // memory of what NoiseStep returns
	own      []float64 // likewise
}

// member is what a call says of who made it.
type member struct {
	weight float64
	here   bool // it is of this host
}

// Reset forgets what was gathered.
func (g *Gradient) Reset() {
	g.members, g.norms = g.members[:0], g.norms[:0]
	g.mean, g.measured, g.elements, g.here, g.unlike = 0, 0, 0, 0, false
}

// AddMember adds member i of a part, in ascending order for each part: the weight of its gradient
// in the mean, and whether it is on this host.
func (g *Gradient) AddMember(i int, weight float64, here bool) {
	m := member{weight, here}
	switch {
	case i < len(g.members):
		g.unlike = g.unlike || g.members[i] != m
	case i == len(g.members) && g.elements == 0:
		g.members, g.norms = append(g.members, m), append(g.norms, 0)
		if here {
			g.here++
		}
	default:
		g.unlike = true
	}
}

// Norms returns the norms by member, to which those of a part are to be added; nil = a part with so
// many members has no place among the others, and the gradient of this step is unusable.
func (g *Gradient) Norms(members int) []float64 {
	if g.unlike || members != len(g.members) {
		g.unlike = true
		return nil
	}
	return g.norms
}

// AddPart adds a part of the gradient: of all its elements, and of those that were measured and
// the squared norm of the mean over these.
func (g *Gradient) AddPart(elements, measured int, mean float64) {
	g.elements += elements
	g.measured += measured
	g.mean += mean
}

// MarkUnusable has NoiseStep return nothing of the gradient of this step.
func (g *Gradient) MarkUnusable() { g.unlike = true }

// ElementsRead returns how many elements are read again when all of the gradient is measured: those
// of the members here, and of the mean.
func (g *Gradient) ElementsRead() int { return g.elements * (g.here + 1) }

// NoiseStep returns what the parts tell of a step of so many samples; without Norms, if they tell
// nothing. Weights are numbers of samples, as loaders give them. Where all are alike, or one is
// below 1, or all together are more than the step has, they only divide its samples. What it
// returns is valid until the next NoiseStep.
func (g *Gradient) NoiseStep(count uint64) (x noise.Step) {
	if g.unlike || g.measured == 0 || count == 0 {
		return x
	}
	sum, alike, whole := 0.0, true, true
	for _, m := range g.members {
		sum += m.weight
		if m.weight > 0 {
			x.Workers++
			whole = whole && m.weight >= 1
		}
		alike = alike && m.weight == g.members[0].weight
	}
	unit := 1.0
	if sum > 0 && (alike || !whole || sum > float64(count)) {
		unit = float64(count) / sum
	}
	g.own, g.samples = g.own[:0], g.samples[:0]
	for i, m := range g.members {
		if m.here && m.weight > 0 {
			g.own = append(g.own, g.norms[i])
			g.samples = append(g.samples, m.weight*unit)
		}
	}
	x.Norms, x.Samples, x.Mean, x.Batch = g.own, g.samples, g.mean, sum*unit
	x.Part = float64(g.measured) / float64(g.elements)
	return x
}
