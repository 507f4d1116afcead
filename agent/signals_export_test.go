package agent

import (
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/topo"
)

// SendSignals has the agent of a host tell the head what it has seen of steps, now. A stopped agent
// tells nothing.
func SendSignals(a *Agent) {
	_ = a.engine.runAndWait(func() {
		for range sense.Second / stall.Interval {
			a.driver.sendSignalsToHead()
		}
	})
}

// LearnNote has the agent that leads learn a note of a host. A stopped agent learns nothing.
func LearnNote(a *Agent, host, note string) {
	_ = a.engine.runAndWait(func() {
		a.engine.signals.AddNote(head.Note{Host: host, Data: []byte(note)},
			a.driver.head.State().View.Generation)
	})
}

// Cables returns what the agent that leads knows of the cables of the hosts; nil = nothing.
func Cables(a *Agent) (list []float64) {
	_ = a.engine.runAndWait(func() { list = a.driver.routes.cables })
	return list
}

// SetBlind has the agent of a host measure nothing of steps, or everything again.
func SetBlind(a *Agent, blind bool) {
	_ = a.engine.runAndWait(func() { a.engine.signals.Blind = blind })
}

// SetDecides has the agent of a host measure what policies go by, though none decides. A stopped
// agent measures nothing.
func SetDecides(a *Agent) {
	_ = a.engine.runAndWait(func() { a.engine.signals.Decides = true })
}

// EndingOf returns the ticket of the newest call of a worker that ends a step; 0 = there was none.
func EndingOf(a *Agent, number int) (ticket uint64) {
	_ = a.engine.runAndWait(func() {
		if m := a.driver.engine.byID[topo.WorkerID(number)]; m != nil {
			ticket = m.ending.Ticket
		}
	})
	return ticket
}

// Observed returns what the agent that leads knows of where the time of steps goes and of their
// noise, and the newest step. A stopped agent knows nothing.
func Observed(a *Agent) (split sense.Split, estimate noise.Estimate, step sense.StepSample) {
	_ = a.engine.runAndWait(func() {
		look, of, _ := a.engine.signals.NextLook(a.driver.head.State())
		split, estimate = look.Observation.Split, of.Estimate()
		step, _ = look.Observation.Steps.Newest()
	})
	return split, estimate, step
}
