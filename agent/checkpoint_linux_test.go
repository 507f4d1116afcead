package agent_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/client"
)

// Those who join write their share too, and a worker that is lost is no hindrance; others take the
// end over.
func TestCheckpointsWhileWorkersComeAndGo(t *testing.T) {
	data := client.Data{Samples: 300, Batch: 20, Epochs: 2, Seed: 3}
	f := newElasticJob(t, 3, data)
	f.ballast, f.folder = 5<<20, filepath.Join(t.TempDir(), "checkpoints")
	f.handsOver = func(_ *client.Job, number int) error {
		if number == 1 {
			return errDies
		}
		return nil
	}
	f.runAndGrow(5)
	f.check(0, 2, 3, 4)
	folder := snapshot.Folder{Root: f.folder}
	steps, err := folder.Sealed()
	if err != nil || len(steps) == 0 || int(steps[0].Step) != f.steps[0] {
		t.Fatalf("sealed are %v, %v; the last step is %d", steps, err, f.steps[0])
	}
	last, err := folder.Open(steps[0].Step)
	if err != nil || last.State.Workers != 4 {
		t.Fatalf("%+v, %v", last, err)
	}
	again := newElasticJob(t, 2, data)
	again.ballast, again.folder = f.ballast, f.folder
	for number := range 2 {
		again.runWorker(number, fmt.Sprintf("token-%d", number), doNothing)
	}
	if err := again.group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(again.ledger) > 0 || !slices.Equal(again.finals[1], f.finals[0]) ||
		again.steps[1] != f.steps[0] {
		t.Errorf("%d samples more; ended with %v at step %d, before with %v at step %d",
			len(again.ledger), again.finals[1], again.steps[1], f.finals[0], f.steps[0])
	}
}

// On one host and then on several, which have the folder in common, the job goes 20 steps further
// each time.
func TestCheckpointsOfSeveralHosts(t *testing.T) {
	folder := snapshot.Folder{Root: filepath.Join(t.TempDir(), "checkpoints")}
	runOnHosts(t, 4, func(j *client.Job) error {
		steps, err := folder.Sealed()
		if err != nil {
			return err
		}
		before := 0
		if len(steps) > 0 {
			before = int(steps[0].Step)
		}
		counted := make([]int64, 1)
		tr, err := client.Train(j, client.Data{Samples: 1000, Batch: 8, Steps: before + 20},
			client.StateOf("counted", counted), client.StateOf("more", make([]float32, 1<<20)))
		if err != nil {
			return err
		}
		if err := tr.Checkpoint(
			client.Checkpoint{Folder: folder.Root, Every: time.Hour, Say: func(line string) {
				t.Log(line)
			}}); err != nil {
			return err
		}
		for tr.Next(t.Context()) {
			if err := client.Commit(t.Context(), tr, make([]float32, 4)); err != nil {
				return err
			}
			counted[0]++
		}
		if int(counted[0]) != before+20 {
			return fmt.Errorf("%d steps are counted, from %d on", counted[0], before)
		}
		return tr.Err()
	})
	if steps, err := folder.Sealed(); err != nil ||
		!slices.Equal(steps, []snapshot.Attempt{{Step: 60}, {Step: 40}}) {
		t.Error(steps, err)
	}
}
