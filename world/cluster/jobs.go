package cluster

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sim/trace"
)

// How jobs of a trace become jobs that are played: their sizes and speeds by the curves of models,
// and what is predicted of them. Play and MostMet call newPlayers; a Config is only read here.

// player is a job as it is played.
type player struct {
	job     sched.Job // as it is submitted
	work    float64   // units of work that it has in truth
	left    float64   // of these to go, at base
	base    int64     // from when on it goes on; it may be to come
	rate    float64   // units of work a second
	slots   int
	since   int64 // since when it has these slots
	version int   // counts changes, so that an end that was planned before one is void
	row     Job   // what came of it
}

// newPlayers returns the players of the jobs of a trace, in their order. What chance decides
// follows from the seed and the number of a job.
func (c *Config) newPlayers(jobs []trace.Job) []player {
	load := c.Load
	if load == 0 {
		load = 1
	}
	byModel := map[string][]int{}
	for i := range c.Curves {
		byModel[c.Curves[i].Model] = append(byModel[c.Curves[i].Model], i)
	}
	sizes := map[[2]int]sched.Curve{}
	list := make([]player, len(jobs))
	for i := range jobs {
		t := &jobs[i]
		arrived := int64(float64(t.Arrived) / load)
		j := sched.Job{ID: sched.JobID(t.Name), Tenant: t.Tenant, Kind: t.Kind, Arrived: arrived,
			Min: t.GPUs, Max: t.GPUs, Asked: t.GPUs, Priority: t.Priority, Value: t.Value,
			Park: sched.ParkWhole}
		if t.Deadline > 0 {
			j.Deadline = max(arrived+t.Deadline-t.Arrived, 1)
		}
		if c.PerHost > 0 {
			j.Spread = 1 + float64((MostSpread-1)*drawUniform(c.Seed, i, drawsSpread))
		}
		j.Speed = sched.Curve{{Slots: t.GPUs, Rate: 1}}
		if at := c.curveOf(t, i, byModel); at >= 0 {
			key := [2]int{at, t.GPUs}
			if sizes[key] == nil {
				sizes[key] = c.curvePoints(&c.Curves[at], t.GPUs)
			}
			j.Speed = sizes[key]
			for _, p := range j.Speed {
				j.Sizes = append(j.Sizes, p.Slots)
			}
			j.Min, j.Max = j.Sizes[0], j.Sizes[len(j.Sizes)-1]
		}
		work := float64(float64(t.Duration) / 1000 * j.Speed.Rate(t.GPUs))
		predicted := float64(work * drawLogNormal(c.Seed, i, c.Sigma))
		j.Left = sched.Estimate{Mean: predicted, Spread: predicted *
			math.Sqrt(portable.Exp(float64(c.Sigma*c.Sigma))-1)}
		list[i] = player{job: j, work: work, left: work, row: Job{Name: t.Name, Line: t.Line,
			Tenant: t.Tenant, Model: t.Model, GPUs: t.GPUs, Arrived: arrived, Started: -1,
			Ended: -1, Duration: t.Duration, Deadline: j.Deadline,
			NoSpeeds: len(c.Curves) > 0 && j.Sizes == nil}}
		if t.Model == "" && len(j.Speed) > 1 {
			list[i].row.Model = c.Curves[c.curveOf(t, i, byModel)].Model
		}
	}
	return list
}

// curveOf returns the index in c.Curves of the curve of a job, which has a number among all; -1 =
// it has none. byModel has the indexes of the curves of each model.
func (c *Config) curveOf(t *trace.Job, number int, byModel map[string][]int) int {
	// fits reports whether a curve was measured around the size that the job asks for.
	fits := func(i int) bool {
		_, known := c.Curves[i].At(t.GPUs)
		return known && c.Curves[i].Sizes[0] <= c.GPUs
	}
	if t.Model != "" {
		list := byModel[t.Model]
		best := -1
		for _, i := range list {
			if fits(i) && (best < 0 || c.Curves[i].Batch == t.Batch) {
				best = i
			}
		}
		return best
	}
	var list []int
	for i := range c.Curves {
		if fits(i) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return -1
	}
	return list[pickIndex(c.Seed, number, len(list))]
}

// curvePoints returns a curve at all sizes that were measured and that the cluster has, and at the
// size that a job asks for.
func (c *Config) curvePoints(curve *trace.Curve, asked int) (list sched.Curve) {
	sizes := slices.Clone(curve.Sizes)
	if i, there := slices.BinarySearch(sizes, asked); !there {
		sizes = slices.Insert(sizes, i, asked)
	}
	for _, n := range sizes {
		if rate, _ := curve.At(n); n <= c.GPUs {
			list = append(list, sched.Point{Slots: n, Rate: rate})
		}
	}
	return list
}
