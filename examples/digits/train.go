// Package digits trains a small perceptron on the handwritten digits of the UCI repository: real data that needs no
// download, and one all-reduce a step. It is the job of `shoal demo` and the Go example (examples/digits/worker).
package digits

import (
	"context"
	"fmt"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
)

// Config is what a run can be asked. The batch is global: the workers of a job share it.
type Config struct {
	Steps    int
	Batch    int
	Rate     float64 // at the first step; it falls in a straight line, to 0 after the last
	Momentum float64
	Seed     uint64
}

// Default trains to about 99 % test accuracy.
func Default() Config { return Config{Steps: 2000, Batch: 128, Rate: 0.1, Momentum: 0.9, Seed: 1} }

// Progress is where a run stands after a step.
type Progress struct {
	Step     int     // steps done
	Samples  int     // images seen, by all workers together
	Loss     float64 // mean cross-entropy over the last epoch
	Accuracy float64 // share of the test images that the model gets right
}

// Metrics names the numbers for a report to the agent.
func (p Progress) Metrics() map[string]float64 {
	return map[string]float64{
		"step": float64(p.Step), "samples": float64(p.Samples), "loss": p.Loss, "accuracy": p.Accuracy,
	}
}

// Train runs the steps of the configuration as one worker of the job and returns the loss of every global batch, which
// does not depend on the number of workers. Rank 0 calls watch after every epoch and after the last step.
func Train[T Float](ctx context.Context, job *client.Job, c Config, watch func(Progress) error) ([]float64, error) {
	train, test, err := Load[T]()
	if err != nil {
		return nil, err
	}
	moved, err := client.Empty[T](job, Params+1) // the gradient and, in the same all-reduce, the loss
	if err != nil {
		return nil, err
	}
	grad, loss := moved[:Params], &moved[Params]
	model, velocity := NewModel[T](c.Seed), make([]T, Params)
	order := NewOrder(train.Len(), c.Batch, c.Seed)
	var losses []float64
	samples, epoch := 0, 0 // images seen, and the step at which the epoch began
	for step := 1; step <= c.Steps; step++ {
		batch, last := order.Next()
		mine := Shard(batch, job.Rank(), job.Size())
		*loss = model.Gradient(grad, train, mine)
		if err := client.AllReduce(ctx, job, moved, collective.Mean, client.Weight(float64(len(mine)))); err != nil {
			return nil, fmt.Errorf("digits: step %d: %w", step, err)
		}
		rate := T(c.Rate * float64(c.Steps-step+1) / float64(c.Steps))
		for i, g := range grad {
			velocity[i] = T(c.Momentum)*velocity[i] + g
			model.Weights[i] -= rate * velocity[i]
		}
		samples += len(batch)
		losses = append(losses, float64(*loss))
		if job.Rank() == 0 && (last || step == c.Steps) {
			if err := watch(Progress{step, samples, mean(losses[epoch:]), model.Accuracy(test)}); err != nil {
				return nil, err
			}
			epoch = step
		}
	}
	return losses, nil
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}
