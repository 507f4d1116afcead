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
// after it is done: a worker that joins receives the state between the two.
type stepClock struct {
	first      time.Time // when this worker began its first step
	last       time.Time
	paces      [64]time.Duration // of the newest steps, as a ring
	steps      int
	generation uint64
	pending    map[string]float64 // a change whose next step is not done
}

// pace is the median time of a step.
func (c *stepClock) pace() time.Duration {
	known := slices.Clone(c.paces[:min(c.steps, len(c.paces))])
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[len(known)/2]
}

// begin takes the begin of a step.
func (c *stepClock) begin(now time.Time) {
	if c.first.IsZero() {
		c.first = now
	}
}

// tick takes the end of a step; it returns the change to report, if there is one.
func (c *stepClock) tick(now time.Time, generation uint64) (report map[string]float64) {
	took := now.Sub(c.last)
	if c.pending != nil {
		c.pending["next_us"] = float64(took.Microseconds())
		report, c.pending = c.pending, nil
	}
	if generation != c.generation {
		c.pending = map[string]float64{"generation": float64(generation),
			"at_us":   float64(now.UnixMicro()),
			"took_us": float64(took.Microseconds()), "pace_us": float64(c.pace().Microseconds())}
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

// recoveryWork trains without end: gradients of so many float32, and state that a worker that joins
// receives.
func recoveryWork(ctx context.Context, elements, stateBytes int) error {
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
		clock.begin(time.Now())
		x := float32(t.Samples()[0] % 1000)
		for i := range gradient {
			gradient[i] = x
		}
		if err := client.Commit(ctx, t, gradient); err != nil {
			return err
		}
		if report := clock.tick(time.Now(), uint64(j.Generation())); report != nil {
			if err := j.Report(report); err != nil {
				return err
			}
		}
	}
	return errors.Join(t.Err(), j.Close())
}

// newWorkerCommand is the process that the program starts for each worker.
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
			return recoveryWork(cmd.Context(), elements, state)
		}}
}
