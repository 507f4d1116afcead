package decide

import (
	"fmt"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// Work is what a worker of a job does in a step.
type Work struct {
	Samples float64 // in a whole batch
	Seconds float64 // that it works on its samples: it waits for them, and computes
}

// WorkOf returns what the workers do, by rank, and what a step takes beside that, in seconds: the
// communication that is not hidden, and the update of the parameters. It is by when they are ready,
// so that it does not matter what they tell, or what of a worker is slow. If nothing is known, why
// says that in words.
func WorkOf(o sense.Observation) (list []Work, beside float64, why string) {
	switch {
	case o.Size < 2:
		return nil, 0, "one worker has all of the work"
	case o.Size > setting.MaxShares:
		return nil, 0, fmt.Sprintf("work is divided among up to %d workers", setting.MaxShares)
	case len(o.Split.Slack) != o.Size || o.Setting.Batch == 0 || !(o.Split.Seconds > 0):
		return nil, 0, "who waits for whom is not measured yet"
	}
	list = make([]Work, o.Size)
	beside = o.Split.Exposed + o.Split.Optimizer
	for rank, n := range SamplesOf(o.Setting, o.Size) {
		list[rank] = Work{n, o.Split.Seconds - beside - o.Split.Slack[rank]}
		if !(list[rank].Seconds > 0) {
			return nil, 0, fmt.Sprintf("rank %d waits for all of a step, as far as is known", rank)
		}
	}
	return list, beside, ""
}

// SamplesOf returns how many samples of a whole batch each of so many workers has, by rank: in a
// round, whose samples are divided at once, the mean over its steps.
func SamplesOf(s setting.Setting, size int) []float64 {
	c := cursor.Cursor{Samples: cursor.MaxSamples, Batch: s.Batch, Round: s.Round, Shares: s.Shares}
	list, steps := make([]float64, size), float64(max(s.Round, 1))
	for rank, spans := range c.Parts(size) {
		for _, span := range spans {
			list[rank] += float64(span.Len()) / steps
		}
	}
	return list
}
