package sense

import (
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// NoteInterval is the time from one note of a host to the next, by which the head of a job knows
// what the host has seen of its steps, in a running job and in virtual time.
const NoteInterval = Second

// Observation is what is known of a running job after a committed step: what its policies decide
// by. Who gets one only reads it, and keeps no pointer out of it.
type Observation struct {
	Step    uint64          // committed steps
	Epoch   uint64          // passes over the data that are complete
	Samples uint64          // of an epoch; 0 = it is not known
	Size    int             // members; 0 = the job has not begun
	Now     Duration        // time since some moment that stays the same while this agent leads
	Setting setting.Setting // in force; its Batch is always the effective one
	First   uint64          // the batch that the program states
	Levers  setting.Levers  // what the program has opened
	Steps   *StepSeries     // the newest committed steps; nil = none
	Split   Split
	Noise   noise.Estimate
	// Measured is Noise as it was measured last, also where gradients are those of replicas that
	// differ: then it is of more than noise, and Noise is what was known before.
	Measured noise.Estimate
	Loss     float64 // mean of those that workers tell of the newest steps; 0 = they tell none
	Saves    Saves
	Hosts    []string // by rank, the host of the worker; nil = it is not known
	// Machines are those of the hosts that have told of theirs, by name.
	Machines []machine.Host
	// TakenBack is the number of the newest change of the size that was taken back; 0 = none was.
	TakenBack uint64
}

// WhySlow says what of the machine of a host holds up work, in words, such as "its processors are
// 97 % busy, 40 % of that by others"; "" = nothing does, or it is not known.
func (o *Observation) WhySlow(host string) string {
	for _, m := range o.Machines {
		if m.Name == host {
			return m.DescribeBottleneck()
		}
	}
	return ""
}

// Saves is what is known of the checkpoints of a job.
type Saves struct {
	// Cost is how many seconds of training one costs: while workers copy their state it stands
	// still, and while the copies are written it may be slower.
	Cost    float64
	Writing float64 // seconds for which one is written
	Count   int     // checkpoints that these are means of; 0 = nothing is known
}

// Split is where the time of a step goes, in seconds a step, as the workers tell it: by the newest
// steps, since work is divided among the ranks as it is now. A part that nobody tells is 0.
type Split struct {
	Data      float64 // waits for samples
	Compute   float64 // forward and backward
	Exposed   float64 // waits for the network, while nothing is computed
	Optimizer float64 // updates parameters
	Seconds   float64 // all of a step

	// Slack has by rank how many seconds a step the worker waits for the slowest one; nil = it is
	// not known.
	Slack []float64
}
