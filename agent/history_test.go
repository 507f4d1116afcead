package agent_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/sense/history"
)

// What is kept of the steps of a job comes from the host that leads, and after it was lost from the
// one that leads then, each time with the hosts that take part.
func TestRowsComeFromWhoLeads(t *testing.T) {
	var mu sync.Mutex
	var rows []history.Row
	t.Cleanup(func() { // when all agents have ended
		mu.Lock()
		defer mu.Unlock()
		hosts, end := map[uint64]int{}, uint64(0)
		for _, r := range rows {
			if _, err := history.Parse(r.Encode()); err != nil || r.Data == nil && r.Hosts != nil {
				t.Errorf("%s: %v", r.Encode(), err)
			}
			if r.Hosts != nil {
				hosts[r.Generation] = len(r.Hosts)
			}
			end = max(end, r.Step)
		}
		if hosts[1] != 3 || hosts[2] != 2 || end < 20 {
			t.Errorf("rows up to step %d, of 20 at least, and hosts by generation %v: %+v", end,
				hosts, rows)
		}
	})
	f := &elasticJob{t: t, data: client.Data{Samples: 120, Batch: 12, Epochs: 2, Seed: 1},
		group: group.New(context.Background()), ledger: map[[2]int]int{},
		finals: map[int][]float64{}, steps: map[int]int{}}
	c := startHosts(t, 3, []int{1, 1, 1}, agent.Orders{Row: func(r history.Row, _ time.Time) {
		mu.Lock()
		defer mu.Unlock()
		rows = append(rows, r)
	}})
	f.agent = c.head
	var stayed []int
	for range 3 {
		s := <-c.started
		does := func(*elasticJob, int, int) error { return nil }
		if s.agent == c.head {
			does = func(_ *elasticJob, _, step int) error {
				if step < 5 {
					return nil
				}
				c.hub.Kill(fabric.Host("a"))
				return errHostDies
			}
		} else {
			stayed = append(stayed, s.number)
		}
		f.runWorkerAt(s.agent, s.number, s.token, does)
	}
	f.awaitAndVerify(stayed...)
}
