package bound

import "slices"

const (
	// mostLooks bounds how often a box is refuted and made smaller before it is split, and
	// leastShrunk is the part of its width that must be gone after that for another look.
	mostLooks, leastShrunk = 8, 0.1
)

// A Prover raises a lower bound of the seconds of a step over all cuts of a chain and all orders.
// It has boxes that hold all cuts; one that is not refuted as a whole is split. One goroutine uses
// it at a time.
type Prover struct {
	Seconds float64 // no plan takes less
	// Ceiling is what the bound cannot come above: what a plan takes, or because one cut was not
	// refuted there.
	Ceiling float64
	Boxes   int // into which the proof of Seconds divides all cuts; 0 = the terms alone say it

	view    *view
	refuter refuter
	boxes   []int // of the proof of Seconds, one after the other, each as its low and its high
	next    []int // of the proof that is tried
	stack   []int // boxes that are left in it, each twice: all of it, and what can be as fast
}

// NewProver returns a prover for a chain that is cut into so many stages, each of which has a
// layer, and for so many micro-batches. It proves no more than most, which is what a plan takes. At
// first its bound is what Cuts says.
func NewProver(c Chain, stages, micro int, most float64) *Prover {
	p := &Prover{Ceiling: most}
	p.Seconds, _ = Cuts(c, stages, micro)
	if p.Seconds >= most {
		p.Seconds = most
		return p
	}
	p.view = newView(c, stages, micro)
	all := p.view.whole()
	p.view.lags(all)
	if p.view.tighten(all, most) {
		p.boxes = append(append(p.boxes, all.low...), all.high...)
	}
	return p
}

// Work returns how many elementary operations the proofs have taken so far, whatever the machine.
func (p *Prover) Work() int { return p.refuter.work }

// Lower says that a plan takes less than was known: the bound cannot come above that.
func (p *Prover) Lower(seconds float64) {
	p.Ceiling, p.Seconds = min(p.Ceiling, seconds), min(p.Seconds, seconds)
}

// Raise tries to prove that no plan takes less than some seconds, or than Ceiling where that is
// less, and reports that it is proved. If it is not, open is where the stages of a cut begin that
// is not refuted there, which is now the reason for Ceiling; or nil where work has come above a
// limit.
func (p *Prover) Raise(seconds float64, limit int) (proved bool, open []int) {
	seconds = min(seconds, p.Ceiling)
	if seconds <= p.Seconds {
		return true, nil
	}
	v := p.view
	half := v.stages + 1
	stride := 2 * half
	p.stack, p.next = p.stack[:0], p.next[:0]
	p.refuter.most = limit
	for at := 0; at < len(p.boxes); at += stride {
		whole := p.boxes[at : at+stride]
		p.stack = append(append(p.stack, whole...), whole...)
	}
	for len(p.stack) > 0 {
		if p.refuter.work > limit {
			return false, nil
		}
		top := p.stack[len(p.stack)-2*stride:]
		b := box{top[stride : stride+half], top[stride+half:]}
		if p.refuted(b, seconds) {
			p.next = append(p.next, top[:stride]...)
			p.stack = p.stack[:len(p.stack)-2*stride]
			continue
		}
		s := v.widest(b)
		if p.refuter.isSpent() {
			return false, nil // what was not refuted may be so by more work
		}
		if s == 0 {
			p.Ceiling = p.bisect(seconds)
			return false, slices.Clone(b.low[:v.stages])
		}
		middle := (b.low[s] + b.high[s]) / 2
		p.stack = append(p.stack, top...)
		low, high := p.stack[len(p.stack)-4*stride:], p.stack[len(p.stack)-2*stride:]
		low[half+s], low[stride+half+s] = middle, middle
		high[s], high[stride+s] = middle+1, middle+1
	}
	p.boxes, p.next = p.next, p.boxes
	p.Seconds, p.Boxes = seconds, len(p.boxes)/stride
	return true, nil
}

// refuted reports that no cut of a box takes so long or less. Else it leaves a smaller box, in
// which those are that may.
func (p *Prover) refuted(b box, seconds float64) bool {
	v, r := p.view, &p.refuter
	for looks := 1; ; looks++ {
		v.lags(b)
		r.work += 20 * v.stages
		if !v.tighten(b, seconds) {
			return true
		}
		r.work += 16 * v.stages * v.stages
		v.lags(b)
		v.fillPipeline(b)
		if r.refute(&v.pipeline, v.micro, seconds) {
			return true
		}
		if v.pipeline.exact {
			return false
		}
		width := v.width(b)
		if !v.squeeze(b, r) {
			return true
		}
		one := v.widest(b) == 0 // which is looked at once more, as exact
		if !one && (looks == mostLooks || v.width(b) > (1-leastShrunk)*width) {
			return false
		}
	}
}

// bisect returns the most seconds, up to some that are too many, at which one cut is refuted.
func (p *Prover) bisect(high float64) float64 {
	low := p.Seconds // and the view is that of the cut
	for range 24 {   // halves what is left
		middle := (low + high) / 2
		if p.refuter.refute(&p.view.pipeline, p.view.micro, middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
