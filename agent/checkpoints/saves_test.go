package checkpoints_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/agent/checkpoints"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
	"github.com/shoal-ml/shoal/internal/group"
)

// Of those who wait for parts, one is told how far they are, after two seconds and then every ten.
func TestWaitTells(t *testing.T) {
	state, memory := snapshottest.State(7, 1)
	folder := snapshot.Folder{Root: t.TempDir(), Keep: 1, Log: func(string) {}}
	part := snapshottest.Part(t, folder, state, memory, 1, 0)
	synctest.Test(t, func(t *testing.T) {
		var s checkpoints.Saves
		s.Wait(func(line string) { t.Errorf("nothing is written: %s", line) })
		if !s.IsDone() {
			t.Error("nothing is written, and it is not done")
		}
		s.Begin(part, 3)
		if n := s.Newest(); n.Step != 3 || n.Done {
			t.Errorf("a checkpoint after three commits of this run: %+v", n)
		}
		var told []string
		g := group.New(t.Context())
		for range 2 {
			g.Go("wait", func(context.Context) error {
				s.Wait(func(line string) {
					switch told = append(told, line); len(told) {
					case 1:
						part.Write()
					case 2:
						s.End(part, true)
					}
				})
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		want := []string{
			"the checkpoint of step 7 is being written: 0.00 of 0.02 GB of this host, 2 s so far",
			"the checkpoint of step 7 is being written: 0.02 of 0.02 GB of this host, 12 s so far",
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("it tells something else (-want +got): %s", diff)
		}
		if !s.IsDone() {
			t.Error("it is not done")
		}
	})
}
