package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
)

// pairsWarm are the pairs of calls of a size before those that count.
const pairsWarm = 10

// pairCount returns how many pairs of calls a size is measured with: as many as 4 GiB hold, within
// bounds. It is pure.
func pairCount(bytes int) int { return min(2000, max(100, (4<<30)/bytes)) }

// stepsWorker is a worker that makes both kinds of call in turn. One goroutine uses it; measure
// waits for the other workers.
type stepsWorker struct {
	job   *client.Job
	steps *client.Trainer
	work  time.Duration // before each call
}

// newStepsWorker joins the job, as a worker that computes for the time work before each call. The
// caller closes w.job. It waits for the agent.
func newStepsWorker(ctx context.Context, work time.Duration) (w stepsWorker, err error) {
	w.work = work
	if w.job, err = client.Join(ctx); err == nil {
		w.steps, err = client.Train(w.job, client.Data{Samples: 1 << 40, Batch: 256, Plain: true},
			client.StateOf("state", make([]byte, 4<<10)))
	}
	return w, err
}

// measure times pairs of calls with a gradient of so many bytes, in which the kinds take turns to
// be the first, and returns the metrics of compareSeries. All workers call it together.
func (w *stepsWorker) measure(ctx context.Context, bytes int) (map[string]float64, error) {
	gradient, err := client.Empty[float32](w.job, bytes/4)
	if err != nil {
		return nil, err
	}
	for k := range gradient {
		gradient[k] = 1 // and so is the mean of ones
	}
	turns := [2]func() error{
		func() error {
			return client.AllReduce(ctx, w.job, gradient, collective.Mean, client.Weight(64))
		},
		func() error {
			if !w.steps.Next(ctx) {
				return errors.Join(w.steps.Err(), errors.New("the job has no more steps"))
			}
			return client.Commit(ctx, w.steps, gradient)
		},
	}
	var took [2][]float64 // µs
	last := time.Now()
	for i := range pairsWarm + pairCount(bytes) {
		for k := range turns {
			which := (i + k) % len(turns)
			for time.Since(last) < w.work { // as long as a model computes
			}
			if err := turns[which](); err != nil {
				return nil, err
			}
			now := time.Now()
			if i >= pairsWarm {
				took[which] = append(took[which], float64(now.Sub(last).Nanoseconds())/1e3)
			}
			last = now
		}
	}
	return compareSeries(bytes, took[0], took[1]), nil
}

// compareSeries returns the metrics of two series of the same length, which it sorts: medians, and
// the median difference of two neighbours, which slow changes of the machine do not affect. The
// bounds are the order statistics between which that lies with 95 % confidence. But for the sorting
// it is pure.
func compareSeries(bytes int, plain, steps []float64) map[string]float64 {
	more := make([]float64, len(plain))
	for i := range more {
		more[i] = steps[i] - plain[i]
	}
	for _, series := range [][]float64{plain, steps, more} {
		slices.Sort(series)
	}
	n, off := len(more), int(math.Ceil(0.98*math.Sqrt(float64(len(more)))))
	// share returns the i-th smallest difference in percent of the median plain call.
	share := func(i int) float64 { return 100 * more[min(max(i, 0), n-1)] / plain[n/2] }
	return map[string]float64{"bytes": float64(bytes), "pairs": float64(n), "plain_us": plain[n/2],
		"steps_us": steps[n/2],
		"cost":     share(n / 2), "low": share(n/2 - off), "high": share(n/2 + off)}
}

// newWorkerCommand returns the hidden command that the program starts as a worker.
func newWorkerCommand() *cobra.Command {
	var work time.Duration
	cmd := &cobra.Command{Use: "worker BYTES…", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := newStepsWorker(cmd.Context(), work)
			if err != nil {
				return err
			}
			for _, text := range args {
				bytes, err := strconv.Atoi(text)
				if err != nil {
					return err
				}
				row, err := w.measure(cmd.Context(), bytes)
				if err == nil && w.job.Rank() == 0 {
					err = w.job.Report(row)
				}
				if err != nil {
					return err
				}
			}
			return w.job.Close()
		}}
	cmd.Flags().DurationVar(&work, "work", 0, "time of computing before each call")
	return cmd
}
