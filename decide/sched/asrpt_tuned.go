package sched

import (
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
)

// asrptTuned keeps of A-SRPT (Luo et al., INFOCOM 2025) that jobs follow the order of a single
// machine, and changes how that machine orders them, and what the cluster does with it. Its order
// is the Gittins index of the work that is left (Gittins, "Bandit processes and dynamic allocation
// indices", Journal of the Royal Statistical Society B 41, 1979; for sizes that are estimated:
// Scully, Grosof and Mitzenmacher, "Uniform bounds for scheduling with job size estimates", ITCS
// 2022), which is SRPT where predictions are exact: a job that has run for longer than predicted
// comes later and later, in place of first. And who comes first takes the slots of others, as live
// jobs lose next to nothing by that, and jobs are brought together on few hosts.
var asrptTuned = Policy{Name: "asrpt-tuned",
	About: "least expected work left first, with preemption, packed on few hosts",
	Order: &gittinsOrder{}, Preempts: true, Packs: true}

// gittinsOrder is the order of asrpt-tuned. The work of a job is log-normal around its prediction.
type gittinsOrder struct {
	tables map[float64]*gittinsTable // by spread, of one machine
}

// fresh returns an order for one machine, which is for one goroutine at a time.
func (*gittinsOrder) fresh() Order { return &gittinsOrder{map[float64]*gittinsTable{}} }

// Key implements Order: the index of a job in slot-seconds.
func (g *gittinsOrder) Key(j *Job, _ int64) (key float64, until int64) {
	rate := j.Rate(j.Asked) / float64(j.Asked)
	if j.Left.Spread == 0 || j.Predicted <= 0 {
		return j.Left.Mean / rate, Never
	}
	off := j.Left.Spread / j.Predicted
	sigma := math.Round(64*math.Sqrt(portable.Log(1+float64(off*off)))) / 64
	if sigma == 0 {
		return j.Left.Mean / rate, Never
	}
	t := g.tables[sigma]
	if t == nil {
		t = &gittinsTable{sigma: sigma}
		if g.tables != nil && len(g.tables) < mostTables {
			g.tables[sigma] = t
		}
	}
	return t.index(j.Done/j.Predicted) * j.Predicted / rate, Never
}

const (
	// tableOctave is how many indexes of a table there are for each doubling of what is done, from
	// 2^-tableOctaves to 2^tableOctaves of what was predicted.
	tableOctave  = 8
	tableOctaves = 10
	mostTables   = 1000 // spreads that are remembered
)

// gittinsTable has the indexes of a log-normal variable with median 1. It computes them when they
// are asked for, so it is for one goroutine at a time, that of its Machine.
type gittinsTable struct {
	sigma float64                                 // of its logarithm
	known [2*tableOctave*tableOctaves + 1]float64 // 0 = not computed yet
}

// index returns the index where so much is done, interpolated.
func (t *gittinsTable) index(done float64) float64 {
	x := 0.0
	if done > 0 {
		x = float64(tableOctave * (portable.Log2(done) + tableOctaves))
	}
	x = min(max(x, 0), float64(len(t.known)-1))
	i := min(int(x), len(t.known)-2)
	low, high := t.at(i), t.at(i+1)
	part := x - float64(i)
	return low + float64(part*(high-low))
}

// at returns the index at entry i of the table, and computes it the first time.
func (t *gittinsTable) at(i int) float64 {
	if t.known[i] == 0 {
		done := 0.0
		if i > 0 {
			done = portable.Exp2(float64(float64(i)/tableOctave) - tableOctaves)
		}
		t.known[i] = gittins(done, t.sigma)
	}
	return t.known[i]
}

// gittins returns the index of a log-normal variable with median 1 that is above done: the least,
// over all times for which it may go on, of the time that is spent over the probability that it
// ends in that time.
func gittins(done, sigma float64) float64 {
	const tries, first, growth = 60, -7, 0.3 // times from 2^-7 to 2^11 of what is done
	normal := func(x float64) float64 {
		if x <= 0 {
			return math.Inf(-1)
		}
		return portable.Log(x) / sigma
	}
	from := normal(done)
	above := 1 - portable.NormalBelow(from)
	if above < 1e-9 {
		return done // so long nothing takes: it goes on as long again
	}
	mean := portable.Exp(float64(sigma*sigma) / 2)
	best := math.Inf(1)
	for i := range tries {
		to := done + float64(max(done, 0.1)*portable.Exp2(first+float64(growth*float64(i))))
		z := normal(to)
		ends := above - (1 - portable.NormalBelow(z))
		// The mean of what is spent: of those who end until then, and of the others.
		part := float64(mean * (portable.NormalBelow(z-sigma) - portable.NormalBelow(from-sigma)))
		spent := part - float64(done*ends) + float64((to-done)*(above-ends))
		if ends > 1e-12 {
			best = min(best, spent/ends)
		}
	}
	return best
}
