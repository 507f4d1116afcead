package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// syncGain is by which factor another way to synchronise must surely be better: what local
	// steps are worth is not measured, and the next change of the network may turn it round.
	syncGain = 1.05
	// leastRounds is how many rounds an epoch must have: samples of a worker that is lost come
	// again in the next one.
	leastRounds = 4
	// noiseSteps is after how many commits the noise is not waited for any more, which is the half
	// life of an estimate: where it is unknown then, the gradient may be lost in it for long, as
	// near to a minimum, or so different from step to step that the band stays too wide.
	noiseSteps = 50
)

// Sync chooses how workers synchronise, where the program leaves that to the job: samples a second
// times what a sample brings, of each way under the links, the waiting and the losses of now
// (Spotnik, HotCloud 2020). Synchronous SGD loses nothing of a sample, so it stays until another
// way is better by the least that local steps may be worth, and comes back when that is so no more.
// Where the noise is unknown it may be none, and local steps are worth least. It remembers nothing.
type Sync struct{}

// syncCandidates are the ways that Sync compares. The outer step of diloco has the numbers that
// were best in rounds of 16 (docs/experiments/strategies.md).
var syncCandidates = []setting.Setting{{Sync: setting.Ssgd, Round: 1},
	{Sync: "local", Round: 4}, {Sync: "local", Round: 16}, {Sync: "local", Round: 64},
	{Sync: "diloco:momentum=0.5", Round: 4}, {Sync: "diloco:momentum=0.5", Round: 16},
	{Sync: "diloco:momentum=0.5", Round: 64},
	{Sync: "hybrid", Round: 16}, {Sync: "pair", Round: 16}}

// SyncCandidates returns the ways to synchronise that Sync compares, in a new list.
func SyncCandidates() []setting.Setting { return slices.Clone(syncCandidates) }

// Name implements decide.Policy.
func (Sync) Name() string { return "sync" }

// Levers implements decide.Policy.
func (Sync) Levers() []string { return []string{"sync", "round"} }

// Decide implements decide.Policy.
func (Sync) Decide(o sense.Observation, twin decide.Twin,
	state []byte) (decide.Decision, []byte) {
	if why := syncWaits(o); why != "" {
		d := decide.NoChange(why)
		if o.Step < noiseSteps {
			d.Again = noiseSteps - o.Step
		}
		return d, state
	}
	var list []decide.Scored
	for _, s := range syncCandidates {
		whole := uint64(s.Round) * o.Setting.Batch * leastRounds
		if s.Sync == o.Setting.Sync && s.Round == o.Setting.Round ||
			o.Samples > 0 && s.Round > 1 && whole > o.Samples {
			continue
		}
		to := decide.Target{Setting: o.Setting}
		to.Setting.Sync, to.Setting.Round = s.Sync, s.Round
		list = append(list, decide.Scored{Target: to, Prediction: twin.Predict(to)})
	}
	slices.SortStableFunc(list, func(a, b decide.Scored) int {
		return cmp.Compare(b.Gain(), a.Gain())
	})
	if len(list) == 0 {
		return decide.NoChange("an epoch has too few samples for rounds"), state
	}
	best := list[0]
	because := fmt.Sprintf("%s; %s", describeExchange(o), describeWay(best))
	if !o.Noise.Known {
		because = "the noise is unknown; " + because
	}
	switch gain := best.Gain(); {
	case gain == 0:
		return decide.NoChange(best.Guess), state
	case !(gain > syncGain):
		return decide.NoChange(fmt.Sprintf("%s: surely %.3gx, and it takes %.3gx", because, gain,
			syncGain)), state
	}
	return decide.Decision{To: &best.Target, Because: because, Least: syncGain,
		Alternatives: list[1:min(len(list), 4)]}, state
}

// syncWaits returns why nothing can be decided about how workers synchronise, in words; "" = it
// can.
func syncWaits(o sense.Observation) string {
	switch {
	case !o.Levers.Auto:
		return o.Levers.WhyNotAuto()
	case o.Size < 2:
		return "a worker that is alone waits for nobody"
	case !(o.Split.Seconds > 0):
		return "where the time of steps goes is not known yet"
	case o.Noise.NotFinite:
		return "what local steps are worth is unknown: " + o.Noise.Why
	case !o.Noise.Known && o.Step < noiseSteps:
		return fmt.Sprintf("the noise is unknown (%s): until step %d it is waited for", o.Noise.Why,
			noiseSteps)
	}
	return ""
}

// describeExchange says what of a step is exchange, and what waiting for others.
func describeExchange(o sense.Observation) string {
	waits := 0.0
	for _, x := range o.Split.Slack {
		waits += max(x, 0) / float64(len(o.Split.Slack))
	}
	whole := fmt.Sprintf("%s of a step", plural.Seconds(o.Split.Seconds))
	text := fmt.Sprintf("links take %s of %s", plural.Seconds(max(o.Split.Exposed, 0)), whole)
	if waits > o.Split.Exposed {
		text = fmt.Sprintf("waiting for others takes %s of %s", plural.Seconds(waits), whole)
	}
	churn := o.Steps.Churn(math.Inf(1))
	if perHour := 3600 * churn.Left; perHour >= 1 {
		text += fmt.Sprintf(", %s an hour lost", plural.Of(int(math.Round(perHour)), "worker"))
	}
	return text
}

// describeWay says what another way to synchronise does.
func describeWay(to decide.Scored) string {
	name := setting.SyncName(to.Setting.Sync)
	if to.Setting.Round > 1 {
		name += fmt.Sprintf(" with rounds of %d", to.Setting.Round)
	}
	return fmt.Sprintf("%s: %.3gx the samples/s, and a sample brings %.2gx (%.2g–%.2g)", name,
		to.Throughput.Mid, to.Efficiency.Mid, to.Efficiency.Low, to.Efficiency.High)
}
