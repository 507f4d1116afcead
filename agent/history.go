package agent

import (
	"context"
	"time"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/queue"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/history"
)

// What is kept of the steps of a job, on the host that leads.

// rows are what is kept of the steps, on its way to the launcher. The engine's thread puts them,
// and keepRows takes them.
type rows struct {
	recorder  history.Recorder
	gradients uint64                    // bytes of gradients of the step under way, by worker
	over      queue.Queue[*history.Row] // nil = there will be no more
}

// recordStep adds a committed step, where this agent leads. It runs on the engine's thread.
func (d *driver) recordStep(a *head.Apply, x sense.StepSample) {
	r := &d.engine.signals.rows
	gradients := r.gradients
	r.gradients = 0
	if !d.head.Leads() {
		return
	}
	here := uint64(a.View.Generation) == x.Generation // else these members have not made it
	x.Generation = d.generationNumber(a.View.Generation) + x.Generation - uint64(a.View.Generation)
	over, began := r.recorder.Add(x)
	if began && here {
		r.recorder.Describe(hostsOf(a.State), dataOf(a.State))
	}
	r.recorder.Gradients(gradients)
	d.keepRow(over)
}

// keepRow passes a row on that is over; nil = none. It runs on the engine's thread.
func (d *driver) keepRow(over *history.Row) {
	if over != nil {
		over.Noise = history.NewNoise(d.engine.signals.job.Noise())
		d.engine.signals.rows.over.Put(over)
	}
}

// hostsOf returns the hosts of a state with their ranks, in the order of their first ranks.
func hostsOf(s head.State) (list []history.Host) {
	at := map[string]int{}
	for rank, m := range s.View.Members {
		i, is := at[m.Host]
		if !is {
			i = len(list)
			at[m.Host] = i
			list = append(list, history.Host{Name: m.Host})
		}
		list[i].Ranks = append(list[i].Ranks, rank)
	}
	return list
}

// dataOf returns what the program has stated of its data; nil = nothing.
func dataOf(s head.State) *history.Data {
	if s.Data == nil {
		return nil
	}
	d := &history.Data{Samples: s.Data.Samples, First: s.First}
	if r := s.Levers.Batch; r.IsOpen() {
		d.From, d.To = r.From, r.To
	}
	return d
}

// endRows passes the last row on, with what this host has seen since its last note, after which
// keepRows ends. Run calls it when the engine's thread has ended.
func (d *driver) endRows() {
	s := &d.engine.signals
	if s.rows.recorder.HasSteps() {
		if n := s.host.Take(); n.Steps > 0 {
			s.job.Add(string(d.engine.name), n)
		}
		s.lookAtRow()
		d.keepRow(s.rows.recorder.Take())
	}
	s.rows.over.Put(nil)
}

// lookAtRow adds what is known of the steps to the row under way. It runs on the engine's thread.
func (s *signals) lookAtRow() {
	if s.rows.recorder.HasSteps() {
		loss, told := s.job.Loss()
		s.rows.recorder.Look(s.job.Split(s.under.Deal), loss, told)
	}
}

// keepRows gives the launcher rows that are over, until there will be no more. It is a goroutine of
// Run, since the rate of cables takes milliseconds to find.
func (a *Agent) keepRows(context.Context) error {
	for {
		row, _ := a.engine.signals.rows.over.Take()
		if row == nil {
			return nil
		}
		if each, known := a.driver.routes.cableSecondsPerByte(); known && each > 0 {
			row.Cable = 1 / each
		}
		a.driver.orders.Row(*row, time.Now())
	}
}
