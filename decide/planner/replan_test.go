package planner_test

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/decide/planner"
)

// BenchmarkReplan makes first plans for about 64 devices of two kinds: the median of their seconds
// is what a job waits that has lost a host or got one.
func BenchmarkReplan(b *testing.B) {
	for _, x := range []struct {
		name  string
		hosts int // of the first kind
	}{{"fewer", 7}, {"same", 8}, {"more", 9}} {
		r := sailorRequest(b, on("A100-40", x.hosts), on("V100-16", 8))
		r.Work = -1
		b.Run(x.name, func(b *testing.B) {
			var took []float64
			for b.Loop() {
				begin := time.Now()
				got, err := planner.Solve(r)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, 1e3*time.Since(begin).Seconds())
				b.ReportMetric(got.Best.Predicted.Seconds, "step-s")
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "median-ms")
		})
	}
}
