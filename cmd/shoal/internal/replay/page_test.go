package replay

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/world/cluster"
)

// TestTicks has the numbers at the axes of some charts.
func TestTicks(t *testing.T) {
	for _, x := range []struct {
		low, high float64
		log       bool
		want      string
	}{
		{0.167, 454, true, "[1 10 100]"},
		{0.0843, 30.9, true, "[0.1 0.2 0.5 1 2 5 10 20]"},
		{1.1, 1.9, true, "[1.1 1.2 1.3 1.4 1.5 1.6 1.7 1.8 1.9]"},
		{0, 39.1, false, "[0 5 10 15 20 25 30 35]"},
		{0, 0.8, false, "[0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8]"},
		{3, 3, true, "[3]"},
		{1e-4, 2.8e6, true, "[0.0001 0.01 1 100 10000 1e+06]"},
		{0, 0, false, "[0]"},
	} {
		if got := fmt.Sprint(ticksOf(x.low, x.high, x.log)); got != x.want {
			t.Errorf("from %v to %v, logarithmic %v: %s, want %s", x.low, x.high, x.log, got,
				x.want)
		}
	}
}

// TestRefusedJobsAreNotDone checks that the chart of jobs that are done ends at their part of all
// jobs, where a policy has refused others.
func TestRefusedJobsAreNotDone(t *testing.T) {
	jobs := []cluster.Job{{Ended: 3_600_000}, {Ended: 0, Refused: "it would be late"},
		{Ended: -1}, {Ended: 7_200_000}}
	points := distribution(jobs, len(jobs), func(j *cluster.Job) float64 {
		return float64(j.JCT()) / 3.6e6
	})
	if last := points[len(points)-1]; last != [2]float64{2, 0.5} {
		t.Errorf("the chart ends at %v, want half of the jobs after 2 hours", last)
	}
}

// TestClasses checks that no two of 36 lines of a chart look alike.
func TestClasses(t *testing.T) {
	first := map[string]int{}
	for i := range 36 {
		class := classOf(i)
		if k, ok := first[class]; ok {
			t.Errorf("series %d and %d have the class %s", k, i, class)
		}
		first[class] = i
	}
}
