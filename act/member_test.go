package act_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// careless is a policy that wants the same whatever it sees.
type careless struct{ wants setting.Setting }

// Name implements decide.Policy.
func (careless) Name() string { return "careless" }

// Levers implements decide.Policy.
func (careless) Levers() []string { return []string{"shares", "rate"} }

// Decide implements decide.Policy.
func (p careless) Decide(o sense.Observation, _ decide.Twin,
	state []byte) (decide.Decision, []byte) {
	to := decide.Target{Setting: o.Setting}
	to.Setting.Shares, to.Setting.Rate = p.wants.Shares, p.wants.Rate
	return decide.Decision{To: &to, Because: "it is careless"}, state
}

// Shares that are not one for each worker, and a rate that is none, are faults, which are said so.
func TestWrongSharesAndRatesAreFaults(t *testing.T) {
	for want, wants := range map[string]setting.Setting{
		"it wants shares=1:2: a job of 4 workers has a share for each": {Shares: []uint16{1, 2}},
		"it wants what cannot be: rate=-1":                             {Rate: -1},
	} {
		j := newJob(newLoop(t, act.Auto, careless{wants}), 64, batches)
		j.train(t, 100)
		faults := j.loop.PopFaults()
		if len(faults) != 3 || !strings.HasPrefix(faults[0].Text, want) {
			t.Errorf("want %q, got %+v", want, faults)
		}
	}
}
