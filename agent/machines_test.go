package agent_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/head"
)

// The head knows the hosts of the job with their places, and says that nothing was measured of the
// links between them; other agents know nothing of that.
func TestMachines(t *testing.T) {
	c := startHosts(t, 2, []int{1, 3}, agent.Orders{})
	<-c.started
	<-c.started // one has started on each host, so both are known
	m, err := c.head.Machines()
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Machines{Hosts: []agent.Machine{{Name: "a", Places: 1}, {Name: "b", Places: 3}},
		Others: agent.Link{Latency: 250e-6, Rate: 1.25e9}}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
	c.mu.Lock()
	other := c.agents["b"]
	c.mu.Unlock()
	if _, err := other.Machines(); !errors.Is(err, head.ErrNotHead) {
		t.Errorf("%v", err)
	}
}
