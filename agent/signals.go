package agent

import (
	"slices"
	"time"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/sense/steps"
)

// What this host sees of training steps, and what the head learns of it.

// All functions of this file run on the engine's thread.

// signals gathers what this host sees of the steps of its job, and on the head what all hosts see.
type signals struct {
	host     steps.Host
	gradient steps.Gradient // of the batch that counts
	every    int            // one in so many chunks of the step under way is measured; 0 = none
	turn     int            // which of them
	under    sense.StepSample
	began    sense.Duration // when the step before has ended; 0 = there was none
	workers  []steps.Worker // room for those of a step
	blind    bool           // nothing is measured: what the rest costs, for benchmarks

	job    steps.Job        // notes of all hosts; empty where this host does not lead
	series sense.StepSeries // the newest steps
	looks  int              // calls of tellHead
	notes  int              // notes that the head was told

	rows    rows
	changes []act.Entry // where changes begin or end, which the loop has not seen
	decides bool        // policies decide about the job
}

// ending is a worker's call that ends a step.
type ending struct {
	ticket uint64
	at     sense.Duration // when it was taken
	told   arena.Told
}

const (
	// minGradient is how many elements a part of a gradient has at least. Shorter parts of a step
	// are losses and counters.
	minGradient = 64
	// looksPerNote is how many looks at the waits of a job go by from one note to the next.
	looksPerNote = int(sense.Second / stall.Interval)
	// earlyNotes is how many notes go with every look, so that something is known of noise soon: an
	// estimate takes some of them, however many steps each is of.
	earlyNotes = 16
)

// A note to the head has room for those of package steps.
const _ = uint(head.MaxNote - steps.MaxNote)

// secondsPerRead is what it takes to measure an element: measured, with room for slower machines.
func secondsPerRead() float64 {
	if kernel.Best().Name == "generic" {
		return 2e-9
	}
	return 5e-10
}

// isGradient reports whether a call is a part of the gradient of a step: a mean over the samples of
// all workers.
func isGradient(c *collective.Call) bool {
	return (c.More || c.Step) && c.Kind == collective.AllReduce && c.DType.Float() &&
		c.Reduction == collective.Mean && c.Tag != arena.NoGradient && c.InLen() >= minGradient
}

// measure has an Executor or a Relay measure a part of a gradient that it is prepared for.
func (s *signals) measure(c *collective.Call, by interface{ Measure(every, turn int) }) {
	if s.every > 0 && !s.blind && isGradient(c) {
		by.Measure(s.every, s.turn)
	}
}

// addNorms adds what an Executor or a Relay has measured of a part of a batch that counts.
func (s *signals) addNorms(part head.Part, by interface {
	Norms(in []float64) (result float64, elements int)
}) {
	c := &part.Calls[0].Call
	switch {
	case isGradient(c):
		s.rows.gradients += uint64(c.InLen() * c.DType.Size())
	case (c.More || c.Step) && c.Kind.Reduces() && c.Kind != collective.AllReduce:
		// each rank gets a part of the gradient, and what all get is something else
		s.gradient.Spoil()
		return
	default:
		return
	}
	for i, p := range part.Calls {
		s.gradient.Member(i, p.Call.Weight, p.Call.Far == nil)
	}
	if in := s.gradient.Norms(len(part.Calls)); in != nil {
		mean, measured := by.Norms(in)
		s.gradient.Part(c.InLen(), measured, mean)
	}
}

// noteBatch adds the step that ends with a batch which counts, if one does: its calls are complete.
func (d *driver) noteBatch(a *head.Apply) {
	s := &d.engine.signals
	next := sense.StepSample{Size: a.View.Size(), Generation: uint64(a.View.Generation),
		Change: a.Setting.Number}
	if a.Data != nil {
		next.Samples, next.Batch = a.Data.Count(), a.Data.Batch
		next.Deal = sense.DealOf(a.Data.Shares)
	}
	if s.under.Size == 0 { // the job begins with a step
		s.under = next
	}
	i := slices.IndexFunc(a.Parts, func(p head.Part) bool { return p.Calls[0].Call.Step })
	if s.blind {
		s.began = 0
	} else if i >= 0 && d.batches.errs[i] == nil {
		now := sense.Duration(time.Since(d.began))
		x := steps.Step{Generation: uint64(a.View.Generation), Size: a.View.Size(),
			Deal: s.under.Deal, Gradient: s.gradient.Step(s.under.Samples),
			Reads: s.gradient.Reads()}
		if s.began > 0 {
			x.Seconds = (now - s.began).Seconds()
		}
		if !a.Changed { // else the ranks are not those of the step
			x.Workers = d.workersOf(a.Parts[i].Calls, now)
		}
		s.host.Add(x)
		s.under.Step, s.under.Seconds = a.Steps, x.Seconds
		s.series.Add(s.under)
		d.recordStep(a, s.under)
		s.began = now
		s.every, s.turn = s.host.Sampling()
	}
	s.under = next
}

// workersOf returns what is known of the workers of this host that made calls which end a step, now
// that these are complete. The slice is used again for the next step.
func (d *driver) workersOf(calls []*collective.Posted, now sense.Duration) []steps.Worker {
	list := d.engine.signals.workers[:0]
	for _, p := range calls {
		m := d.engine.byID[p.Worker]
		if p.Call.Far != nil || m == nil {
			continue
		}
		w := steps.Worker{Rank: int(m.rank), Wait: -1}
		if t := m.ending.told; m.ending.ticket == p.Ticket {
			w.Wait = (now - m.ending.at).Seconds()
			w.Data, w.Compute = float64(t.Data)/1e6, float64(t.Compute)/1e6
			w.Optimizer, w.Loss = float64(t.Optimizer)/1e6, float64(t.Loss)
		}
		list = append(list, w)
	}
	d.engine.signals.workers = list
	return list
}

// tellHead tells the head once a second what this host has seen, and more often in the beginning.
// It is called with every look at the waits of the job.
func (d *driver) tellHead() {
	s := &d.engine.signals
	if s.looks++; s.looks%looksPerNote > 0 && s.notes >= earlyNotes {
		return
	}
	if n := s.host.Take(); n.Steps > 0 {
		s.notes++
		d.runStepInput(func() { d.head.TellHead(n.Encode()) })
	}
	s.lookAtRow()
}

// learnNote adds what a host has told of its steps, on the head. What cannot be is ignored, such as
// steps of a generation that is still to come: all that are true would be older.
func (d *driver) learnNote(n head.Note) {
	note, err := steps.Parse(n.Data)
	if err == nil && note.Generation <= uint64(d.head.State().View.Generation) {
		d.engine.signals.job.Add(n.Host, note)
	}
}
