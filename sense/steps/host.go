// Package steps turns what the hosts of a job see of its training steps into what is observed of
// the job. A Host adds up the steps of one host, and gives them away in a Note, once a second say.
// A Job, on the host that leads, adds up the notes of all hosts. It is pure, as package sense is.
//
// No clocks are compared. A host knows how long each of its workers has waited, from its last call
// of the step to the commit. Who comes last waits for nobody: the shortest wait is what the step
// takes for communication while nothing is computed, and what others wait longer is slack, which
// they have because somebody is slow.
package steps

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
)

const (
	// maxCost is the share of a step that the norms of its gradient may cost, and sparingCost that
	// where they are only kept. It is counted as if one processor did all of it: where several
	// lanes share a gradient the step is held up by less, but they take their time from workers,
	// which compute on the other processors.
	maxCost, sparingCost = 0.005, 0.001
	// maxEvery is the smallest part of the chunks that is measured: one in so many. Where that
	// costs too much, some steps are left out.
	maxEvery = 16
	// maxSkip is how many steps are for one that is measured, at most.
	maxSkip = 1024
	// secondsPerStep is what it takes to see what there is of a step, but for its gradient, and
	// maxStepCost the share of a step that this may take: of steps below 400 µs not each is seen.
	// A step that is seen is 1 µs longer, though it takes 0.2 µs if nothing else runs between.
	secondsPerStep, maxStepCost = 1e-6, 0.0025
	// maxStride is one in how many steps is seen at least, and minSteps how many are seen before
	// any is left out.
	maxStride, minSteps = 32, 1024
)

// Step is what a host sees of a committed step. Seconds are those of its own clock.
type Step struct {
	Generation uint64 // generation of the members
	Size       int    // members of the job
	Deal       uint32 // tells how work was divided and workers synchronised from other ways
	Seconds    float64
	Alike      uint64     // steps before it that were as this one; Seconds is the mean of them all
	Workers    []Worker   // those of this host that were members
	Gradient   noise.Step // what is known of its gradients; without Norms = nothing
	Reads      int        // elements that measuring all of the gradient reads; 0 = not known
}

// Worker is what is known of a worker in a step. What it tells itself is seconds, and 0 where it
// tells nothing.
type Worker struct {
	Rank      int
	Wait      float64 // from its last gradient to the commit; below 0 = only what it tells itself
	Data      float64
	Compute   float64
	Optimizer float64
	Loss      float64 // of its own samples; 0 = not told
}

// Host adds up the steps of one host. The zero value is ready. One goroutine uses it at a time.
type Host struct {
	// SecondsPerRead is what it takes to measure an element; 0 = measuring costs nothing.
	SecondsPerRead float64
	// Sparing says that nobody decides by the norms of gradients, so that they may cost less.
	Sparing bool

	note    Note
	seconds sense.Window // from one step that was added to the next, of the newest
	reads   int          // elements that measuring all of a gradient reads; 0 = not known
	steps   int          // steps ever added
	stride  int          // one in so many steps is to be added; 0 = each
	every   int          // one in so many chunks of a gradient is measured
	skip    int          // one in so many steps is measured
	least   float64      // share of a gradient that is measured at least, where it has few chunks
}

// Add adds a committed step. A step of other members, or another Deal, than the one before drops
// what the note has so far, but for the noise. What cannot be is left out: a worker is not believed
// that claims to have taken longer than the step.
func (h *Host) Add(s Step) {
	if n := &h.note; n.Generation != s.Generation || n.Size != s.Size || n.Deal != s.Deal {
		*n = Note{Generation: s.Generation, Size: s.Size, Deal: s.Deal, Noise: n.Noise}
	}
	h.note.add(&s)
	h.steps++
	if s.Seconds > 0 {
		h.seconds.Add(s.Seconds * float64(s.Alike+1))
	}
	if s.Reads > 0 {
		h.reads = s.Reads
	}
	if part := s.Gradient.Part; part > 0 {
		if h.least = 0; part*float64(h.every) > 1 {
			h.least = part
		}
	}
}

// TakeNote returns what was added up since the last TakeNote, as far as Add has not dropped it, and
// begins anew.
func (h *Host) TakeNote() Note {
	n := h.note
	h.note = Note{Generation: n.Generation, Size: n.Size, Deal: n.Deal}
	h.every, h.skip = h.samplingRate()
	h.stride = h.strideAfter(n.Steps)
	return n
}

