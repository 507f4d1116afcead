package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// otherSave is by which factor the time between checkpoints must differ from the best one for a
	// change: near the best it hardly matters.
	otherSave = 1.5
	// leastSave is the least time between two checkpoints, in seconds, and writingPart how many
	// times it is what one is written for at least: what that costs a disk, a bucket and others who
	// use them is not measured.
	leastSave, writingPart = 10.0, 4.0
)

// Checkpoint chooses how many steps are between two checkpoints, by what one costs the training and
// by how often all workers are lost (decide.MeanTimeToLoss). It remembers nothing.
type Checkpoint struct{}

// Name implements decide.Policy.
func (Checkpoint) Name() string { return "checkpoint" }

// Levers implements decide.Policy.
func (Checkpoint) Levers() []string { return []string{"save"} }

// Decide implements decide.Policy.
func (Checkpoint) Decide(o sense.Observation, _ decide.Twin,
	_ []byte) (decide.Decision, []byte) {
	if !o.Levers.Save {
		return decide.NoChange("the program does not leave the time between checkpoints to the " +
			`job: job.checkpoint(…, every="auto") does`), nil
	}
	rate, n := newestRate(o)
	switch {
	case o.Saves.Count == 0:
		return decide.NoChange("no checkpoint was made yet, amid a training, whose cost shows"), nil
	case n < 8:
		return decide.NoChange("fewer than 8 of the newest steps tell what a step takes"), nil
	}
	step := float64(o.Setting.Batch) / rate.Mid
	toLoss := decide.MeanTimeToLoss(o).Mid
	best := max(decide.BestSave(o.Saves, toLoss), leastSave, writingPart*o.Saves.Writing)
	now := decide.SaveSeconds(o.Setting, step)
	cost := fmt.Sprintf("a checkpoint costs %.2g s, and all workers are lost once in %.2g h, as "+
		"is guessed", o.Saves.Cost, toLoss/3600)
	to := decide.Target{Setting: o.Setting}
	to.Setting.Save = roundSteps(best / step)
	near := math.Abs(portable.Log(now/best)) < portable.Log(otherSave)
	if near || to.Setting.Save == o.Setting.Save {
		return decide.NoChange(fmt.Sprintf("%s: each %.3g s is best, and one comes each %.3g s",
			cost, best, now)), nil
	}
	saved := decide.SaveOverhead(o.Saves, now, toLoss) -
		decide.SaveOverhead(o.Saves, float64(to.Setting.Save)*step, toLoss)
	because := fmt.Sprintf("%s: one each %.3g s, not %.3g s", cost, best, now)
	if saved > 0 {
		because += fmt.Sprintf(", saves %.2g %% of the time", 100*saved)
	}
	return decide.Decision{To: &to, Because: because}, nil
}

// newestRate returns the samples a second of those of the newest 64 steps that were made with the
// batch and the members of now, and of how many steps.
func newestRate(o sense.Observation) (rate setting.Band, n int) {
	return sense.Rate(slices.DeleteFunc(o.Steps.Between(o.Step-min(o.Step, 64), o.Step),
		func(x sense.StepSample) bool { return x.Batch != o.Setting.Batch || x.Size != o.Size }))
}

// roundSteps rounds a number of steps to two digits, and to 1 at least.
func roundSteps(steps float64) uint64 {
	x, _ := strconv.ParseFloat(strconv.FormatFloat(min(steps, 1e15), 'g', 2, 64), 64)
	return max(uint64(math.Round(x)), 1)
}
