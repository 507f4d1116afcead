package client

import (
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// A number of epochs whose steps nobody can count is as good as no end: the agent is not told one
// that is far too low.
func TestGoalThatCannotBeCounted(t *testing.T) {
	job, agent := newSilentJob(t, 0)
	defer job.Close()
	c, err := cursor.New(100, 10, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []Data{{Epochs: math.MaxInt}, {Epochs: 1<<60 + 3}, {Steps: math.MaxInt},
		{Epochs: math.MaxInt, Steps: 70}} {
		trainer := &Trainer{job: job, data: d, cursor: c}
		if err := trainer.tellGoal(); err != nil {
			t.Fatal(err)
		}
	}
	got, _, err := agent.Receive(make([]byte, arena.MaxMessage))
	if err != nil || !strings.Contains(string(got), `"steps":70`) {
		t.Errorf("the agent is told %s, %v", got, err)
	}
}
