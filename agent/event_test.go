package agent_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
)

// The end of a job in rounds says how many optimizer steps its commits are, which is what its last
// checkpoint counts; a generation says of how many samples the effect went with replicas.
func TestEventsInRounds(t *testing.T) {
	in := head.State{Steps: 40, Data: &cursor.Cursor{Step: 635},
		Levers: setting.Levers{Sync: "local", Round: 16}}
	if got := agent.InSteps(&in); got != "; the commits so far are 635 optimizer steps" {
		t.Errorf("in rounds: %q", got)
	}
	for name, change := range map[string]func(){
		"one step a commit": func() { in.Data = &cursor.Cursor{Step: 40} },
		"no rounds":         func() { in.Levers = setting.Levers{} },
		"no data":           func() { in.Data = nil },
	} {
		before := in
		if change(); agent.InSteps(&in) != "" {
			t.Errorf("%s: %q", name, agent.InSteps(&in))
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
