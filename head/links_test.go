package head_test

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/head"
)

// TestLostHostsAreForgotten: of hosts that have come and are lost, no agent keeps how their links
// were lost, which it would tell each new head, and the head looks at no lost link of theirs.
func TestLostHostsAreForgotten(t *testing.T) {
	p := newPair(t)
	const losses = 50
	for i := range losses {
		c := fmt.Sprintf("C%d", i)
		p.agents[c] = head.New(head.Config{Self: c, Slots: 1})
		for _, other := range []string{"A", "B"} {
			p.agents[c].LinkUp(other)
			p.agents[other].LinkUp(c)
		}
		p.runAll()
		p.agents["A"].Tick() // the host is recorded
		p.runAll()
		if !p.agents["B"].Record().Belongs(c) {
			t.Fatalf("%s is not recorded", c)
		}
		how := "was silent for too long"
		if i%2 == 0 { // the follower tells of the loss before the head knows of it
			p.agents["B"].LinkDown(c, how)
			p.runAll()
		}
		delete(p.agents, c)
		p.agents["A"].LinkDown(c, how)
		p.agents["B"].LinkDown(c, how)
		p.runAll()
		if p.agents["B"].Record().Belongs(c) {
			t.Fatalf("%s is lost, and belongs to the job", c)
		}
	}
	for _, host := range []string{"A", "B"} {
		if n := p.agents[host].KnownLostLinks(); n != 0 {
			t.Errorf("%s knows %d lost links after %d losses, want none", host, n, losses)
		}
	}
}