// Stride returns one in how many steps is to be added: each, but of very short ones.
func (h *Host) Stride() int { return max(1, h.stride) }

// AddEach has each step added until the next TakeNote: steps may take longer from now on.
func (h *Host) AddEach() { h.seconds, h.stride = sense.Window{}, 1 }

// strideAfter returns the stride after a note of so many steps.
func (h *Host) strideAfter(steps float64) (stride int) {
	if steps == 0 || h.steps < minSteps || h.seconds.Count() < sense.WindowSize {
		return 1
	}
	// the shortest, for on a busy machine many steps are held up
	seconds := h.seconds.Min() / float64(h.Stride())
	for stride = 1; stride < maxStride && secondsPerStep > maxStepCost*float64(stride)*seconds; {
		stride *= 2
	}
	return stride
}

// samplingRate returns how much of the gradients can be measured for maxCost of a step: one in so
// many chunks of one in so many steps.
func (h *Host) samplingRate() (every, skip int) {
	if h.seconds.Count() == 0 || h.reads == 0 {
		return maxEvery, 1
	}
	cost := maxCost
	if h.Sparing {
		cost = sparingCost
	}
	share := float64(h.reads) * h.SecondsPerRead / (cost * h.seconds.Median())
	for every = 1; every < maxEvery && float64(every) < share; {
		every *= 2
	}
	part := max(1/float64(every), h.least)
	for skip = 1; skip < maxSkip && float64(skip) < share*part; {
		skip *= 2
	}
	return every, skip
}

// Sampling returns how the gradient of the next step is to be measured: one in `every` chunks; 0 =
// not at all. turn counts the steps that are measured, so that each takes other chunks.
func (h *Host) Sampling() (every, turn int) {
	if h.steps&(h.steps-1) == 0 { // soon after the begin; later with each note
		h.every, h.skip = h.samplingRate()
	}
	if h.steps%h.skip > 0 {
		return 0, 0
	}
	return h.every, h.steps / h.skip
}

// add adds a step to the sums of a note.
func (n *Note) add(s *Step) {
	n.Steps += float64(s.Alike + 1)
	least, timed := math.Inf(1), len(s.Workers) > 0 && s.Seconds > 0
	for i := range s.Workers {
		w := &s.Workers[i]
		n.addReported(w, s.Seconds)
		wait := w.waited(s.Seconds)
		timed = timed && wait >= 0
		least = min(least, wait)
	}
	if len(s.Gradient.Norms) > 0 {
		n.Noise.AddStep(s.Gradient)
	}
	if !timed || !(least < math.Inf(1)) {
		return
	}
	n.Timed++
	n.Seconds += s.Seconds
	n.Exposed += least
	for i := range s.Workers {
		w := &s.Workers[i]
		wait := w.waited(s.Seconds)
		if i, ok := slices.BinarySearch(n.Ranks, w.Rank); ok {
			n.Waits[i] += wait
		} else {
			n.Ranks = slices.Insert(n.Ranks, i, w.Rank)
			n.Waits = slices.Insert(n.Waits, i, wait)
		}
	}
}

// waited returns how long a worker has waited at the end of a step of so many seconds: where that
// is not known, what is left of the step without what it tells of it; below 0 = it tells nothing.
func (w *Worker) waited(seconds float64) float64 {
	if w.Wait >= 0 || !(w.Compute > 0) {
		return w.Wait
	}
	return max(0, seconds-w.Data-w.Compute-w.Optimizer)
}

// addReported adds what a worker tells of a step of so many seconds.
func (n *Note) addReported(w *Worker, seconds float64) {
	if l := w.Loss; l != 0 && math.Abs(l) < 1e30 {
		n.Loss += l
		n.Losses++
	}
	sum := 0.0
	for _, x := range [...]float64{w.Data, w.Compute, w.Optimizer} {
		if !(x >= 0) {
			return
		}
		sum += x
	}
	if sum == 0 || !(sum <= float64(1.25*seconds)+0.01) {
		return
	}
	n.Told++
	n.Data += w.Data
	n.Compute += w.Compute
	n.Optimizer += w.Optimizer
}
