package client

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/jobs"
	"github.com/shoal-ml/shoal/state/cursor"
)

// cramped is a scribe that has so many bytes.
type cramped struct {
	scribe
	bytes int
}

func (s *cramped) room(n int, _ []byte) ([]byte, error) {
	if n > s.bytes {
		return nil, errors.New("no room")
	}
	return make([]byte, n), nil
}

// A worker without memory for its part says so once, however often it tries, and again when it had some in between.
func TestNoMemoryIsSaidOnce(t *testing.T) {
	var said []string
	s := &cramped{bytes: 8}
	c := &checkpoints{folder: jobs.Folder{Root: "/f", Say: func(line string) { said = append(said, line) }}, scribe: s}
	for _, want := range []struct{ bytes, room, said int }{{8, 8, 0}, {9, 0, 1}, {9, 0, 1}, {7, 7, 1}, {9, 0, 2}} {
		if c.makeRoom(want.bytes); len(c.room) != want.room || len(said) != want.said {
			t.Fatalf("%d bytes of 8: there are %d, and this was said: %q", want.bytes, len(c.room), said)
		}
	}
	if line := "there is no memory for a checkpoint in /f, and training goes on: no room"; !slices.Equal(said, []string{line, line}) {
		t.Errorf("a worker says %q", said)
	}
}

// A job that goes on from a checkpoint counts the time to the next one from then, and the time of a step not from its first one.
func TestGoingOnBeginsTheClock(t *testing.T) {
	place := cursor.Cursor{Samples: 100, Batch: 10, Step: 7, Next: 70}
	text, err := place.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &checkpoints{every: time.Minute}
	trainer := &Trainer{job: &Job{solo: true}, checkpoints: c}
	if err := trainer.goOn(&jobs.Sealed{State: &jobs.State{Cursor: text}}); err != nil {
		t.Fatal(err)
	}
	if c.begun.IsZero() || c.looked != c.begun || c.lookedAt != 7 || c.last != 7 || c.next != 8 || trainer.cursor.Step != 7 {
		t.Errorf("the trainer is at step %d, its checkpoints are %+v", trainer.cursor.Step, c)
	}
}
