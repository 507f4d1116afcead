package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/node"
)

// All-reduces of a job on several hosts take another route while it runs, because of what they took: the change is told with its reason, and the
// results stay right on all hosts.
func TestRoutesChangeWhileTheJobRuns(t *testing.T) {
	events := make(chan node.Event, 1000)
	c := startCluster(t, 3, []int{1, 1, 1}, node.Orders{Event: func(e node.Event) { events <- e }})
	g := group.New(context.Background())
	enough := make(chan struct{})
	for range 3 {
		s := <-c.started
		j := joinWith(t, s.agent, s.number, s.token)
		g.Go(fmt.Sprintf("worker %d", s.number), func(ctx context.Context) error {
			defer s.agent.Finished(s.number, "exited with code 0")
			return reduceUntil(ctx, j, enough)
		})
	}
	for e := range events {
		if e.What != "route" {
			continue
		}
		if !strings.Contains(e.String(), "all-reduces of 1 MiB over 3 hosts go ") || !strings.Contains(e.Because, " took ") {
			t.Errorf("%v", e)
		}
		break
	}
	close(enough)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// reduceUntil makes all-reduces of 1 MiB and checks every element, until the first rank says that it is enough.
func reduceUntil(ctx context.Context, j *client.Job, enough <-chan struct{}) error {
	x := make([]float32, 256<<10)
	for goesOn := true; goesOn; {
		for i := range x {
			x[i] = float32(j.Rank() + i%1000)
		}
		if j.Rank() == 0 {
			select {
			case <-enough:
				x[0] = -1000
			default:
			}
		}
		if err := client.AllReduce(ctx, j, x, collective.Sum); err != nil {
			return err
		}
		goesOn = x[0] >= 0
		for i, v := range x[1:] {
			if want := float32(3 + 3*((i+1)%1000)); v != want {
				return fmt.Errorf("element %d is %v, want %v", i+1, v, want)
			}
		}
	}
	return nil
}
