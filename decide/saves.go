package decide

import (
	"cmp"
	"math"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// UsualSave is how many seconds are between two checkpoints of a program that leaves that to
	// the job, as long as the setting says nothing of it: python/shoal/_checkpoint has the same.
	UsualSave = 600.0
	// priorToLoss is the mean of the prior of MeanTimeToLoss, in seconds: an hour.
	priorToLoss = 3600.0
	// oneInTen and nineInTen are the quantiles of a gamma distribution of shape and scale 1.
	oneInTen, nineInTen = 0.10536, 2.30259
)

// MeanTimeToLoss returns how many seconds go by, on average, until the state of a job is lost so
// that only a checkpoint has it: as far as is known.
//
// It is not the time between losses of workers. Where members come and go, the state is on each of
// them, what a lost worker has computed is dealt again, and nobody reads a checkpoint. One is
// needed when all workers are lost together, such as with the building, by a fault of the program,
// or because the time on a cluster is over; and that ends the run, so a running job has never seen
// it, however many workers it has lost. Where parts of a model on a mesh can be lost alone, the
// setting does not change. So what is known is only for how long it has not happened. With a gamma
// prior of shape 1 and mean 1 an hour for the rate, the rate has shape 1 as before, and the hour
// becomes an hour and the time since. The prior is most of that for long, and a wide band says so.
func MeanTimeToLoss(o sense.Observation) setting.Band {
	mean := priorToLoss + max(o.Now.Seconds(), 0)
	return setting.Band{Low: mean / nineInTen, Mid: mean, High: mean / oneInTen}
}

// SaveOverhead returns which share of the time is lost with a checkpoint each so many seconds: what
// the checkpoints cost, and half of the time between two that is trained again after a loss, which
// comes once in toLoss seconds.
func SaveOverhead(s sense.Saves, seconds, toLoss float64) float64 {
	return s.Cost/seconds + seconds/(2*toLoss)
}

// BestSave returns after how many seconds a checkpoint should follow the one before, where a loss
// comes once in toLoss seconds: SaveOverhead is least there (Young, "A First Order Approximation to
// the Optimum Checkpoint Interval", CACM 17(9), 1974).
func BestSave(s sense.Saves, toLoss float64) float64 { return math.Sqrt(2 * s.Cost * toLoss) }

// SaveSeconds returns how many seconds are between two checkpoints by a setting, where steps take
// so many seconds.
func SaveSeconds(s setting.Setting, step float64) float64 {
	return cmp.Or(float64(s.Save)*step, UsualSave)
}

// SaveGain returns by which factor the progress a second grows where checkpoints are made as one
// setting says and not as another: the time that is not lost. Zero = what checkpoints cost is not
// known.
func SaveGain(o sense.Observation, from, to setting.Setting, step float64) setting.Band {
	if o.Saves.Count == 0 {
		return setting.Band{}
	}
	toLoss := MeanTimeToLoss(o)
	// gain returns the factor where a loss comes once in so many seconds.
	gain := func(toLoss float64) float64 {
		before := SaveOverhead(o.Saves, SaveSeconds(from, step), toLoss)
		after := SaveOverhead(o.Saves, SaveSeconds(to, step), toLoss)
		return (1 - min(after, 0.99)) / (1 - min(before, 0.99))
	}
	a, mid, b := gain(toLoss.Low), gain(toLoss.Mid), gain(toLoss.High)
	return setting.Band{Low: min(a, mid, b), Mid: mid, High: max(a, mid, b)}
}
