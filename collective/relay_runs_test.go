package collective_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// TestRelayRuns moves short runs, many a move, between members of one host and of several, and
// compares with copying them one by one. Where the outputs are new memory they are there without a
// delivery, but for what stays on a host, which is delivered at any time.
func TestRelayRuns(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		hosts, members := 1+rng.IntN(4), 2+rng.IntN(5)
		var of []int
		for range members {
			of = append(of, rng.IntN(hosts))
		}
		moves, ins, outs := drawRuns(rng, members)
		var calls []*collective.Call
		var before [][]byte
		for i := range members {
			before = append(before, bytes.Clone(ins[i]))
			calls = append(calls,
				&collective.Call{Kind: collective.Reshape, DType: tensor.U8, In: ins[i],
					Out: make([]byte, len(outs[i]))})
		}
		c := spread(t, calls, of, hosts)
		route := collective.Route{Strategy: strategies[rng.IntN(len(strategies))],
			Piece: collective.MinPiece}
		fresh, early := rng.IntN(2) == 0, rng.IntN(2) == 0
		for h, r := range c.relays {
			s := collective.Schedule{Moves: moves, Fresh: fresh}
			r.Prepare(&s, c.calls[h], collective.Sites{Of: of, N: hosts, Self: h}, route)
		}
		if fresh && early {
			c.deliver(rng)
		}
		c.exchange(rng)
		if !fresh || !early {
			c.deliver(rng)
		}
		for i, call := range calls {
			if !bytes.Equal(call.Out, outs[i]) || !bytes.Equal(call.In, before[i]) {
				t.Fatalf("%d hosts, members on %v: member %d has other bytes", hosts, of, i)
			}
		}
	}
}

// drawRuns draws moves of bytes with runs, the inputs, and what the outputs must be after them,
// both by member.
func drawRuns(rng *rand.Rand, members int) (moves []collective.Move, ins, outs [][]byte) {
	const room = 300 << 10
	ins, outs = make([][]byte, members), make([][]byte, members)
	for i := range ins {
		ins[i] = make([]byte, room)
		for k := range ins[i] {
			ins[i][k] = byte(rng.Uint32())
		}
	}
	for range 1 + rng.IntN(4) {
		from, to := rng.IntN(members), rng.Perm(members)[:1+rng.IntN(members)]
		m := collective.Move{Src: []collective.Span{{Member: from}}, Chain: rng.IntN(2) == 0}
		for _, member := range to {
			m.Dst = append(m.Dst, collective.Span{Member: member, Out: true})
		}
		longest := 1 << (1 + rng.IntN(16))
		for range 1 + rng.IntN(40) {
			n := 1 + rng.IntN(longest)
			offs := []int{rng.IntN(room - n)}
			for _, member := range to {
				outs[member] = append(outs[member], make([]byte, rng.IntN(9))...)
				offs = append(offs, len(outs[member]))
				outs[member] = append(outs[member], ins[from][offs[0]:][:n]...)
			}
			m.AddRun(n, offs...)
		}
		moves = append(moves, m)
	}
	return moves, ins, outs
}
