package agent_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
)

// What happens in a job in rounds, or in one after a checkpoint, is said with the number of
// optimizer steps, which programs and checkpoints count; a generation says of how many samples the
// effect went with replicas.
func TestEventsInRounds(t *testing.T) {
	in := head.State{Steps: 40, Data: &cursor.Cursor{Step: 635},
		Levers: setting.Levers{Sync: "local", Round: 16}}
	stop := agent.Event{What: "stop", Step: in.Steps, OptimizerSteps: in.OptimizerSteps()}
	if got := stop.String(); got != "stop at step 635 (commit 40): " {
		t.Errorf("in rounds: %q", got)
	}
	if in.Levers = (setting.Levers{}); in.OptimizerSteps() != 635 {
		t.Errorf("after a checkpoint: %d", in.OptimizerSteps())
	}
	for name, change := range map[string]func(){
		"one step a commit": func() { in.Data = &cursor.Cursor{Step: 40} },
		"no data":           func() { in.Data = nil },
	} {
		before := in
		if change(); in.OptimizerSteps() != 0 {
			t.Errorf("%s: %d", name, in.OptimizerSteps())
		}
		in = before
	}
	e := agent.Event{What: "generation", Size: 2, Lost: []int{1}, Because: "w1 was killed"}
	without := e.String()
	e.LostSamples = 12
	if got := e.String(); !strings.HasPrefix(got, without) || !strings.Contains(got, "12 samples") {
		t.Errorf("%q, and without replicas %q", got, without)
	}
}
