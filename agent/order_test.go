package agent_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/internal/group"
)

// monitored is a network that watches in which order things are sent. Any goroutine may call it.
type monitored struct {
	fabric.Network
	t *testing.T

	mu     sync.Mutex             // guards told
	told   map[fabric.Host]uint64 // of which batch a host was told last
	pieces *atomic.Int64          // number that were sent by who leads, on host a
}

// Send sends a message, and records of which batch it tells.
func (m *monitored) Send(to fabric.Host, b []byte) {
	m.mu.Lock()
	if said, err := wire.Decode(b); err == nil {
		if f, is := said.(*wire.Frame); is {
			for _, b := range f.Payloads {
				if e, is := b.(*wire.Exec); is {
					m.told[to] = uint64(e.Batch)
				}
			}
		}
	}
	m.mu.Unlock()
	m.Network.Send(to, b)
}

// SendPiece sends a piece, and fails the test if its receiver was not told of the batch before.
func (m *monitored) SendPiece(to fabric.Host, p fabric.Piece, payload []byte) {
	m.mu.Lock()
	if batch := p.Transfer / collective.MaxStep; m.Self() == "a" {
		if m.told[to] < batch {
			m.t.Errorf("%s gets pieces of batch %x and was not told of it", to, batch)
		}
		m.pieces.Add(1)
	}
	m.mu.Unlock()
	m.Network.SendPiece(to, p, payload)
}

// Who leads tells the others of a batch before it begins it itself: else they would wait until it
// has, and their words after its pieces.
func TestWordsGoBeforePieces(t *testing.T) {
	pieces := &atomic.Int64{}
	// of a ring of three hosts: two partial sums and two results, a piece each
	const calls, each = 5, 4
	over := func(m fabric.Network) fabric.Network {
		return &monitored{Network: m, t: t, told: map[fabric.Host]uint64{}, pieces: pieces}
	}
	c := startHostsOn(t, over, 3, []int{1, 1, 1}, agent.Orders{})
	g := group.New(context.Background())
	for range 3 {
		s := <-c.started
		j := joinWithToken(t, s.agent, s.number, s.token)
		g.Go(fmt.Sprintf("worker %d", s.number), func(ctx context.Context) error {
			defer s.agent.WorkerFinished(s.number, "exited with code 0")
			for range calls {
				if err := client.AllReduce(ctx, j, make([]float32, 128<<10),
					collective.Sum); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if n := pieces.Load(); n != calls*each {
		t.Errorf("who leads has sent %d pieces, want %d", n, calls*each)
	}
}
