package transfers

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/tensor"
)

// stations is a network of which a test says when what it was given has left. Only the test's
// goroutine uses it; the methods that are not here must not be called.
type stations struct {
	fabric.Network
	sent []fabric.Host // by piece: to whom it was sent
	left []func()      // to be called when all has left
}

// SendPiece records to whom a piece goes.
func (s *stations) SendPiece(to fabric.Host, _ fabric.Piece, _ []byte) {
	s.sent = append(s.sent, to)
}

// Unused keeps f, for the test to call when all has left.
func (s *stations) Unused(f func()) {
	s.left = append(s.left, f)
}

// A host begins with a turn when what is of the one before has left, and with none when the
// transfer is over.
func TestSendTurns(t *testing.T) {
	for _, givenUp := range []bool{false, true} {
		const n = 1 << 20
		network, done := &stations{}, 0
		calls := []*collective.Call{
			{Kind: collective.Reshape, DType: tensor.U8, In: make([]byte, 4*n)}}
		for range 2 {
			calls = append(calls,
				&collective.Call{Kind: collective.Reshape, DType: tensor.U8,
					Far: &collective.Far{Out: 2 * n}})
		}
		x := &Transfer{ID: 7, Calls: calls, Peers: []fabric.Host{"a", "b", "c"}, Network: network,
			Done: func() {
				done++
			}}
		for i := range 4 { // b and c in turns
			to := 1 + i%2
			x.Schedule.Moves = append(x.Schedule.Moves,
				collective.Move{N: n, Src: []collective.Span{{Off: i * n}},
					Dst: []collective.Span{{Member: to, Out: true, Off: i / 2 * n}}})
		}
		x.Schedule.Turns, x.Schedule.Fresh = [][]collective.Turn{
			{{To: 1, N: n}, {To: 2, N: 2 * n}, {To: 1, N: n}}, nil, nil}, true
		x.Relay.Prepare(&x.Schedule, calls, collective.Sites{Of: []int{0, 1, 2}, N: 3},
			collective.DefaultRoute(n))
		ts := NewSet()
		ts.add(x)
		ts.sendTurns(x.ID, 0)
		for k, to := range []fabric.Host{"b", "c", "b"} {
			pieces := 4 // of 256 KiB
			if to == "c" {
				pieces = 8
			}
			if len(network.sent) != pieces || network.sent[0] != to ||
				network.sent[pieces-1] != to {
				t.Fatalf("turn %d: pieces to %v, not %d to %s", k, network.sent, pieces, to)
			}
			if network.sent = nil; k == 2 {
				break
			}
			if len(network.left) != 1 || done > 0 {
				t.Fatalf("turn %d: %d wait for what has left, done %d times", k, len(network.left),
					done)
			}
			if givenUp {
				ts.Remove(x.ID)
			}
			f := network.left[0]
			network.left = nil
			if f(); givenUp {
				break
			}
		}
		if len(network.sent)+len(network.left) > 0 || (done == 1) == givenUp {
			t.Errorf("given up %v: at the end pieces to %v and %d waiting, done %d times", givenUp,
				network.sent, len(network.left), done)
		}
	}
}
