package agent_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/fabric"
)

// What hosts have to say to each other may be longer than a message of a link: the link holds, and
// it arrives.
func TestLongWordsBetweenHosts(t *testing.T) {
	events, notes := make(chan agent.Event, 100), make(chan []byte, 100)
	c := startHosts(t, 2, []int{1, 1}, agent.Orders{Event: func(e agent.Event) {
		events <- e
	}, Message: func(_ string, b []byte) error {
		notes <- bytes.Clone(b)
		return nil
	}})
	workers := map[string]*rawWorker{}
	workerIDs := map[string]int{}
	for range 2 {
		s := <-c.started
		workers[s.agent.Host()],
			workerIDs[s.agent.Host()] = joinRawWithToken(t, s.agent, s.number, s.token),
			s.number
	}
	d := validCall()
	d.Step = true
	for _, w := range workers {
		w.submit(d)
	}
	for _, w := range workers {
		if s, why := w.wait(); !s.OK() {
			t.Fatalf("status %d: %s", s, why)
		}
	}
	long := strings.Repeat("of so much ", fabric.MaxMessage/10)
	message, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	c.agents["b"].SendToLauncher("a", message)
	if got := <-notes; !bytes.Equal(got, message) {
		t.Errorf("a note of %d bytes came as one of %d", len(message), len(got))
	}
	c.agents["b"].WorkerLost(workerIDs["b"], "was lost because "+long)
	for {
		e := <-events
		if len(e.Lost) == 0 {
			continue
		}
		if !strings.Contains(e.Because, "was lost because "+long) {
			t.Errorf("the head hears %d bytes: %.100s", len(e.Because), e.Because)
		}
		break
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.gone) > 0 {
		t.Errorf("links are lost: %.200s", c.gone)
	}
}
