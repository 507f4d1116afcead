package learn

import (
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Works predicts how much work a job has from jobs that have ended, as A-SRPT does (Luo, Liu, Lee
// and Shroff, INFOCOM 2025, predictor): with a random forest where a job of the same kind has
// ended, and else with the median of its tenant, or of all. The unit of work is the caller's. One
// goroutine uses it at a time.
type Works struct {
	seed    uint64
	numbers [3]map[string]int // of tenants, kinds and models, in the order in which they came
	kinds   map[string]*past
	tenants map[string]*past
	all     past
	rows    [][]float64
	logs    []float64 // of the works of rows
	forest  *Forest
	grown   int // how many rows had come at the last growth
	seen    int // how many rows have come in all
}

// Run is what is known of a job before it has run.
type Run struct {
	Tenant, Kind, Model string
	Batch, Asked        int
	Hour                int // of the day at which it came, from 0 to 23
}

// past are works of jobs that have ended.
type past struct {
	sorted []float64
	last   []float64 // the newest first, three at most
}

const (
	forestTrees = 30
	firstForest = 30   // how many jobs must have ended for a forest
	mostRows    = 4000 // the newest jobs, on which a forest is grown
)

// NewWorks returns a predictor that no job has ended for.
func NewWorks(seed uint64) *Works {
	w := &Works{seed: seed, kinds: map[string]*past{}, tenants: map[string]*past{}}
	for i := range w.numbers {
		w.numbers[i] = map[string]int{}
	}
	return w
}

// Ended takes a job that has ended and the work that it had. Work of 0 or less says nothing.
func (w *Works) Ended(r Run, work float64) {
	if !(work > 0) {
		return
	}
	for i, name := range []string{r.Tenant, r.Kind, r.Model} {
		if _, known := w.numbers[i][name]; !known {
			w.numbers[i][name] = len(w.numbers[i])
		}
	}
	w.rows, w.logs = append(w.rows, w.features(r)), append(w.logs, portable.Log(work))
	if w.seen++; len(w.rows) > mostRows {
		w.rows, w.logs = w.rows[1:], w.logs[1:]
	}
	pastOf(w.kinds, r.Kind).add(work)
	pastOf(w.tenants, r.Tenant).add(work)
	w.all.add(work)
	if w.seen >= firstForest && 2*w.seen >= 3*w.grown {
		w.forest, w.grown = GrowForest(w.rows, w.logs, forestTrees, w.seed), w.seen
	}
}

// Predict returns the work that a job has in all; 0 = nothing is known.
func (w *Works) Predict(r Run) float64 {
	if p := w.kinds[r.Kind]; w.forest == nil || p == nil {
		return w.Median(r)
	}
	return portable.Exp(w.forest.Predict(w.features(r)))
}

// Median returns the median of the works of a job's kind, or else of its tenant, or else of all;
// 0 = no job has ended.
func (w *Works) Median(r Run) float64 {
	for _, p := range w.relevantPasts(r) {
		n := len(p.sorted)
		return (p.sorted[(n-1)/2] + p.sorted[n/2]) / 2
	}
	return 0
}

// Last returns the work of the last job of a kind; 0 = none has ended.
func (w *Works) Last(kind string) float64 {
	if p := w.kinds[kind]; p != nil {
		return p.last[0]
	}
	return 0
}

// relevantPasts returns the works that say something about a job, the nearest first.
func (w *Works) relevantPasts(r Run) (list []*past) {
	for _, p := range []*past{w.kinds[r.Kind], w.tenants[r.Tenant], &w.all} {
		if p != nil && len(p.sorted) > 0 {
			list = append(list, p)
		}
	}
	return list
}

// features returns the features of a job: names as numbers, -1 for those that did not come before,
// and the logarithms of the last three works of its kind; of fewer, the oldest is repeated.
func (w *Works) features(r Run) []float64 {
	row := make([]float64, 0, 9)
	for i, name := range []string{r.Tenant, r.Kind, r.Model} {
		number, known := w.numbers[i][name]
		if !known {
			number = -1
		}
		row = append(row, float64(number))
	}
	row = append(row, float64(r.Batch), float64(r.Asked), float64(r.Hour))
	last := []float64{w.Median(r)}
	if p := w.kinds[r.Kind]; p != nil {
		last = p.last
	}
	for i := range 3 {
		x := last[min(i, len(last)-1)]
		if x > 0 {
			x = portable.Log(x)
		}
		row = append(row, x)
	}
	return row
}

// pastOf returns the past of a name, a new one where there is none.
func pastOf(pasts map[string]*past, name string) *past {
	p := pasts[name]
	if p == nil {
		p = &past{}
		pasts[name] = p
	}
	return p
}

// add takes the work of a job that has ended.
func (p *past) add(work float64) {
	i, _ := slices.BinarySearch(p.sorted, work)
	p.sorted = slices.Insert(p.sorted, i, work)
	p.last = append([]float64{work}, p.last[:min(len(p.last), 2)]...)
}
