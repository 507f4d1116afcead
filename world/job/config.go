package job

import (
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

// Config is a job and what will happen to it. New reads one and keeps its slices, which are not
// altered.
type Config struct {
	Seed  uint64    // what all draws follow from
	Hosts []Host    // also those that join later
	Cores []float64 // by machine: its processors, above 0

	Network   cost.Model       // Beta does not count: each host has its own cable
	Route     collective.Route // without a strategy, the best of a few is taken
	Gradients int              // bytes that are averaged in a step
	// Hidden is how much communication a step hides at most, as a part of the seconds of the
	// slowest worker; 0 = workers compute nothing while they communicate.
	Hidden float64

	Data   cursor.Cursor  // where the job begins; its batch is the one that the program states
	Levers setting.Levers // what the program opens
	Noise  Noise
	Local  Local
	Costs  Costs
	Events []Event
	// Audit is told of the samples that a worker has trained on and that count: the epoch, and
	// their positions. nil = nobody is.
	Audit func(epoch uint64, spans []cursor.Span)
}

// Host is a host with its workers.
type Host struct {
	Out     bool // it is not there at the start, and joins by an event
	Spare   bool // its workers do not take part at the start, and join when the size grows
	Machine int  // index in Config.Cores: which processors it shares with whom
	Workers int  // workers on the host; at least 1

	// The compute of a worker takes Fixed + PerSample·samples seconds, times one of Residuals that
	// is drawn for each step.
	Fixed, PerSample float64
	Residuals        []float64 // factors, all alike probable; empty = 1
	Processors       float64   // how many a worker keeps busy while it computes; 0 = on a GPU

	Wait  float64 // seconds a step for which a worker waits for its samples
	Load  float64 // seconds for which it waits for each of its samples besides
	Cable float64 // seconds for a byte, in each direction

	// A worker needs Memory + MemoryPerSample·samples bytes, and the workers of the host have Room
	// bytes together; 0 = nobody knows, and as much as they need. All hosts state a room, or none.
	Memory, MemoryPerSample, Room float64
}

// Noise is how noisy the gradients are. With φ for the noise scale in samples, a step of B samples
// brings as much as (φ+B0)/(φ+B)·B samples do in steps of B0, the batch that the program states
// (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", eq. 2.7). The zero value
// says that a sample brings the same in any batch.
type Noise struct {
	// From is the noise scale at the start, To the one at the target. In between it grows
	// exponentially in the progress.
	From, To float64
	// Target is the progress at which To is reached, in samples at B0; at least 1 if From is
	// positive.
	Target float64
	// Dims is the number of independent coordinates of a gradient, on which the error of estimates
	// depends; 0 = 300.
	Dims float64
}

// scaleAt returns the noise scale in samples after some progress, in samples at B0.
func (n Noise) scaleAt(progress float64) float64 {
	if n.From <= 0 || n.To == n.From {
		return n.From
	}
	return n.From * portable.Pow(n.To/n.From, min(1, progress/n.Target))
}

// Local is what local steps bring: own·(φ+B)/(φ+B·(1+κ·log₂R)) of what a sample brings to
// synchronous SGD, in rounds of R steps of B samples each, with the noise scale φ. The zero value
// says that both are drawn from the seed, which nobody who decides knows.
type Local struct {
	Stale float64 // κ; 0 unless Own is stated
	Own   float64 // what a step with the gradient of one worker brings; 0 = both are drawn
}

// Costs are the seconds for which all workers pause when something changes.
type Costs struct {
	Join    float64 // a host joins, or workers do since the size grows
	Release float64 // a host leaves after a step, or workers do since the size shrinks
	Loss    float64 // a host is lost
	Change  float64 // the setting changes
	// Save is for a checkpoint, while workers copy their state. The copies are written for Write
	// seconds, meanwhile the job goes on.
	Save, Write float64
	// Start is not for all: as long as workers take to start that join because the size grows,
	// during which the job goes on.
	Start float64
}

// Event is something that happens to a job, after Step committed steps or At seconds. It takes
// effect between two steps, but for a loss, which takes the host's samples of the next step.
type Event struct {
	Step  uint64  // committed steps; meaningless if Timed is set
	At    float64 // seconds from the start; meaningless unless Timed is set
	Timed bool    // whether At says when
	What  What
	Host  int // index in Config.Hosts
	// Value is of Cable, Cables and Slowdown seconds for a byte, of Slow the factor, of Disk
	// seconds for a sample, of Notice seconds.
	Value float64
	Text  string // what people call it
}

// What is a kind of event.
type What int

// The kinds of events.
const (
	Cable    What = iota // the cable of the host gets another rate
	Slow                 // the host computes so many times slower than at the start
	Notice               // the host will be lost in so many seconds; it leaves after the step
	Lose                 // the host is lost
	Join                 // the host joins
	Disk                 // a worker of the host waits so long for each of its samples
	Cables               // all cables get another rate; Host does not count
	Slowdown             // so they do for a while: with the value 0 each has its own again
	Overflow             // the host is out of memory, and lost; a World says so, nobody else
)

// validate returns what is wrong with a configuration; nil = nothing.
func (c *Config) validate() error {
	if len(c.Hosts) == 0 {
		return fmt.Errorf("a job without hosts")
	}
	if c.Data.Samples == 0 || c.Data.Batch == 0 {
		return fmt.Errorf("a job without data")
	}
	for i, h := range c.Hosts {
		if h.Workers < 1 || h.Machine < 0 || h.Machine >= len(c.Cores) {
			return fmt.Errorf("host %d: %d workers on machine %d of %d", i, h.Workers, h.Machine,
				len(c.Cores))
		}
		if !(c.Cores[h.Machine] > 0) {
			return fmt.Errorf("machine %d: %v processors", h.Machine, c.Cores[h.Machine])
		}
		for _, x := range [...]float64{h.Fixed, h.PerSample, h.Processors, h.Wait, h.Load,
			h.Cable, h.Memory, h.MemoryPerSample, h.Room} {
			if !isTime(x) {
				return fmt.Errorf("host %d: a negative or infinite number", i)
			}
		}
	}
	if c.Noise.From > 0 && (!(c.Noise.Target >= 1) || !(c.Noise.To > 0)) {
		return fmt.Errorf("noise from %v to %v needs a target", c.Noise.From, c.Noise.To)
	}
	for i, e := range c.Events {
		if e.Host < 0 || e.Host >= len(c.Hosts) || !isTime(e.At) || !isTime(e.Value) {
			return fmt.Errorf("event %d: about host %d of %d, at %v, value %v", i, e.Host,
				len(c.Hosts), e.At, e.Value)
		}
	}
	return nil
}

// isTime reports whether x is a number that is not negative.
func isTime(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }
