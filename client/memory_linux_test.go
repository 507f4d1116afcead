package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// Memory that no host has is refused, and nobody gets a slice that is longer than its memory.
func TestMoreThanAnyMemory(t *testing.T) {
	job, agent := newSilentJob(t, 0)
	agent.Close() // whoever asks it for memory is told that it is gone
	defer job.Close()
	for _, n := range []int{math.MaxInt, math.MaxInt/4 + 1, 1<<44 + 1, -1} {
		want := fmt.Sprintf("client: %d elements of 4 bytes: there is no memory of that size; "+
			"check the shape", n)
		if _, err := Empty[float32](job, n); err == nil || err.Error() != want {
			t.Errorf("Empty of %d: %v", n, err)
		}
		if _, err := Shared[float32](job, "x", n); err == nil || err.Error() != want {
			t.Errorf("Shared of %d: %v", n, err)
		}
	}
}

// A checkpoint for whose description the agent has no memory is left out, and said so.
func TestNoMemoryForTheDescriptionOfACheckpoint(t *testing.T) {
	job, _ := newSilentJob(t, 0)
	defer job.Close()
	job.mem.segment = func(int) (*arena.Segment, uint32, error) {
		return nil, 0, &AgentError{Problem: "no room"}
	}
	var said []string
	part := &snapshot.Part{State: []byte("{}"), Own: []byte("{}"), Folder: snapshot.Folder{
		Root: "/c", Log: func(line string) { said = append(said, line) }}}
	want := []string{"a checkpoint in /c is abandoned, and training goes on: there is no memory " +
		"for its part: no room"}
	if err := job.newWriter().write(part); err != nil || !slices.Equal(said, want) {
		t.Errorf("%q was said, and the training ends with %v", said, err)
	}
}

// Memory of the agent that cannot be mapped is given back to it.
func TestMemoryThatCannotBeMapped(t *testing.T) {
	job, agent := newSilentJob(t, 0)
	defer job.Close()
	job.mem.freed = job.tellFreed
	empty, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	var asked []string
	answers := group.New(context.Background())
	answers.Go("agent", func(context.Context) error {
		buf := make([]byte, arena.MaxMessage)
		for range 2 {
			b, _, err := agent.Receive(buf)
			if err != nil {
				return err
			}
			asked = append(asked, string(b))
			if strings.Contains(string(b), "segment") {
				err = agent.Send(api.Tag(&api.SegmentReply{ID: 7, Bytes: growth}, 0),
					int(empty.Fd()))
			} else {
				err = agent.Send(api.Tag(&api.FreeReply{ID: 7}, 0))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if _, err := Empty[uint8](job, 1); err == nil || errors.Is(err, ErrLost) {
		t.Errorf("Empty: %v", err)
	}
	job.Close() // ends the agent where it waits for more
	if err := answers.Wait(); err != nil {
		t.Error(err)
	}
	if len(asked) != 2 || !strings.Contains(asked[1], `"free"`) ||
		!strings.Contains(asked[1], `"id":7`) {
		t.Errorf("the agent was asked %q", asked)
	}
}
