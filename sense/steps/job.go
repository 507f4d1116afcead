package steps

import (
	"maps"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
)

const (
	// halfLife is after how many steps a step counts half as much in the times of a job, as long as
	// a note has few of them.
	halfLife = 4
	// minWeight is how much what was before counts beside a note of many steps.
	minWeight = 0.125
)

// Job adds up the notes of all hosts of a job. The zero value has none. One goroutine uses it at a
// time.
type Job struct {
	generation uint64          // of the newest note
	hosts      map[string]Note // by host: its notes of this generation, the older ones for less
	noise      noise.Estimator
	pending    noise.Sums      // sums that the estimator does not have yet, one note a host at most
	from       map[string]bool // hosts that these are from
}

// Add adds a note of a host; one without steps says nothing here. Times of an earlier generation
// are dropped, and those of all before a new one. Those of a host with another Deal than that of
// its note are too.
func (j *Job) Add(host string, n Note) {
	if n.Steps == 0 { // it is about other things
		return
	}
	if j.hosts == nil {
		j.hosts, j.from = map[string]Note{}, map[string]bool{}
	}
	// The norms of a step come in notes of several hosts. They belong to one block of steps, so
	// that blocks do not depend on each other.
	if j.from[host] {
		j.noise.Add(j.pending)
		j.pending = noise.Sums{}
		clear(j.from)
	}
	j.from[host] = true
	j.pending.Add(n.Noise)
	if n.Generation < j.generation {
		return
	}
	if n.Generation > j.generation {
		j.generation = n.Generation
		clear(j.hosts)
	}
	weight := weightBeside(n.Steps)
	old := j.hosts[host]
	if old.Deal != n.Deal {
		old = Note{}
	}
	sum := clone(n)
	sum.Noise, sum.Machine, sum.Links = noise.Sums{}, nil, nil
	if len(old.Waits) != len(sum.Waits) { // the host has other workers now
		old.Timed, old.Seconds, old.Exposed, old.Waits = 0, 0, 0, nil
	}
	portable.AddTimes(sum.numbers(), old.numbers(), weight)
	j.hosts[host] = sum
}

// weightBeside returns how much the times before count beside a note of so many steps.
func weightBeside(steps float64) float64 {
	return max(minWeight, portable.Exp2(-steps/halfLife))
}

// notes returns what j.hosts has, in the order of the names of the hosts, so that what is added up
// is the same each time.
func (j *Job) notes() (list []Note) {
	for _, host := range slices.Sorted(maps.Keys(j.hosts)) {
		list = append(list, j.hosts[host])
	}
	return list
}

// Split returns where the time of a step goes, by the newest notes of hosts in which the members
// were those of a generation, with a Step.Deal: of what workers tell the mean over them. Slack is
// known when all members are.
func (j *Job) Split(generation uint64, deal uint32) (s sense.Split) {
	if generation != j.generation {
		return s
	}
	told, size, known := 0.0, 0, 0
	exposed := math.Inf(1)
	list := slices.DeleteFunc(j.notes(), func(n Note) bool { return n.Deal != deal })
	for _, n := range list {
		told += n.Told
		s.Data += n.Data
		s.Compute += n.Compute
		s.Optimizer += n.Optimizer
		if n.Timed > 0 {
			exposed = min(exposed, n.Exposed/n.Timed)
			s.Seconds = max(s.Seconds, n.Seconds/n.Timed)
			size = n.Size
			known += len(n.Ranks)
		}
	}
	if told > 0 {
		s.Data, s.Compute, s.Optimizer = s.Data/told, s.Compute/told, s.Optimizer/told
	}
	if math.IsInf(exposed, 1) {
		return s
	}
	s.Exposed = exposed
	if known != size {
		return s
	}
	slack := make([]float64, size)
	for _, n := range list {
		for i, r := range n.Ranks {
			if n.Timed > 0 && r >= size {
				return s // hosts contradict each other
			} else if n.Timed > 0 {
				slack[r] = max(0, n.Waits[i]/n.Timed-exposed)
			}
		}
	}
	s.Slack = slack
	return s
}

// Loss returns the mean of the losses that workers have told of the newest steps; false = they tell
// none.
func (j *Job) Loss() (float64, bool) {
	sum, n := 0.0, 0.0
	for _, note := range j.notes() {
		sum += note.Loss
		n += note.Losses
	}
	return sum / max(n, 1e-9), n > 0
}

// Noise returns what estimates the noise of the job's gradients, which is the caller's.
func (j *Job) Noise() noise.Estimator { return j.noise.Clone() }
