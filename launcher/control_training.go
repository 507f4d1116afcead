package launcher

import (
	"cmp"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/setting"
)

// describeTraining returns how a job trains in the status s, as the control socket tells tools. It
// runs on the goroutine of a request to that socket, and waits for policies that decide and for the
// engine's thread.
func (l *launcher) describeTraining(s agent.Status) api.Training {
	spec := l.registry.jobSpec()
	t := api.Training{Steps: s.Steps, OptimizerSteps: s.OptimizerSteps,
		Goal: cmp.Or(s.Goal, spec.Schedule.Goal()), Elastic: s.Elastic, Auto: string(spec.Auto)}
	if s.Levers != (setting.Levers{}) || s.Setting.Size > 0 {
		t.Setting, t.Levers = &s.Setting, &s.Levers
	}
	if s.NextChange.Number > 0 {
		t.NextChange = &s.NextChange
	}
	if p := s.Pace; p.Steps > 0 {
		t.Pace = &api.Pace{Since: s.PaceSince, Steps: p.Steps, Batch: p.Batch, P25: p.First,
			Median: p.Median, P75: p.Third}
	}
	if sent := l.agent.BytesSent(); sent > 0 {
		t.Traffic = &api.Traffic{Sent: sent, Waits: s.NetworkWaits}
	}
	if l.registry.leads() {
		t.Slow = l.agent.SlowHosts()
	}
	t.WhyNot = l.whyNots()
	return t
}
