package planner

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/deployment"
)

// result puts the best of some plans, which are sorted, into what people and jobs take.
func (p *problem) result(found []solved, least float64) *Result {
	best := &found[0]
	seconds := best.timeline.Seconds
	d := &deployment.Deployment{Shoal: deployment.Version, Mesh: p.mesh(&best.candidate),
		Batch: p.batch, Runs: deployment.Runs{By: "shoal.train"}}
	if best.order > 0 {
		d.Hosts = hostsOf(p.orders[best.order][:best.replicas*best.stages])
	}
	spread := best.point.Spread
	d.Predicted = deployment.Prediction{Seconds: seconds, Low: seconds / (1 + spread),
		High: seconds * (1 + spread), Formula: best.point.Formula, Bubble: 1 - best.busy()}
	slowest := 0
	for s := range best.stages {
		from, to := p.layersOf(&best.candidate, s)
		allReduce, update := p.tail(&best.candidate, s)
		d.Predicted.AllReduce = max(d.Predicted.AllReduce, allReduce)
		d.Predicted.Update = max(d.Predicted.Update, update)
		d.Stages = append(d.Stages, deployment.Stage{First: from, Layers: to - from,
			Busy: best.timeline.Busy[s] / seconds, Memory: p.memory(&best.candidate, s)})
		if best.timeline.Busy[s] > best.timeline.Busy[slowest] {
			slowest = s
		}
	}
	// A bound that rounding puts a little above a plan that reaches it is that plan's time.
	least = min(least, seconds)
	d.Certificate = deployment.Certificate{Bound: least, Gap: seconds/least - 1,
		Space: "replicas × stages of layers in a row × micro-batches that were measured"}
	return &Result{Best: d, Workers: best.replicas * best.stages, Timeline: best.timeline,
		Rejected: p.rejected(found),
		Binds: fmt.Sprintf("stage %d, %s: busy %.0f %%", slowest,
			p.layerNames(best, slowest), 100*best.timeline.Busy[slowest]/seconds)}
}

// layerNames names the layers of a stage for people.
func (p *problem) layerNames(s *solved, stage int) string {
	from, to := p.layersOf(&s.candidate, stage)
	if to-from == 1 {
		return "layer " + p.model.Layers[from].ID
	}
	return fmt.Sprintf("layers %s to %s", p.model.Layers[from].ID, p.model.Layers[to-1].ID)
}

// busy returns which part of the step stages compute, in the mean.
func (s *solved) busy() (part float64) {
	for _, seconds := range s.timeline.Busy {
		part += seconds / s.timeline.Seconds / float64(s.stages)
	}
	return part
}

// rejected lists the best plan of each other pair of degrees, and of the degrees of the best the
// best with another micro-batch.
func (p *problem) rejected(found []solved) (list []Rejected) {
	type key struct{ replicas, micro int }
	best := &found[0]
	seen := []key{{best.replicas, best.point.Micro}}
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
		s := &found[i+1]
		k := key{replicas: s.replicas}
		if s.replicas == best.replicas {
			k.micro = s.point.Micro
		}
		if slices.Contains(seen, k) || len(list) == maxRejected {
			continue
		}
		seen = append(seen, k)
		averaging := 0.0
		for stage := range s.stages {
			allReduce, _ := p.tail(&s.candidate, stage)
			averaging = max(averaging, allReduce)
		}
		list = append(list, Rejected{Mesh: p.mesh(&s.candidate), Seconds: s.timeline.Seconds,
			Why: fmt.Sprintf("stages wait %.0f %%, all-reduce %.0f ms", 100*(1-s.busy()),
				1e3*averaging)})
	}
	return list
}
