package client

import (
	"context"
	"slices"
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/worker"
)

// An epoch of 23 samples in batches of 6 leaves out 5: other ones in each epoch when the samples
// are shuffled, and always the last ones when they are not.
func TestDropLastLeavesOutOthersInEachEpoch(t *testing.T) {
	for name, plain := range map[string]bool{"shuffled": false, "in order": true} {
		t.Run(name, func(t *testing.T) {
			epochs := samplesOfEpochs(t, Data{Samples: 23, Batch: 6, Epochs: 3, DropLast: true,
				Plain: plain})
			var left [][]int64
			for _, taken := range epochs {
				slices.Sort(taken)
				if len(slices.Compact(slices.Clone(taken))) != 18 || len(taken) != 18 {
					t.Fatalf("an epoch takes %v", taken)
				}
				left = append(left, leftOut(taken, 23))
			}
			if plain {
				if want := []int64{18, 19, 20, 21, 22}; !slices.Equal(left[2], want) {
					t.Errorf("%v is left out, not %v", left[2], want)
				}
				return
			}
			for epoch := range 2 {
				for _, sample := range left[epoch] {
					if slices.Contains(left[epoch+1], sample) {
						t.Errorf("sample %d is left out in epoch %d and in the next", sample, epoch)
					}
				}
			}
		})
	}
}

// With DropLast, fewer samples than a batch leave nothing to train on, and Train says so.
func TestDropLastOfLessThanABatchIsRefused(t *testing.T) {
	_, err := Train(joinAlone(t), Data{Samples: 5, Batch: 6, DropLast: true})
	if err == nil || !strings.Contains(err.Error(), "5 samples") {
		t.Errorf("5 samples in batches of 6: %v", err)
	}
}

// A negative number of epochs or steps is refused: the training would have no end.
func TestNegativeLengthsAreRefused(t *testing.T) {
	for _, d := range []Data{{Epochs: -1}, {Epochs: 3, Steps: -1}} {
		d.Samples, d.Batch = 9, 3
		if _, err := Train(joinAlone(t), d); err == nil || !strings.Contains(err.Error(), "-1") {
			t.Errorf("%+v: %v", d, err)
		}
	}
}

// A State that StateOf has not made is refused: it has no memory.
func TestStateWithoutMemoryIsRefused(t *testing.T) {
	_, err := Train(joinAlone(t), Data{Samples: 9, Batch: 3}, State{Name: "weights"})
	if err == nil || !strings.Contains(err.Error(), `"weights" has no memory`) {
		t.Errorf("%v", err)
	}
}

// A second Commit in a step is refused, and ends the loop: it would pass over samples.
func TestAStepIsCommittedOnce(t *testing.T) {
	trainer, err := Train(joinAlone(t), Data{Samples: 9, Batch: 3, Epochs: 1})
	if err != nil {
		t.Fatal(err)
	}
	for gradient := []float32{0}; trainer.Next(t.Context()); {
		if err := Commit(t.Context(), trainer, gradient); err != nil {
			t.Fatal(err)
		}
		if err := Commit(t.Context(), trainer, gradient); err == nil {
			t.Error("a second Commit is no error")
		}
	}
	if err := trainer.Err(); err == nil || !strings.Contains(err.Error(), "no step to commit") ||
		trainer.Seen() != 3 {
		t.Errorf("after %d samples: %v", trainer.Seen(), err)
	}
}

// A Commit before the first Next, or after the last one, is refused: it would count as a step.
func TestCommitOutsideOfAStepIsRefused(t *testing.T) {
	for name, steps := range map[string]int{"before": 0, "after": 3} {
		t.Run(name, func(t *testing.T) {
			trainer, err := Train(joinAlone(t), Data{Samples: 9, Batch: 3, Epochs: 1})
			if err != nil {
				t.Fatal(err)
			}
			gradient := []float32{0}
			for steps > 0 && trainer.Next(t.Context()) {
				if err := Commit(t.Context(), trainer, gradient); err != nil {
					t.Fatal(err)
				}
			}
			err = Commit(t.Context(), trainer, gradient)
			if err == nil || !strings.Contains(err.Error(), "no step to commit") ||
				trainer.Step() != steps {
				t.Errorf("after %d steps: %v", trainer.Step(), err)
			}
		})
	}
}

// joinAlone joins the job of a program that was started without the launcher; the end of the test
// closes it. It sets the environment, so the test must not be parallel. A failure to join ends the
// test.
func joinAlone(t *testing.T) *Job {
	t.Helper()
	t.Setenv(api.EnvSocket, "")
	job, err := Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := job.Close(); err != nil {
			t.Error(err)
		}
	})
	return job
}

// samplesOfEpochs trains alone, on the goroutine of the test, and returns the samples of each
// epoch, as they came. An error ends the test.
func samplesOfEpochs(t *testing.T, data Data) [][]int64 {
	t.Helper()
	trainer, err := Train(joinAlone(t), data)
	if err != nil {
		t.Fatal(err)
	}
	epochs := make([][]int64, data.Epochs)
	var goals []uint64
	for gradient := []float32{0}; trainer.Next(context.Background()); {
		goals = append(goals, trainer.goal())
		epochs[trainer.Epoch()] = append(epochs[trainer.Epoch()], trainer.Samples()...)
		if err := Commit(context.Background(), trainer, gradient); err != nil {
			t.Fatal(err)
		}
	}
	if err := trainer.Err(); err != nil {
		t.Fatal(err)
	}
	for _, goal := range goals {
		if goal != uint64(len(goals)) {
			t.Errorf("a training of %d steps was said to have %d", len(goals), goal)
		}
	}
	return epochs
}

// leftOut returns the numbers below n that are not in taken.
func leftOut(taken []int64, n int64) (left []int64) {
	for sample := range n {
		if !slices.Contains(taken, sample) {
			left = append(left, sample)
		}
	}
	return left
}

// What the program says of the length of the training holds, and what is no length is refused.
func TestGoalIsStated(t *testing.T) {
	job := joinAlone(t)
	for _, steps := range []uint64{0, 1 << 53} {
		if err := job.Goal(steps); err == nil || job.goal.Load() != 0 {
			t.Errorf("%d steps: %v", steps, err)
		}
	}
	if err := job.Goal(70); err != nil || job.goal.Load() != 70 {
		t.Errorf("%v, %d", err, job.goal.Load())
	}
}

// A job has one Trainer: another one would count its steps from 0, and the agent would not.
func TestAJobHasOneTrainer(t *testing.T) {
	job := joinAlone(t)
	if _, err := Train(job, Data{Samples: 9, Batch: 3, Epochs: -1}); err == nil {
		t.Fatal("a training without end is accepted")
	}
	if _, err := Train(job, Data{Samples: 9, Batch: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := Train(job, Data{Samples: 9, Batch: 3}); err == nil ||
		!strings.Contains(err.Error(), "the job has a Trainer") {
		t.Errorf("a second Trainer: %v", err)
	}
}
