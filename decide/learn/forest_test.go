package learn_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/shoal-ml/shoal/decide/learn"
)

// A forest predicts steps of one feature where others say nothing, from rows that it has not seen,
// far better than the mean does. The same seed gives the same forest.
func TestForestFits(t *testing.T) {
	r := learn.NewRandom(3)
	draw := func(n int) (rows [][]float64, targets []float64) {
		for range n {
			row := []float64{r.Float(), r.Float(), float64(r.IntN(4)), r.Float()}
			y := 3 * row[2]
			if row[0] > 0.5 {
				y += 10
			}
			rows, targets = append(rows, row), append(targets, y+0.1*r.Normal())
		}
		return rows, targets
	}
	rows, targets := draw(600)
	f := learn.GrowForest(rows, targets, 40, 1)
	if !reflect.DeepEqual(f, learn.GrowForest(rows, targets, 40, 1)) {
		t.Error("the same seed gives another forest")
	}
	if reflect.DeepEqual(f, learn.GrowForest(rows, targets, 40, 2)) {
		t.Error("another seed gives the same forest")
	}
	rows, targets = draw(300)
	mean, off, around := 0.0, 0.0, 0.0
	for _, y := range targets {
		mean += y / float64(len(targets))
	}
	for i, row := range rows {
		off += math.Pow(f.Predict(row)-targets[i], 2)
		around += math.Pow(mean-targets[i], 2)
	}
	if off > 0.05*around {
		t.Errorf("%.3f of the variance is left", off/around)
	}
}

// The best split of a single feature is the one that trying all of them finds.
func TestForestSplitsWhereVarianceIsLeast(t *testing.T) {
	r := learn.NewRandom(9)
	for range 50 {
		n := 6 + r.IntN(6)
		rows, targets := make([][]float64, 400), make([]float64, 400)
		level := make([]float64, n)
		for i := range level {
			level[i] = r.Normal()
		}
		for i := range rows {
			x := r.IntN(n)
			rows[i], targets[i] = []float64{float64(x)}, level[x]
		}
		f := learn.GrowForest(rows, targets, 1, 1)
		// Bootstrap rows are unknown here, but levels have no noise, so a tree must find them.
		for x := range n {
			if got := f.Predict([]float64{float64(x)}); math.Abs(got-level[x]) > 1e-9 {
				t.Fatalf("at %d it is %v, not %v, of %v", x, got, level[x], level)
			}
		}
	}
	if learn.GrowForest(nil, nil, 3, 1).Predict([]float64{1}) != 0 {
		t.Error("a forest of no rows predicts something")
	}
}

// Before there is a forest, a job has the median of its kind, else of its tenant, else of all.
func TestWorksOfFewJobs(t *testing.T) {
	w := learn.NewWorks(1)
	known := learn.Run{Tenant: "a", Kind: "x"}
	if w.Predict(known) != 0 {
		t.Error("something is predicted from nothing")
	}
	for _, work := range []float64{10, 30, 20} {
		w.Ended(known, work)
	}
	w.Ended(learn.Run{Tenant: "a", Kind: "y"}, 100)
	w.Ended(learn.Run{Tenant: "b", Kind: "z"}, 1000)
	w.Ended(learn.Run{Tenant: "b", Kind: "z"}, 0) // says nothing
	for _, c := range []struct {
		tenant, kind string
		work         float64
	}{
		{"a", "x", 20},     // the median of the kind
		{"a", "new", 25},   // of the tenant: 10, 20, 30, 100
		{"new", "new", 30}, // of all
	} {
		run := learn.Run{Tenant: c.tenant, Kind: c.kind}
		if got := w.Predict(run); math.Abs(got-c.work) > 1e-9 {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if w.Last("x") != 20 || w.Last("new") != 0 {
		t.Errorf("the last works are %v and %v", w.Last("x"), w.Last("new"))
	}
}

// With many jobs, where the work depends on the batch within a kind, the forest sees that and the
// median of the kind cannot.
func TestWorksOfManyJobs(t *testing.T) {
	w, r := learn.NewWorks(1), learn.NewRandom(4)
	forest, median := 0.0, 0.0
	for i := range 1200 {
		run := learn.Run{Tenant: "a", Kind: string(rune('a' + r.IntN(5))), Batch: 1 << r.IntN(6)}
		work := float64(run.Kind[0]-'a'+1) * 1000 / float64(run.Batch)
		if i >= 800 {
			forest += math.Pow(math.Log(w.Predict(run)/work), 2)
			median += math.Pow(math.Log(w.Median(run)/work), 2)
		}
		w.Ended(run, work)
	}
	if forest > 0.25*median {
		t.Errorf("squares of errors: %.1f, and %.1f with medians", forest, median)
	}
}

// A forest is grown on the newest jobs alone: what ended before them says nothing any more.
func TestWorksOfTheNewestJobs(t *testing.T) {
	w := learn.NewWorks(1)
	before, now := learn.Run{Tenant: "a", Kind: "before"}, learn.Run{Tenant: "a", Kind: "now"}
	for range 4000 {
		w.Ended(before, 10)
	}
	if got := w.Predict(before); math.Abs(got-10) > 1e-9 {
		t.Fatalf("%v is predicted where all jobs had 10", got)
	}
	for range 5000 {
		w.Ended(now, 1000)
	}
	if got := w.Predict(before); math.Abs(got-1000) > 1e-6 {
		t.Errorf("%v is predicted where the newest 4000 jobs had 1000", got)
	}
}
