package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client"
)

// stepClock times the steps of a worker, and tells what a change of the members cost once the step
// after it is done: a worker that joins receives the state between the two. The goroutine of the
// loop uses it.
type stepClock struct {
	first      time.Time          // when this worker began its first step
	last       time.Time          // end of the newest step; before the first, any time before it
	paces      [64]time.Duration  // of the newest steps, as a ring
	steps      int                // number of steps in paces, ever
	generation uint64             // of the newest step; 0 = there was none
	pending    map[string]float64 // a change whose next step is not done
}

// medianStep returns the median time of a step; 0 if there was none.
func (c *stepClock) medianStep() time.Duration {
	known := slices.Clone(c.paces[:min(c.steps, len(c.paces))])
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[len(known)/2]
}

// beginStep records that a step begins now.
func (c *stepClock) beginStep(now time.Time) {
	if c.first.IsZero() {
		c.first = now
	}
}

// endStep records that a step ends now, in this generation. It returns the report of a change whose
// next step this was; nil if there is none.
func (c *stepClock) endStep(now time.Time, generation uint64) (report map[string]float64) {
	took := now.Sub(c.last)
	if c.pending != nil {
		c.pending["next_us"] = float64(took.Microseconds())
		report, c.pending = c.pending, nil
	}
	if generation != c.generation {
		c.pending = map[string]float64{"generation": float64(generation),
			"at_us":   float64(now.UnixMicro()),
			"took_us": float64(took.Microseconds()),
			"pace_us": float64(c.medianStep().Microseconds())}
		if c.generation == 0 { // what was before is no step
			c.pending["took_us"], c.pending["began_us"] = 0, float64(c.first.UnixMicro())
		}
		c.generation = generation
	} else {
		c.paces[c.steps%len(c.paces)] = took
		c.steps++
	}
	c.last = now
	return report
}

// runWorker joins the job and trains until the job ends: gradients of so many float32, and so many
// bytes of state that a worker that joins receives. It runs in the process of the worker, on one
// goroutine, and waits for the others in each step.
func runWorker(ctx context.Context, elements, stateBytes int) error {
	j, err := client.Join(ctx)
	if err != nil {
		return err
	}
	gradient, err := client.Empty[float32](j, elements)
	if err != nil {
		return err
	}
	state := make([]byte, stateBytes)
	for i := 0; i < len(state); i += 512 {
		state[i] = 1 // memory that was never written costs nothing to send
	}
	t, err := client.Train(j, client.Data{Samples: 1 << 40, Batch: 256},
		client.StateOf("state", state))
	if err != nil {
		return err
	}
	clock := stepClock{last: time.Now()}
	for t.Next(ctx) {
		clock.beginStep(time.Now())
		x := float32(t.Samples()[0] % 1000)
		for i := range gradient {
			gradient[i] = x
		}
		if err := client.Commit(ctx, t, gradient); err != nil {
			return err
		}
		if report := clock.endStep(time.Now(), uint64(j.Generation())); report != nil {
			if err := j.Report(report); err != nil {
				return err
			}
		}
	}
	return errors.Join(t.Err(), j.Close())
}

// newWorkerCommand returns the hidden command that the program starts as a worker.
func newWorkerCommand() *cobra.Command {
	return &cobra.Command{Use: "worker ELEMENTS STATE", Hidden: true,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			elements, err := strconv.Atoi(args[0])
			if err != nil {
				return err
			}
			state, err := strconv.Atoi(args[1])
			if err != nil {
				return err
			}
			return runWorker(cmd.Context(), elements, state)
		}}
}
