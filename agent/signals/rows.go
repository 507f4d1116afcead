package signals

import (
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/queue"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/sense/noise"
)

// What is kept of the steps of a job, on the host that leads. The functions run on the engine's
// thread, but for AwaitRow, which a goroutine of the agent calls.

// rows are what is kept of the steps, on its way to the launcher. The engine's thread puts them,
// and keepRows takes them.
type rows struct {
	recorder  history.Recorder
	gradients uint64           // bytes of gradients of the step under way, by worker
	over      queue.Queue[row] // those that are over
}

// row is a row that is over, but for what it tells of noise.
type row struct {
	*history.Row                 // nil = there will be no more
	noise        noise.Estimator // what estimates that
}

// recordStep adds a committed step, where this agent leads.
func (s *Signals) recordStep(a *head.Apply, x sense.StepSample) {
	r := &s.rows
	gradients := r.gradients
	r.gradients = 0
	if !s.agent.Leads() {
		return
	}
	here := uint64(a.View.Generation) == x.Generation // else these members have not made it
	x.Generation += s.agent.GenerationNumber(a.View.Generation) - uint64(a.View.Generation)
	over, began := r.recorder.Add(x, a.OptimizerSteps())
	if began && here {
		hosts := hostsOf(a.State)
		r.recorder.Describe(hosts, dataOf(a.State))
		s.machines.watch.KeepOnly(func(host string) bool {
			return slices.ContainsFunc(hosts, func(h history.Host) bool { return h.Name == host })
		})
	}
	r.recorder.SetGradientBytes(gradients)
	s.queueRow(over)
}

// queueRow passes a row on that is over; nil = none.
func (s *Signals) queueRow(over *history.Row) {
	if over != nil {
		over.Machines = history.NewMachines(s.machines.watch.Hosts())
		s.rows.over.Put(row{over, s.job.Noise()})
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

// EndRows passes the last row on, with what this host, by its name, has seen since its last note;
// after that, AwaitRow has no more. It is called when the engine's thread has ended.
func (s *Signals) EndRows(name string) {
	if s.rows.recorder.HasSteps() {
		if n := s.host.TakeNote(); n.Steps > 0 {
			s.job.Add(name, n)
		}
		s.UpdateRow()
		s.queueRow(s.rows.recorder.EndRow())
	}
	s.rows.over.Put(row{})
}

// UpdateRow adds what is known of the steps to the row under way. It is called about once a second.
func (s *Signals) UpdateRow() {
	if s.rows.recorder.HasSteps() {
		loss, told := s.job.Loss()
		s.rows.recorder.AddSplit(s.job.Split(s.under.Generation, s.deal), loss, told)
	}
}

// AwaitRow blocks until a row is over, and returns it; nil = there will be no more, after EndRows.
// One goroutine calls it, which may be another than that of the other methods.
func (s *Signals) AwaitRow() *history.Row {
	over, _ := s.rows.over.Take()
	if over.Row != nil {
		over.Noise = history.NewNoise(over.noise.Estimate())
	}
	return over.Row
}
