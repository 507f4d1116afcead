//go:build !race

// Under the race detector sync.Pool forgets things on purpose.

package transfers

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/tensor"
)

// wires join the transfers of hosts by function calls, without memory of their own. Only the
// test's goroutine uses them; the methods that are not here must not be called.
type wires struct {
	fabric.Network
	self fabric.Host
	way  *[]onWay // pieces of all hosts that the test has not delivered
}

// onWay is a piece that was sent and not delivered.
type onWay struct {
	from, to fabric.Host
	piece    fabric.Piece
	payload  []byte
}

// SendPiece puts a piece on the way to its host, for the test to deliver.
func (c *wires) SendPiece(to fabric.Host, p fabric.Piece, payload []byte) {
	*c.way = append(*c.way, onWay{c.self, to, p, payload})
}

// The pieces of a batch cost an agent no memory: neither those that it sends nor those that come.
func TestPiecesOfATransferAllocateNothing(t *testing.T) {
	const n = 1 << 20
	peers, of := []fabric.Host{"a", "b", "c"}, []int{0, 1, 2}
	ends, way, spareBatches := map[fabric.Host]*Set{}, []onWay{}, 0
	var own []*Transfer
	for i, name := range peers {
		calls := make([]*collective.Call, len(peers))
		for j := range calls {
			calls[j] = &collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
				Reduction: collective.Sum, Weight: 1, Far: &collective.Far{In: n / 4, Out: n / 4}}
		}
		calls[i].Far, calls[i].In, calls[i].Out = nil, make([]byte, n), make([]byte, n)
		x := &Transfer{ID: 1, Calls: calls, Peers: peers, Network: &wires{self: name, way: &way},
			Done: func() {
				spareBatches++
			}}
		if err := x.Schedule.Build(calls); err != nil {
			t.Fatal(err)
		}
		own, ends[name] = append(own, x), NewSet()
	}
	scratch, batches := collective.NewScratch(), 0
	allocs := testing.AllocsPerRun(20, func() {
		batches++
		for i, x := range own {
			x.doneCalled.Store(false)
			x.Relay.Prepare(&x.Schedule, x.Calls, collective.Sites{Of: of, N: len(peers), Self: i},
				collective.DefaultRoute(n))
			ends[peers[i]].add(x)
		}
		for _, x := range own {
			for i := range x.Chunks() {
				x.Chunk(i, scratch)
			}
		}
		for at := 0; at < len(way); at++ {
			w := way[at]
			copy(ends[w.to].Place(w.from, w.piece), w.payload)
			ends[w.to].Arrived(w.from, w.piece)
		}
		way = way[:0]
	})
	if spareBatches != len(peers)*batches {
		t.Fatalf("%d of %d are done", spareBatches, len(peers)*batches)
	}
	if allocs != 0 {
		t.Errorf("%v allocations a batch", allocs)
	}
}
