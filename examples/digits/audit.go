package digits

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
)

// How a training is checked while it runs. The goroutine of the training loop calls everything
// here; the functions without a receiver are functions, and not methods, because they have a type
// parameter.

// Audit looks on while a worker trains, and checks what a job promises: every sample counts once an
// epoch, and all workers hold the same parameters at every step. In the step of the gradient it
// moves a sheet on which each worker writes what it contributes; so it sees what has become part of
// the sum, whoever was lost meanwhile. What it has seen is part of the state, so a worker that
// joins has it too. One goroutine uses it, that of the training loop.
type Audit struct {
	// Changed is called after the first step of this worker, and after each step in which the
	// members have changed; it must be set. Its error ends the training.
	Changed func(Change) error

	times  []int32        // how often each sample has counted in the epoch
	found  []int64        // the findings so far, as in findings
	sheet  []int64        // a digest a rank, then the samples (from 1) that each rank gives
	size   int            // ranks on the sheet
	dealt  int            // samples of the step over all ranks
	moving *client.Handle // the sum of the sheet, between postSheet and readSheet

	digest     uint64          // of the parameters
	step       int             // number of committed steps before the step that is under way
	generation uint64          // of the newest step; 0 = there was none
	last       time.Time       // end of the newest step
	paces      []time.Duration // of the newest steps, as a ring
	steps      int             // of this worker
}

// Change is how the members changed, as one of them sees it.
type Change struct {
	Generation uint64
	Step, Size int           // number of committed steps, and of members
	At         time.Time     // of the first commit of the generation, or this worker's own first
	Pace       time.Duration // the median time of a step until then; 0 = it had none
}

// Findings are what an Audit saw until now; Lost, Repeated, StepsLost and Unequal should be 0.
type Findings struct {
	Lost, Repeated int // samples: in the epochs that are over, and as far as the last one went
	// samples of workers that were lost in a step; others took them in the next
	HandedOn  int
	StepsLost int // steps that are missing in, or too many for, the count of steps
	Unequal   int // steps before which not all workers held the same parameters
	// steps of this worker; with 0 it may have ended before it had the job's state, and the rest
	// says nothing
	Made   int
	Step   int    // of the job, when this worker ended
	Digest uint64 // of this worker's parameters at the end, 53 bits
}

// The numbers of the findings in Audit.found, and how many there are.
const (
	foundLost = iota
	foundRepeated
	foundHandedOn
	foundUnequal
	foundStepsLost
	findings
)

// paceSteps is how many of the newest steps have a part in the pace.
const paceSteps = 64

// state makes the counts of the audit, all 0, for a set of so many samples, and returns them as the
// state that a worker that joins receives; nil for no audit. It is called once, before training.
func (a *Audit) state(samples int) []client.State {
	if a == nil {
		return nil
	}
	a.times, a.found = make([]int32, samples), make([]int64, findings)
	return []client.State{client.StateOf("audit/times", a.times),
		client.StateOf("audit/found", a.found)}
}

// postSheet fills the sheet of the step that is under way, and starts to sum it over the workers;
// readSheet waits for that. It does nothing without an audit.
func postSheet[T Float](a *Audit, job *client.Job, t *client.Trainer, weights []T) {
	if a == nil {
		return
	}
	a.size, a.dealt, a.step, a.digest = job.Size(), t.Count(), t.Step(), digest(weights)
	room := a.size * (1 + a.dealt) // any rank may have all samples, as shares of work say
	a.sheet = slices.Grow(a.sheet[:0], room)[:room]
	clear(a.sheet)
	a.sheet[job.Rank()] = int64(a.digest)
	if t.Weight() > 0 {
		for i, s := range t.Samples() {
			a.sheet[a.size+job.Rank()*a.dealt+i] = s + 1
		}
	}
	a.moving = client.AllReduceAsync(job, a.sheet, collective.Sum, client.More())
}

// readSheet waits for the sheet of a step that is committed, and counts what it shows. epoch is
// that of the step. It does nothing without an audit.
func (a *Audit) readSheet(ctx context.Context, job *client.Job, t *client.Trainer,
	epoch int) error {
	if a == nil {
		return nil
	}
	if err := a.moving.Wait(ctx); err != nil {
		return err
	}
	for _, d := range a.sheet[:a.size] {
		if d != 0 && uint64(d) != a.digest {
			a.found[foundUnequal]++
			break
		}
	}
	a.found[foundHandedOn] += int64(a.dealt)
	for _, s := range a.sheet[a.size:] {
		if s > 0 {
			a.times[s-1]++
			a.found[foundHandedOn]--
		}
	}
	if t.Epoch() > epoch {
		lost, repeated := a.countErrors(len(a.times))
		a.found[foundLost] += lost
		a.found[foundRepeated] += repeated
		clear(a.times)
	}
	if off := int64(t.Step() - a.step - 1); off != 0 {
		a.found[foundStepsLost] += max(off, -off)
	}
	return a.addStep(job, t.Step())
}

// countErrors returns how many of the samples that should have counted once did not, and how often
// any has counted again, in this epoch. should is how many samples the epoch has dealt.
func (a *Audit) countErrors(should int) (lost, repeated int64) {
	once := 0
	for _, n := range a.times {
		repeated += int64(max(n-1, 0))
		once += int(min(n, 1))
	}
	return int64(max(should-once, 0)), repeated
}

// addStep records the time of a step, and calls a.Changed if it is the first of a generation. step
// is the number of committed steps.
func (a *Audit) addStep(job *client.Job, step int) error {
	now, pace := time.Now(), a.medianStep()
	if a.steps > 0 {
		if len(a.paces) < paceSteps {
			a.paces = append(a.paces, 0)
		}
		a.paces[a.steps%len(a.paces)] = now.Sub(a.last)
	}
	a.last = now
	a.steps++
	if g := uint64(job.Generation()); g != a.generation {
		a.generation = g
		return a.Changed(Change{g, step, job.Size(), now, pace})
	}
	return nil
}

// medianStep returns the median time of a step; 0 if there was none.
func (a *Audit) medianStep() time.Duration {
	if len(a.paces) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(a.paces))
	return sorted[len(sorted)/2]
}

// finishAudit counts the epoch that is not complete, after the last step. It does nothing without
// an audit.
func finishAudit[T Float](a *Audit, t *client.Trainer, weights []T) {
	if a == nil || a.steps == 0 {
		return
	}
	lost, repeated := a.countErrors(t.Seen() - t.Epoch()*len(a.times))
	a.found[foundLost] += lost
	a.found[foundRepeated] += repeated
	a.step, a.digest = t.Step(), digest(weights)
}

// Findings returns what the audit has found; it is complete when Train has returned.
func (a *Audit) Findings() Findings {
	n := func(i int) int { return int(a.found[i]) }
	return Findings{Lost: n(foundLost), Repeated: n(foundRepeated), HandedOn: n(foundHandedOn),
		StepsLost: n(foundStepsLost), Unequal: n(foundUnequal),
		Made: a.steps, Step: a.step, Digest: a.digest >> 11}
}

// digest returns a number that two sets of parameters share only if they are the same bits, but for
// one case in 2^63. It is odd, so never 0.
func digest[T Float](weights []T) uint64 {
	h := uint64(0x9E3779B97F4A7C15)
	for _, w := range weights {
		h = (h ^ math.Float64bits(float64(w))) * 0xD6E8FEB86659FD93
		h ^= h >> 32
	}
	return h | 1
}
