package twin

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

// What becomes of a step where workers synchronise after another number of them. A round of R steps
// takes R times what a step takes a worker, and one exchange, so an Rth of that is in each step.
// How much waiting for others goes with it is not known: what comes by chance is shorter by the
// root of R, and a worker that is slow in each step is waited for as long.

// changesRound reports whether a change with these parts is one of rounds.
func changesRound(parts []string) bool {
	return slices.Contains(parts, "round") || slices.Contains(parts, "sync")
}

// roundThroughput returns by which factor the samples a second grow in rounds of so many steps;
// zero = it is not known where the time of steps goes.
func (t *Twin) roundThroughput(steps uint32) setting.Band {
	s := &t.now.Split
	if !(s.Seconds > 0) {
		return setting.Band{}
	}
	part := float64(max(t.now.Setting.Round, 1)) / float64(max(steps, 1))
	exposed, slack := min(max(s.Exposed, 0), s.Seconds), 0.0
	for _, wait := range s.Slack {
		slack += max(wait, 0) / float64(len(s.Slack))
	}
	chance := min(slack, s.Seconds-exposed) * (1 - portable.Pow(part, 0.5))
	// growth returns the factor where so much of the waiting for others comes by chance.
	growth := func(byChance float64) float64 {
		then := s.Seconds - exposed - float64(byChance*chance) + float64(exposed*part)
		return s.Seconds / max(then, 1e-3*s.Seconds)
	}
	none, half, all := growth(0), growth(0.5), growth(1)
	spread := portable.Exp((portable.Log(t.rate.High) - portable.Log(t.rate.Low)) / math.Sqrt2)
	return setting.Band{Low: min(none, all) / spread, Mid: half, High: max(none, all) * spread}
}
