package client

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/data/cursor"
)

// cramped is a writer that has no memory the first refusals times that it is asked for some.
type cramped struct {
	writer
	refusals int
}

// room implements writer: the first times there is no memory. As in makeRoom one goroutine at a
// time calls it.
func (s *cramped) room(n int, old []byte) ([]byte, error) {
	if s.refusals--; s.refusals >= 0 {
		return nil, errors.New("no room")
	}
	return s.writer.room(n, old)
}

// A checkpoint that there is no memory for is left out, which is said once, and the next one tried.
func TestNoMemoryForACheckpoint(t *testing.T) {
	for _, c := range []struct{ refusals, least, most, sealed int }{{1000, 1, 5, 0}, {1, 1, 1, 1}} {
		job, err := Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p, g := make([]float64, 9), make([]float64, 1)
		trainer, err := Train(job, Data{Samples: 20, Batch: 1, Epochs: 1}, StateOf("p", p))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		refused := 0
		folder := filepath.Join(t.TempDir(), "checkpoints")
		err = trainer.Checkpoint(Checkpoint{Folder: folder, Steps: 5, Say: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			if line == "there is no memory for a checkpoint in "+folder+
				", and training goes on: no room" {
				refused++
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		trainer.checkpoints.writer = &cramped{trainer.checkpoints.writer, c.refusals}
		for trainer.Next(t.Context()) {
			if making := trainer.checkpoints.making; making != nil {
				<-making
			}
			if err := Commit(t.Context(), trainer, g); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(trainer.Err(), job.Close()); err != nil || trainer.Step() != 20 {
			t.Fatalf("%d steps: %v", trainer.Step(), err)
		}
		steps, err := trainer.checkpoints.folder.Sealed()
		if err != nil || refused < c.least || refused > c.most || min(len(steps), 1) != c.sealed {
			t.Errorf("without memory %d times: said %d times, and there are %v, %v", c.refusals,
				refused, steps, err)
		}
	}
}

// An empty name of a folder is refused in words that say so.
func TestNoFolderForCheckpoints(t *testing.T) {
	job, err := Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	trainer, err := Train(job, Data{Samples: 1, Batch: 1})
	if err != nil {
		t.Fatal(err)
	}
	err = trainer.Checkpoint(Checkpoint{})
	if err == nil || !strings.Contains(err.Error(), "Folder is empty") {
		t.Errorf("no folder: %v", err)
	}
	if err := job.Close(); err != nil {
		t.Fatal(err)
	}
}

// A job that goes on from a checkpoint counts the time to the next one from then, and the time of a
// step not from its first one.
func TestGoingOnBeginsTheClock(t *testing.T) {
	place := cursor.Cursor{Samples: 100, Batch: 10, Step: 7, Next: 70}
	text, err := place.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &checkpoints{every: time.Minute}
	trainer := &Trainer{job: &Job{solo: true}, checkpoints: c}
	if err := trainer.continueFrom(
		&snapshot.Sealed{State: &snapshot.State{Cursor: text}}); err != nil {
		t.Fatal(err)
	}
	if c.begun.IsZero() || c.looked != c.begun || c.lookedAt != 7 || c.last != 7 || c.next != 8 ||
		trainer.cursor.Step != 7 {
		t.Errorf("the trainer is at step %d, its checkpoints are %+v", trainer.cursor.Step, c)
	}
}

// Where the program leaves it to the job, a checkpoint follows as many steps after the one before
// as the setting says, and else as the program says.
func TestFollowTheSetting(t *testing.T) {
	none := uint64(math.MaxUint64)
	for _, x := range []struct {
		c    checkpoints
		save uint64
		next uint64
	}{
		{checkpoints{auto: true, last: none, next: 1}, 7, 7},
		{checkpoints{auto: true, last: 20, next: 99}, 7, 27},
		{checkpoints{auto: true, last: 20, steps: 7, next: 27}, 7, 27},
		{checkpoints{auto: true, last: 20, steps: 7, next: 27}, 0, 0},
		{checkpoints{last: 20, steps: 50, next: 70}, 7, 70},
	} {
		c := x.c
		if c.setStepsBetween(x.save); c.next != x.next {
			t.Errorf("%+v follows %d: the next one is at %d, expected %d", x.c, x.save, c.next,
				x.next)
		}
	}
}

// What contradicts itself in a Checkpoint is named, and nothing else of it.
func TestContradictionsInACheckpointAreNamed(t *testing.T) {
	say := func(string) {}
	for want, c := range map[string]Checkpoint{
		"Keep -1": {Keep: -1, Say: say}, "Every -1s": {Every: -time.Second, Say: say},
		"Steps 5, and Every or Auto as well": {Steps: 5, Every: time.Second, Say: say},
	} {
		trainer, err := Train(joinAlone(t), Data{Samples: 20, Batch: 1})
		if err != nil {
			t.Fatal(err)
		}
		c.Folder = t.TempDir()
		err = trainer.Checkpoint(c)
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "Say") {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// refusing is a source whose checkpoints cannot be read. Only the goroutine of the test uses it.
type refusing struct{ source }

// fetch implements source: it is refused.
func (refusing) fetch(snapshot.Attempt) (snapshot.Folder, error) {
	return snapshot.Folder{}, errors.New("access denied")
}

// Why a checkpoint cannot be read is said before the other workers hear that: their end could come
// before this worker's own error is printed.
func TestWhyACheckpointCannotBeReadIsSaid(t *testing.T) {
	trainer, err := Train(joinAlone(t), Data{Samples: 20, Batch: 1, Epochs: 1})
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	if err := trainer.Checkpoint(Checkpoint{Folder: "/c", Say: func(line string) {
		said += line
	}}); err != nil {
		t.Fatal(err)
	}
	_, err = trainer.readCheckpoint(t.Context(), refusing{}, snapshot.Attempt{Step: 3})
	if want := "checkpoint of step 3 cannot be read: access denied"; err == nil || said != want {
		t.Errorf("it says %q, and the error is %v", said, err)
	}
}
