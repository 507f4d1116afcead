package agent_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
)

// BenchmarkSensing measures by how much steps are slower when the agent measures what there is to
// see of them. Two workers that compute nothing make steps, in turns of 50 with and without, and
// the metrics are the median of the differences of neighbours, in percent, and the median step
// without.
func BenchmarkSensing(b *testing.B) {
	for _, bytes := range []int{64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", bytes>>10), func(b *testing.B) { compareSensing(b, bytes) })
	}
}

// compareSensing is BenchmarkSensing for gradients of so many bytes.
func compareSensing(b *testing.B, bytes int) {
	const size, turn = 2, 50
	a := startAgentOf(b, b.Context(), agent.Config{Size: size})
	jobs := make([]*client.Job, size)
	for r := range jobs {
		jobs[r] = joinAs(b, a, r)
	}
	step := time.Duration(bytes/16) * time.Nanosecond // about as long
	turns := max(10, min(2000, int(5*time.Second/(turn*step))))
	var medians [2][]float64 // microseconds of a step, without and with
	runTogether(b, jobs, func(j *client.Job) error {
		gradient, err := client.Empty[float32](j, bytes/4)
		if err != nil {
			return err
		}
		loop, err := client.Train(j, client.Data{Samples: 1 << 40, Batch: 64},
			client.StateOf("p", make([]float32, 1)))
		if err != nil {
			return err
		}
		var took []float64
		for i := 0; i < 2*turns*turn && loop.Next(b.Context()); i++ {
			if i%turn == 0 && j.Rank() == 0 {
				agent.SetBlind(a, i/turn%2 == 0)
				took = took[:0]
			}
			begin := time.Now()
			if err := client.Commit(b.Context(), loop, gradient); err != nil {
				return err
			}
			took = append(took, float64(time.Since(begin).Nanoseconds())/1e3)
			if i%turn == turn-1 && j.Rank() == 0 {
				slices.Sort(took)
				medians[i/turn%2] = append(medians[i/turn%2], took[turn/2])
			}
		}
		return loop.Err()
	})
	var more []float64
	for i := range medians[0] {
		more = append(more, 100*(medians[1][i]/medians[0][i]-1))
	}
	slices.Sort(more)
	slices.Sort(medians[0])
	b.ReportMetric(more[len(more)/2], "%more")
	b.ReportMetric(medians[0][len(medians[0])/2], "us/step")
	b.ReportMetric(0, "ns/op")
}
