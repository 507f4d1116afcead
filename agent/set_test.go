package agent_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
)

// A person who asks for a setting waits for policies that decide, and not on the engine's thread,
// for which they wait.
func TestSetWhilePoliciesDecide(t *testing.T) {
	a := startAgent(t, 1)
	var asked atomic.Bool
	runInBackground(t, func() {
		for !asked.Load() {
			a.ReportFailedWorker("") // a look at the job
		}
	})
	for range 300 {
		if err := a.Set("size=2", "ada"); err == nil {
			t.Error("the size of a job was set that has not begun")
		}
	}
	asked.Store(true)
}

// What workers say that keep their way to synchronise comes to the agent that leads, also if that
// has no workers, however long the reason is. A way that nobody has is left out.
func TestTheHeadHearsOfWorkersThatStay(t *testing.T) {
	c := startHosts(t, 1, []int{member.NoSlots, 1}, agent.Orders{})
	s := <-c.started
	told := make(chan act.Stay, 2)
	c.head.OnStay(func(x act.Stay) { told <- x })
	s.agent.TellStay(act.Stay{Number: 2, Sync: "nonsense", Why: "it says so"})
	why := strings.Repeat(`"<&>`, 1000)
	s.agent.TellStay(act.Stay{Number: 3, Sync: setting.Ssgd, Why: why})
	want := act.Stay{Number: 3, Sync: setting.Ssgd, Why: setting.CutText(why)}
	if got := <-told; got != want {
		t.Errorf("the head was told %+v", got)
	}
}
