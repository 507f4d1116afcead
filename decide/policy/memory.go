package policy

import (
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// memoryPart is which part of a memory workers may need at most: what they need differs a little
// from step to step, and who needs too much ends all workers of its host at once.
const memoryPart = 0.9

// fit is what of a batch fits into the memory of the hosts.
type fit struct {
	most uint64 // the largest batch that surely fits; MaxUint64 = nothing is known
	// Of the memory that bounds it: what of it is needed, in bytes for a sample of the batch, how
	// much there is, and where it is.
	need, room float64
	host       string
	device     bool
}

// fitOf returns what surely fits into memory, whatever part of what workers need depends on their
// samples: where b samples need M bytes, at most 0.9 of the room, no batch of b·0.9·room/M samples
// or less needs more than that, as long as what is needed is a + c·samples. What was measured with
// fewer samples bounds more than is necessary; so a batch that grows comes nearer to what fits each
// time.
func fitOf(o sense.Observation) (least fit) {
	least.most = math.MaxUint64
	if len(o.Hosts) != o.Size || o.Size == 0 {
		return least
	}
	const whole = 1 << 30 // so large that rounding does not matter
	samples := decide.SamplesOf(setting.Setting{Batch: whole, Shares: o.Setting.Shares}, o.Size)
	for _, h := range o.Machines {
		sum, largest := 0., 0. // samples of all workers of the host, and of one
		for rank, host := range o.Hosts {
			if host == h.Name {
				sum, largest = sum+samples[rank], max(largest, samples[rank])
			}
		}
		for _, m := range h.Memory {
			x := fit{need: m.Used / m.Samples * sum / whole, room: m.Room, host: h.Name}
			if x.device = m.Device; m.Device {
				x.need = m.Used / m.Samples * largest / whole
			}
			x.most = toCount(memoryPart * m.Room / x.need)
			if x.most < least.most {
				least = x
			}
		}
	}
	return least
}

// toCount returns a number rounded down; MaxUint64 if it is none, or from 2^63 on.
func toCount(x float64) uint64 {
	if !(x < math.MaxInt64) {
		return math.MaxUint64
	}
	return uint64(x)
}

// boundBatches returns the observation of a job whose range of batches ends where its memory does,
// but not below the batch of now, and in words why, where that is less than a policy might choose
// now; "" = it is not.
func (f fit) boundBatches(o sense.Observation) (bounded sense.Observation, why string) {
	r := &o.Levers.Batch
	next := min(r.To, maxBatchFactor*o.Setting.Batch)
	if r.To = min(r.To, max(f.most, o.Setting.Batch)); r.To >= next {
		return o, ""
	}
	of := "GiB"
	if f.device {
		of = "GiB of a GPU"
	}
	return o, fmt.Sprintf("%d would take up to %.3g of %.3g %s on %s", next,
		f.need*float64(next)/(1<<30), f.room/(1<<30), of, f.host)
}
