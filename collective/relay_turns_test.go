package collective_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// TestRelayTurns draws turns: in each of them a host begins with pieces for the host of the turn,
// as many as there is room for, with all of its pieces once, and what comes out is what comes out
// without them.
func TestRelayTurns(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		hosts := 2 + rng.IntN(4)
		of := rng.Perm(hosts) // a member each
		moves, ins, outs := drawRuns(rng, hosts)
		var calls []*collective.Call
		for i := range of {
			calls = append(calls,
				&collective.Call{Kind: collective.Reshape, DType: tensor.U8, In: ins[i],
					Out: make([]byte, len(outs[i]))})
		}
		turns := make([][]collective.Turn, hosts)
		for h := range turns {
			for range rng.IntN(6) {
				turns[h] = append(turns[h],
					collective.Turn{To: (h + 1 + rng.IntN(hosts-1)) % hosts,
						N: rng.IntN(300 << 10)})
			}
		}
		c := spread(t, calls, of, hosts)
		prepare := func() {
			for h, r := range c.relays {
				s := collective.Schedule{Moves: moves, Turns: turns, Fresh: true}
				r.Prepare(&s, c.calls[h], collective.Sites{Of: of, N: hosts, Self: h},
					collective.Route{Strategy: collective.Ring{}, Piece: collective.MinPiece})
			}
		}
		prepare()
		for h, r := range c.relays {
			checkTurns(t, r, turns[h])
		}
		prepare()
		c.exchange(rng)
		c.deliver(rng)
		for i, call := range calls {
			if !bytes.Equal(call.Out, outs[i]) {
				t.Fatalf("%d hosts, members on %v: member %d has other bytes", hosts, of, i)
			}
		}
	}
}

// checkTurns has r, the Relay of a host, which is prepared, sum all chunks in their order, and
// fails the test where they do not keep to the turns of the host.
func checkTurns(t *testing.T, r *collective.Relay, turns []collective.Turn) {
	t.Helper()
	if r.Turns() != len(turns) {
		t.Fatalf("%d turns, not %d", r.Turns(), len(turns))
	}
	last := map[int]int{} // by host: its last turn
	for k, turn := range turns {
		last[turn.To] = k
	}
	s, at := collective.NewScratch(), 0
	for k, turn := range turns {
		from, to := r.Turn(k)
		if from != at || to < from {
			t.Fatalf("turn %d is from %d to %d, and the one before ends at %d", k, from, to, at)
		}
		sent, piece := 0, 0
		for at = from; at < to; at++ {
			for _, out := range r.Chunk(at, s, nil) {
				if _, known := last[out.To]; out.To != turn.To && (known || k < len(turns)-1) {
					t.Fatalf("turn %d is for host %d, and a piece for host %d is in it", k, turn.To,
						out.To)
				}
				sent, piece = sent+len(out.Payload), len(out.Payload)
			}
		}
		if k != last[turn.To] && k != len(turns)-1 && sent >= turn.N+max(piece, 1) {
			t.Fatalf("turn %d has room for %d bytes, and %d are in it", k, turn.N, sent)
		}
	}
	if len(turns) > 0 && at != r.Chunks() {
		t.Fatalf("%d of %d pieces have a turn", at, r.Chunks())
	}
}
