package planner

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What people and jobs are told of the best plan: the Result, and why others were rejected. A
// candidate is a whole plan, and a solved is one that was played. The methods only read plans, on
// the goroutine of the problem, which belongs to one call of Solve or Judge.

// result returns the Result for the first of some plans, which are sorted, the fastest first; least
// is what no plan takes less than, in seconds.
func (p *problem) result(found []*solved, least float64) *Result {
	best := found[0]
	r := p.brief(best, least)
	r.Fullest, r.Has = p.fullest(&best.candidate)
	r.Timeline, r.Rows, r.Memory = best.timeline, p.rows(best), p.memories(&best.candidate)
	r.Rejected, r.Helps = p.rejected(found), p.helps(best)
	r.Binds = bindsText(r.Rows, best.timeline.Busy, best.seconds)
	return r
}

// bindsText says for people which stage has most to do in a step of so many seconds, by the seconds
// of its passes and what follows them, and for which part of the step it does what.
func bindsText(rows []timeline.Row, busy []float64, seconds float64) string {
	most, longest := 0, 0.0
	for s, row := range rows {
		if took := busy[s] + row.AllReduce + row.Update; took > longest {
			most, longest = s, took
		}
	}
	text := fmt.Sprintf("stage %d, %s: busy %.0f %%", most, rows[most].Name,
		100*busy[most]/seconds)
	for _, x := range []struct {
		what    string
		seconds float64
	}{{"all-reduce", rows[most].AllReduce}, {"update", rows[most].Update},
		{"waits", seconds - longest}} {
		if part := x.seconds / seconds; part >= 0.005 {
			text += fmt.Sprintf(", %s %.0f %%", x.what, 100*part)
		}
	}
	return text
}

// brief returns the Result for a plan with nothing but the plan, its workers and their devices.
func (p *problem) brief(best *solved, least float64) *Result {
	seconds := best.seconds
	d := &deployment.Deployment{Shoal: deployment.Version, Mesh: p.mesh(&best.candidate),
		Batch: p.batch, Runs: deployment.Runs{By: "shoal.train"}}
	if best.order > 0 {
		d.Hosts = p.hostsOf(&best.grid)
	}
	spread, formulas := 0.0, []string{}
	for _, k := range best.laid.classes {
		for _, took := range k.costs {
			spread = max(spread, took.point.Spread)
			if f := took.point.Formula; f != "" && !slices.Contains(formulas, f) {
				formulas = append(formulas, f)
			}
		}
	}
	d.Predicted = deployment.Prediction{Seconds: seconds, Low: seconds / (1 + spread),
		High: seconds * (1 + spread), Formula: strings.Join(formulas, "; "),
		Bubble: p.waiting(best)}
	for s := range best.stages {
		from, to := p.layersOf(&best.candidate, s)
		allReduce, update := p.tailOf(&best.candidate, s)
		d.Predicted.AllReduce = max(d.Predicted.AllReduce, allReduce)
		d.Predicted.Update = max(d.Predicted.Update, update)
		d.Stages = append(d.Stages, deployment.Stage{First: from, Layers: to - from,
			Busy: best.timeline.Busy[s] / seconds, Memory: p.memory(&best.candidate, s)})
	}
	// A bound that rounding puts a little above a plan that reaches it is that plan's time.
	least = min(least, seconds)
	d.Certificate = deployment.Certificate{Bound: least, Gap: gapOf(seconds, least),
		Space: "replicas × stages of layers in a row × micro-batches that were measured"}
	if best.tp > 1 {
		d.Runs.By += ", with a program that shares layers among ranks"
	}
	return &Result{Best: d, Workers: best.replicas * best.stages * best.tp,
		Devices: p.devices(&best.grid)}
}

// gapOf returns by which part of a bound a step takes longer, both in seconds; -1 = the bound is 0,
// and proves nothing.
func gapOf(seconds, bound float64) float64 {
	if bound <= 0 {
		return -1
	}
	return seconds/bound - 1
}

// devices says for people on which devices a plan is, such as "a100" or "8 × a100, 4 × v100".
func (p *problem) devices(g *grid) string {
	count := make([]int, len(p.kinds))
	for r := range g.replicas {
		for s := range g.stages {
			count[g.kindOf(r, s)] += g.tp
		}
	}
	var names []string
	for k, n := range count {
		if n == g.replicas*g.stages*g.tp {
			return p.kinds[k].Name
		}
		if n > 0 {
			names = append(names, fmt.Sprintf("%d × %s", n, p.kinds[k].Name))
		}
	}
	return strings.Join(names, ", ")
}

// fullest returns the stage whose workers have least memory left, and the bytes that one has.
func (p *problem) fullest(c *candidate) (stage int, has int64) {
	left := int64(math.MaxInt64)
	for i, k := range c.laid.classes {
		for s, took := range k.costs {
			if n := took.limit - p.memoryOf(c, i, s).Sum(); n < left {
				left, stage, has = n, s, took.limit
			}
		}
	}
	return stage, has
}

// layerNames names the layers of a stage for people.
func (p *problem) layerNames(s *solved, stage int) string {
	return p.namesOf(p.layersOf(&s.candidate, stage))
}

// namesOf names the layers from a number up to but without another for people.
func (p *problem) namesOf(from, to int) string {
	if to-from == 1 {
		return "layer " + p.model.Layers[from].ID
	}
	return fmt.Sprintf("layers %s to %s", p.model.Layers[from].ID, p.model.Layers[to-1].ID)
}

// waiting returns in which part of the step the stages of a plan neither compute nor average, in
// the mean over them.
func (p *problem) waiting(s *solved) float64 {
	part := 1.0
	for stage, seconds := range s.timeline.Busy {
		allReduce, update := p.tailOf(&s.candidate, stage)
		part -= (seconds + allReduce + update) / s.seconds / float64(s.stages)
	}
	return max(part, 0) // rounding
}

// rejected lists the plan of the degrees of the best with even stages, and then the best plan of
// each other number of replicas and, with as many replicas, of each other micro-batch; at most
// maxRejected in all. found is as in result.
func (p *problem) rejected(found []*solved) (list []Rejected) {
	type key struct{ replicas, micro int }
	best := found[0]
	seen := []key{{best.replicas, best.sample}}
	if even := p.even(best.grid); even != nil && !slices.Equal(even.starts, best.starts) {
		heaviest, sum := 0.0, 0.0
		for _, busy := range even.timeline.Busy {
			heaviest, sum = max(heaviest, busy), sum+busy
		}
		list = append(list, Rejected{Mesh: p.mesh(&even.candidate),
			Seconds: even.timeline.Seconds,
			Why: fmt.Sprintf("the same numbers of layers, and one stage is %.0f %% heavier than "+
				"the mean", 100*(heaviest*float64(even.stages)/sum-1))})
	}
	for i := range found[1:] {
		s := found[i+1]
		k := key{replicas: s.replicas}
		if s.replicas == best.replicas {
			k.micro = s.sample
		}
		if slices.Contains(seen, k) || len(list) == maxRejected {
			continue
		}
		seen = append(seen, k)
		averaging := 0.0
		for stage := range s.stages {
			allReduce, _ := p.tailOf(&s.candidate, stage)
			averaging = max(averaging, allReduce)
		}
		list = append(list, Rejected{Mesh: p.mesh(&s.candidate), Seconds: s.seconds,
			Why: fmt.Sprintf("stages wait %.0f %%, all-reduce %s", 100*p.waiting(s),
				plural.Seconds(averaging))})
	}
	return list
}
