package policy

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// kungfuWeight is the weight of a new value in the average.
const kungfuWeight = 0.1

// KungFuBatch is the rule by which KungFu chooses the batch (Mai et al., OSDI 2020; its branch
// lg-policy, examples/policies/gns_policy): the batch doubles after an epoch in which the moving
// average of noise scale over batch has grown, as soon as the noise is known. It never becomes
// smaller. It is here to be compared with Batch, and predicts nothing. A job that names it follows
// KungFuRoutes too.
type KungFuBatch struct{}

// kungfuState is what the rule remembers. In the zero value nothing was seen.
type kungfuState struct {
	Seen    bool    `json:"seen"`    // Average has a value
	Average float64 `json:"average"` // of noise scale over batch
	Last    float64 `json:"last"`    // Average at the end of the epoch before; 0 = there is none
	Epoch   uint64  `json:"epoch"`   // the one that is under way
}

// Name implements decide.Policy.
func (KungFuBatch) Name() string { return "kungfu" }

// Levers implements decide.Policy.
func (KungFuBatch) Levers() []string { return []string{"batch", "rate"} }

// Decide implements decide.Policy.
func (KungFuBatch) Decide(o sense.Observation, _ decide.Twin,
	state []byte) (decide.Decision, []byte) {
	var s kungfuState
	if json.Unmarshal(state, &s) != nil {
		s = kungfuState{}
	}
	d := kungfuDecision(o, &s)
	state, err := json.Marshal(s)
	if err != nil { // a number is not finite
		state = nil
	}
	return d, state
}

// kungfuDecision decides and updates what the rule remembers.
func kungfuDecision(o sense.Observation, s *kungfuState) decide.Decision {
	batch := o.Setting.Batch
	if setting.KeepsReplicas(o.Setting.Sync) {
		return decide.NoChange(replicasDiffer)
	}
	if o.Noise.Known && batch > 0 {
		x := math.Abs(o.Noise.Scale.Mid) / float64(batch)
		if s.Seen {
			x = s.Average + float64(kungfuWeight*(x-s.Average))
		}
		s.Average, s.Seen = x, true
	}
	if o.Epoch == s.Epoch || !s.Seen {
		s.Epoch = o.Epoch
		return decide.NoChange("the epoch is not over, or its noise is unknown")
	}
	if !o.Noise.Known { // the rate of another batch goes by it
		return decide.NoChange("the gradient noise scale is unknown: " + o.Noise.Why)
	}
	o, tooLarge := fitOf(o).boundBatches(o)
	last := s.Last
	s.Epoch, s.Last = o.Epoch, s.Average
	to := min(2*batch, o.Levers.Batch.To)
	switch {
	case last == 0:
		return decide.NoChange("the first epoch has none before it")
	case to <= batch && tooLarge != "":
		return decide.NoChange(tooLarge)
	case s.Average <= last || to <= batch || !o.Levers.Batch.IsOpen():
		return decide.NoChange(fmt.Sprintf("noise over batch went from %.3g to %.3g",
			last, s.Average))
	}
	return decide.Decision{To: &decide.Target{Setting: withBatch(o, to)},
		Because: fmt.Sprintf("noise over batch grew from %.3g to %.3g in an epoch", last,
			s.Average)}
}
