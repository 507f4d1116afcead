package loop

import (
	"cmp"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
)

// What package act is told of a job, made of what the head knows. The function is pure.

// NewEntry returns how the job trains in a state, for package act. change is what begins or ends
// with it; nil = none does.
func NewEntry(s head.State, change *setting.Change, leads bool) act.Entry {
	now := s.Setting.WithStated(s.First, s.Levers)
	now.Size = cmp.Or(now.Size, uint32(s.View.Size()))
	return act.Entry{Step: s.Steps, Setting: now, Levers: s.Levers, Trial: s.Trial, Change: change,
		Leads: leads}
}
