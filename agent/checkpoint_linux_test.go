package agent_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/setting"
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
	f.awaitAndVerify(0, 2, 3, 4)
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

// Workers in Go that leave the steps between checkpoints to the job make them as a person sets it,
// from the beginning of the change on, and the change is kept at once. A job that goes on from a
// checkpoint does so too, and policies leave that alone.
func TestStepsBetweenCheckpoints(t *testing.T) {
	folder := snapshot.Folder{Root: filepath.Join(t.TempDir(), "checkpoints")}
	// train has two workers train until there are as many checkpoints.
	train := func(f *elasticJob, set string, checkpoints int) {
		for number := range 2 {
			j := joinWithToken(t, f.agent, number, fmt.Sprintf("token-%d", number))
			f.group.Go(fmt.Sprintf("worker %d", number), func(ctx context.Context) error {
				tr, err := client.Train(j, client.Data{Samples: 1000, Batch: 8},
					client.StateOf("state", make([]float32, 9)))
				if err != nil {
					return err
				}
				if err := tr.Checkpoint(client.Checkpoint{Folder: folder.Root, Auto: true, Keep: 99,
					Say: func(string) {}}); err != nil {
					return err
				}
				gradient := make([]float32, 1)
				for gradient[0] == 0 && tr.Next(ctx) {
					if number == 0 && tr.Step() == 3 && set != "" {
						if err := f.agent.Set(set, "ada"); err != nil {
							return err
						}
					}
					if list, err := folder.Sealed(); err != nil || len(list) >= checkpoints {
						gradient[0] = 1
					}
					if err := client.Commit(ctx, tr, gradient); err != nil {
						return err
					}
				}
				f.agent.WorkerFinished(number, "exited with code 0")
				return tr.Err()
			})
		}
	}
	f := newElasticJob(t, 2, client.Data{})
	f.agent.DecideBy(act.Watch, nil)
	kept := make(chan setting.Change, 1)
	f.onEachEvent(func(e agent.Event) {
		if c := e.Change; c != nil && c.Phase.IsEnd() {
			kept <- *c
		}
	})
	train(f, "save=4", 2)
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	steps, err := folder.Sealed()
	if err != nil || len(steps) < 2 || steps[len(steps)-1].Step < 4 ||
		steps[0].Step < steps[1].Step+4 {
		t.Errorf("sealed are %v, %v", steps, err)
	}
	if c := <-kept; c.Phase != setting.Kept || c.To != "save=4" || c.Measured != 0 {
		t.Errorf("%+v", c)
	}
	f = newElasticJob(t, 2, client.Data{})
	train(f, "", len(steps)+1)
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := f.agent.Status().Setting; s.Save != 4 || s.WhenSet("save") != "before the checkpoint" {
		t.Errorf("the job that goes on has %+v", s)
	}
}
