package agent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/group"
)

// gauged is a network that tells when the hosts together have sent so many bytes of tensors.
type gauged struct {
	fabric.Network
	left *atomic.Int64 // bytes until then, of all hosts; below 0 afterwards
	sent chan struct{} // closed then
}

// SendPiece sends a piece, and closes m.sent when as many bytes were sent as were left. Any
// goroutine may call it.
func (m *gauged) SendPiece(to fabric.Host, p fabric.Piece, payload []byte) {
	m.Network.SendPiece(to, p, payload)
	if n := int64(len(payload)); n > 0 && m.left.Add(-n) <= 0 && m.left.Load() > -n {
		close(m.sent)
	}
}

// What all workers have posted of a step goes over the cables while they still work on the rest of
// it. When one of them dies then, the step counts without it, from its first collective on.
func TestStepIsExchangedBeforeItsEnd(t *testing.T) {
	const n = head.EarlyBytes / 4
	for _, dies := range []int{-1, 1, 2} {
		t.Run(fmt.Sprint("dies=", dies), func(t *testing.T) {
			left, sent := &atomic.Int64{}, make(chan struct{})
			left.Store(2 * head.EarlyBytes) // of a ring of two hosts: each sends half of it twice
			over := func(m fabric.Network) fabric.Network { return &gauged{m, left, sent} }
			c := startHostsOn(t, over, 3, []int{1, 2}, agent.Orders{})
			g := group.New(context.Background())
			for range 3 {
				s := <-c.started
				j := joinWithToken(t, s.agent, s.number, s.token)
				g.Go(fmt.Sprintf("worker %d", s.number), func(ctx context.Context) error {
					x, y := make([]float32, n), make([]float32, 2*n)
					fillWith(x, s.number)
					fillWith(y, 10*s.number)
					first := client.AllReduceAsync(j, x, collective.Sum, client.More())
					<-sent
					if s.number == dies {
						s.agent.WorkerLost(s.number, "was killed by SIGKILL")
						return nil
					}
					if err := client.AllReduce(ctx, j, y, collective.Sum,
						client.EndStep()); err != nil {
						return err
					}
					if err := first.Wait(ctx); err != nil {
						return err
					}
					want := float32(0 + 1 + 2)
					if dies >= 0 {
						want -= float32(dies)
					}
					for i := range y {
						if x[i%n] != want || y[i] != 10*want {
							return fmt.Errorf("element %d is %v and %v, want %v and %v", i, x[i%n],
								y[i], want, 10*want)
						}
					}
					s.agent.WorkerFinished(s.number, "exited with code 0")
					return nil
				})
			}
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// fillWith sets all elements to a value.
func fillWith(x []float32, value int) {
	for i := range x {
		x[i] = float32(value)
	}
}
