package agent

import (
	"context"
	"os"
	"time"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent/gauge"
	"github.com/shoal-ml/shoal/agent/loop"
	"github.com/shoal-ml/shoal/agent/signals"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// What the loop that decides about a job sees of it, and does to it, and what is kept of its steps.
// The methods of Agent and loopJob may be called on any goroutine but the engine's thread; those of
// driver run on that thread.

// DecideBy has policies decide about the job, where this agent leads it: those of shoal, and those
// of users, which startUsers starts, on a goroutine of the loop, when this agent leads for the
// first time; nil = none. It is called once at most, and does not wait.
func (a *Agent) DecideBy(mode act.Mode, startUsers func(g *group.Group) []decide.Policy) {
	a.loop.Drive(mode, startUsers)
	_ = a.engine.runLater(func() { a.engine.signals.Decides = mode != act.Off })
}

// ReportFailedWorker tells the policies that a worker has ended by itself, and how, where this
// agent leads: a change that is on trial may be the reason, and the head is then asked to take it
// back before this returns. It waits for the engine's thread and for policies that decide.
func (a *Agent) ReportFailedWorker(how string) { a.loop.WorkerFailed(how) }

// WhyNot returns, for each policy, why it left things as they are lately. It waits for policies
// that decide.
func (a *Agent) WhyNot() []act.WhyNot { return a.loop.WhyNots() }

// loopJob is the job of an Agent, as its loop.Loop looks at it and changes it, on the loop's
// goroutine or on that of a request.
type loopJob struct{ *Agent }

// Look implements loop.Job: it returns what is known of the job; false = there is nothing to decide
// or to measure. It waits for the engine's thread, which goes on while the noise of gradients is
// estimated.
func (a loopJob) Look() (look loop.Look, ok bool) {
	var of noise.Estimator
	_ = a.engine.runAndWait(func() {
		look, of, ok = a.engine.signals.NextLook(a.driver.head.State())
		_, look.Waits = a.driver.head.RequestedChange()
	})
	if ok {
		look.Observation.Noise = of.Estimate()
	}
	return look, ok
}

// Change implements loop.Job: it asks the head for the setting next by the change c, and returns
// why that cannot be. It waits for the engine's thread.
func (a loopJob) Change(next setting.Setting, c setting.Change) error {
	return a.askHead(func() error { return a.driver.head.Change(next, c) })
}

// ReportLine implements loop.Job: the launcher gets the line as an event. It does not wait.
func (a loopJob) ReportLine(line string) {
	_ = a.engine.runLater(func() { // a stopped engine tells nobody
		known := a.driver.head.State()
		e := Event{What: "policy", Generation: a.driver.generationNumber(known.View.Generation),
			Size: known.View.Size(), Step: known.Steps, OptimizerSteps: known.OptimizerSteps(),
			Because: line}
		a.driver.giveOrder(func(o *Orders) { o.Event(e) })
	})
}

// What the Signals of the engine ask of it, as a signals.Agent.

// Now implements signals.Agent: it is the time on the clock of this agent. Any goroutine may call
// it.
func (e *engine) Now() sense.Duration { return e.driver.now() }

// Leads implements signals.Agent: it says whether this host leads the job. It runs on the engine's
// thread.
func (e *engine) Leads() bool { return e.driver.head.Leads() }

// Levers implements signals.Agent: they are what may change of the setting. It runs on the engine's
// thread.
func (e *engine) Levers() setting.Levers { return e.driver.head.Levers() }

// GenerationNumber implements signals.Agent: it is the number of a generation for people. It runs
// on the engine's thread.
func (e *engine) GenerationNumber(g topo.Generation) uint64 { return e.driver.generationNumber(g) }

// NewestEnding implements signals.Agent: it returns the rank of a worker, and its call that ended a
// step last; nil = the worker is not on this host. It runs on the engine's thread.
func (e *engine) NewestEnding(w topo.WorkerID) (topo.Rank, *signals.Ending) {
	m := e.byID[w]
	if m == nil {
		return 0, nil
	}
	return m.rank, &m.ending
}

// sendSignalsToHead tells the head what this host has seen of steps, where that is due. It is
// called with every look at the waits of the job, on the engine's thread.
func (d *driver) sendSignalsToHead() {
	s := d.engine.signals
	if !s.IsDue() {
		return
	}
	d.sendLinkRates()
	if note := s.PopStepsNote(); note != nil {
		d.runStepInput(func() { d.head.SendNote(note) })
	}
	s.UpdateRow()
}

// sendLinkRates tells the head what links from this host carry, if that is news, on the engine's
// thread.
func (d *driver) sendLinkRates() {
	if note := d.engine.signals.PopLinksNote(); note != nil {
		d.runStepInput(func() { d.head.SendNote(note) })
	}
}

// keepRows gives the launcher rows that are over, until there will be no more. It is a goroutine of
// Run, since the rate of cables takes milliseconds to find.
func (a *Agent) keepRows(context.Context) error {
	for row := a.engine.signals.AwaitRow(); row != nil; row = a.engine.signals.AwaitRow() {
		if each, known := a.driver.routes.cableSecondsPerByte(); known && each > 0 {
			row.Cable = 1 / each
		}
		a.driver.orders.Row(*row, time.Now())
	}
	return nil
}

// newGauge returns what reads how busy the machine of this host is, for Run, which gives it a
// goroutine. That calls workerPIDs and Tell.
func (a *Agent) newGauge() *gauge.Gauge {
	return &gauge.Gauge{Root: os.DirFS("/"), Workers: a.workerPIDs,
		Tell: func(from, to machine.Reading, seconds float64) {
			_ = a.engine.runLater(func() { a.engine.signals.AddReadings(from, to, seconds) })
		}}
}

// workerPIDs returns the processes of the workers of this host, in no order. It locks a.mu.
func (a *Agent) workerPIDs() (list []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.sessions {
		if p.conn != nil {
			list = append(list, p.conn.PID())
		}
	}
	return list
}

// SlowHosts says in words for which hosts others wait, and what of their machines is at its limit,
// where this agent leads. It waits for the engine's thread.
func (a *Agent) SlowHosts() (lines []string) {
	_ = a.engine.runAndWait(func() {
		if a.driver.head.Leads() {
			lines = a.engine.signals.SlowHosts(a.driver.head.State())
		}
	})
	return lines
}

// addDeviceMemory takes in what a worker of this host needs of the memory of its GPU, and does not
// wait. It runs on the goroutine of the worker's session.
func (a *Agent) addDeviceMemory(w topo.WorkerID, r *api.MemoryRequest) {
	_ = a.engine.runLater(func() {
		a.engine.signals.AddDevice(w, a.driver.head.State(), float64(r.Peak), float64(r.Room))
	})
}
