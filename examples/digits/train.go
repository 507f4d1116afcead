// Package digits trains a small perceptron on the handwritten digits of the UCI repository: real
// data that needs no download, and one all-reduce a step. It is the job of `shoal demo` and the Go
// example (examples/digits/worker).
package digits

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-ml/shoal/client"
)

// Config is what a run can be asked. The batch is global: the workers of a job share it.
type Config struct {
	Steps    int     // number of steps of the job
	Batch    int     // number of images of a step over all workers
	Rate     float64 // at the first step; it falls in a straight line, to 0 after the last
	Momentum float64
	Seed     uint64 // of the weights and of the order of the images
	Audit    *Audit // looks on; nil = nobody does
	// Computed is called after each gradient of this worker, with its samples and what they took;
	// nil = nobody is.
	Computed func(samples int, took time.Duration)
}

// Default returns a configuration that trains to about 99 % test accuracy.
func Default() Config { return Config{Steps: 2000, Batch: 128, Rate: 0.1, Momentum: 0.9, Seed: 1} }

// Progress is where a run stands after a step.
type Progress struct {
	Step     int     // steps done
	Samples  int     // images seen, by all workers together
	Loss     float64 // mean cross-entropy over the last epoch, or what this worker saw of it
	Accuracy float64 // share of the test images that the model gets right
}

// Metrics returns the numbers by name, for a report to the agent.
func (p Progress) Metrics() map[string]float64 {
	return map[string]float64{
		"step": float64(p.Step), "samples": float64(p.Samples), "loss": p.Loss,
		"accuracy": p.Accuracy,
	}
}

// Train trains as one worker of the job, from its beginning or from where the job is, and returns
// the loss of every global batch, which does not depend on the workers. Rank 0 calls watch after
// every epoch and after the last step. It blocks on the goroutine that calls it, which also calls
// watch; the job stays the caller's, who closes it. An error of watch ends the training.
func Train[T Float](ctx context.Context, job *client.Job, c Config,
	watch func(Progress) error) ([]float64, error) {
	train, test, err := Load[T]()
	if err != nil {
		return nil, err
	}
	// the gradient and, in the same all-reduce, the loss
	moved, err := client.Empty[T](job, Params+1)
	if err != nil {
		return nil, err
	}
	grad, loss := moved[:Params], &moved[Params]
	model, velocity := NewModel[T](c.Seed), make([]T, Params)
	state := append(c.Audit.state(train.Len()), client.StateOf("weights", model.Weights),
		client.StateOf("velocity", velocity))
	t, err := client.Train(job,
		client.Data{Samples: train.Len(), Batch: c.Batch, Steps: c.Steps, Seed: c.Seed}, state...)
	if err != nil {
		return nil, err
	}
	var losses []float64
	begin := 0 // of the epoch, in losses
	for t.Next(ctx) {
		epoch := t.Epoch()
		began := time.Now()
		*loss = model.Gradient(grad, train, t.Samples())
		if c.Computed != nil {
			c.Computed(len(t.Samples()), time.Since(began))
		}
		postSheet(c.Audit, job, t, model.Weights)
		if err := client.Commit(ctx, t, moved); err != nil {
			return nil, fmt.Errorf("digits: step %d: %w", t.Step()+1, err)
		}
		rate := T(c.Rate * float64(c.Steps-t.Step()+1) / float64(c.Steps))
		for i, g := range grad {
			velocity[i] = T(c.Momentum)*velocity[i] + g
			model.Weights[i] -= rate * velocity[i]
		}
		losses = append(losses, float64(*loss))
		if last := t.Step() == c.Steps; job.Rank() == 0 && (last || t.Epoch() > epoch) {
			if err := watch(Progress{t.Step(), t.Seen(), mean(losses[begin:]),
				model.Accuracy(test)}); err != nil {
				return nil, err
			}
		}
		if t.Epoch() > epoch {
			begin = len(losses)
		}
		if err := c.Audit.readSheet(ctx, job, t, epoch); err != nil {
			return nil, err
		}
	}
	finishAudit(c.Audit, t, model.Weights)
	return losses, t.Err()
}

// mean returns the mean of values.
func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}
