package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
)

// A host of a job with a mesh is left, the one that leads too: those on the others take over the
// state, no step is aborted, and the host is let go.
func TestHostsLeaveAMesh(t *testing.T) {
	for _, c := range []struct {
		mesh, then string
		slots      []int
		host       string
		spread     bool
	}{
		{"dp=2,tp=2", "dp=1,tp=2", []int{2, 2}, "b", false},
		{"dp=2,tp=2", "dp=1,tp=2", []int{2, 2}, "a", false},
		{"tp=4", "tp=2", []int{2, 2}, "b", false},
		{"pp=3,dp=1", "pp=2,dp=1", []int{1, 1, 1}, "a", false},
		{"pp=2,dp=2", "pp=2,dp=1", []int{1, 2, 1}, "b", true},
		{"tp=2,dp=3", "tp=2,dp=2", []int{2, 2, 2}, "c", true},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			left, events := make(chan string, 1), make(chan agent.Event, 1000)
			s := newMeshJob(t, c.mesh, c.slots, false, func(s *meshJob) {
				s.spread = c.spread
				s.orders.Leave = func(why string, drained bool) {
					left <- fmt.Sprintf("%v: %s", drained, why)
				}
				s.orders.Event = func(e agent.Event) { events <- e }
			})
			defer s.end()
			s.awaitMesh(c.mesh)
			s.retryUntilBegun(func() error { return s.leadingAgent().Drain(c.host, "the test") })
			s.awaitMesh(c.then)
			if why := <-left; why != "true: it was drained, and is not needed any more" {
				t.Errorf("host %s leaves: %s", c.host, why)
			}
			for len(events) > 0 {
				if e := <-events; strings.Contains(e.Because, "aborted") || len(e.Lost) > 0 {
					t.Errorf("a step was made again: %+v", e)
				}
			}
		})
	}
}

// retryUntilBegun calls ask again and again until its error is not that the job has not begun; any
// other error ends the test.
func (s *meshJob) retryUntilBegun(ask func() error) {
	s.t.Helper()
	for {
		err := ask()
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "has not begun") {
			s.t.Fatal(err)
		}
	}
}
