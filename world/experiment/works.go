package experiment

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/learn"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sim/trace"
)

const (
	worksJobs    = 4000 // that are drawn, at the first arrivals of a trace
	worksKinds   = 200
	worksTenants = 20
	worksAmong   = 1.5 // standard deviation of the logarithms of the mean works of kinds
)

// works asks how well a forest predicts the work of jobs that recur.
var works = Experiment{
	Name: "works",
	Paper: "Luo, Liu, Lee and Shroff: Online Scheduling for Distributed Machine Learning " +
		"Training (A-SRPT), INFOCOM 2025, arXiv 2501.05563, the predictor",
	Question: "How far off are predictions of the work of jobs that recur, by a random forest " +
		"and by medians?",
	Run: runWorks,
}

// recurring is a kind of jobs.
type recurring struct {
	run  learn.Run // without its hour
	mean float64   // of the logarithm of its work in seconds
}

// runWorks draws jobs of kinds that recur, whose works vary more and more within a kind, and
// predicts each one when it arrives from those that have ended until then.
func runWorks(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"WITHIN A KIND", "FOREST", "MEDIAN", "LAST", "ALL", "NEW KINDS"},
		Difference: "Columns are roots of the mean squared error of the logarithm of the work, " +
			"of jobs of whose kind one has ended: with the forest, the median of the kind, its " +
			"last work, and the median of all jobs; the last column is the share of the others. " +
			"The kinds are generated, as no public trace names jobs that recur: nothing but the " +
			"kind says how much work there is, so the first column is the least that can be had."}
	jobs, err := in.Jobs(traceOf(7), 0)
	if err != nil {
		return nil, err
	}
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b trace.Job) int {
		return cmp.Compare(a.Arrived, b.Arrived)
	})
	jobs = jobs[:min(len(jobs), worksJobs)]
	arrivals := make([]int64, len(jobs))
	for i, j := range jobs {
		arrivals[i] = j.Arrived / 1000
	}
	sigmas := []float64{0.1, 0.3, 1}
	for i, sigma := range sigmas {
		in.reportProgress("works", i, len(sigmas))
		t.Rows = append(t.Rows, predictionErrors(arrivals, sigma, in.Seed))
	}
	return t, nil
}

// predictionErrors returns a row of the table: how far off predictions are where the works of a
// kind vary by a standard deviation of the logarithm, sigma. arrivals are in seconds, in order.
func predictionErrors(arrivals []int64, sigma float64, seed uint64) []string {
	r := learn.NewRandom(seed)
	kinds, weights := make([]recurring, worksKinds), 0.0
	for k := range kinds {
		kinds[k] = recurring{learn.Run{Tenant: fmt.Sprint(r.IntN(worksTenants)),
			Kind: fmt.Sprint(k), Model: fmt.Sprint(r.IntN(10)), Batch: 16 << r.IntN(6),
			Asked: 1 << r.IntN(5)}, portable.Log(3600) + float64(worksAmong*r.Normal())}
		weights += 1 / float64(k+1) // Zipf's law
	}
	type running struct {
		run  learn.Run
		work float64
		end  float64
	}
	var now []running // by their ends
	w := learn.NewWorks(seed)
	const ways = 4
	var squares [ways]float64
	known, unknown := 0, 0
	for _, at := range arrivals {
		for len(now) > 0 && now[0].end <= float64(at) {
			w.Ended(now[0].run, now[0].work)
			now = now[1:]
		}
		k, left := 0, float64(r.Float()*weights)
		for left -= 1; left > 0 && k < worksKinds-1; left -= 1 / float64(k+1) {
			k++
		}
		x := running{run: kinds[k].run}
		x.run.Hour = int(at / 3600 % 24)
		x.work = portable.Exp(kinds[k].mean + float64(sigma*r.Normal()))
		x.end = float64(at) + x.work
		if w.Last(x.run.Kind) == 0 {
			unknown++
		} else {
			known++
			for i, p := range [ways]float64{w.Predict(x.run), w.Median(x.run),
				w.Last(x.run.Kind), w.Median(learn.Run{})} {
				off := portable.Log(p / x.work)
				squares[i] += float64(off * off)
			}
		}
		i, _ := slices.BinarySearchFunc(now, x.end, func(o running, end float64) int {
			return cmp.Compare(o.end, end)
		})
		now = slices.Insert(now, i, x)
	}
	row := []string{fmt.Sprintf("%.1f", sigma)}
	for _, s := range squares {
		row = append(row, fmt.Sprintf("%.2f", math.Sqrt(s/float64(max(known, 1)))))
	}
	return append(row, fmt.Sprintf("%.0f %%", 100*float64(unknown)/float64(max(len(arrivals), 1))))
}
