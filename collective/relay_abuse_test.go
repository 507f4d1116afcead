package collective_test

import (
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// claim is what host `from` says to host `to` about a piece, as the arguments of Relay.Place have
// it; off and n are in bytes.
type claim struct {
	to, from int
	part     uint32
	off      uint64
	n        uint32
}

// honestClaims returns a cluster of three hosts that is about to make an all-reduce whose length
// does not divide evenly, and all pieces that its hosts will send.
func honestClaims(t testing.TB, strategy collective.Strategy) (c *cluster, claims map[claim]bool) {
	c = evenCluster(t, collective.AllReduce, tensor.BF16, 3, 2, 200_001)
	c.prepare(strategy)
	c.exchange(rand.New(rand.NewPCG(1, 1)))
	claims = map[claim]bool{}
	for _, p := range c.log {
		claims[claim{p.to, p.from, p.part, p.off, uint32(len(p.payload))}] = true
	}
	c.prepare(strategy)
	return c, claims
}

// tryClaim claims to have piece x, before and after asking for memory, and fails the test if it
// gets memory though x is not among the claims of honest hosts, or gets it twice. A piece that it
// gets memory for arrives as zeros.
func (c *cluster) tryClaim(claims map[claim]bool, x claim) {
	c.t.Helper()
	r := c.relays[x.to]
	s := collective.NewScratch()
	if out := r.Arrived(x.from, x.part, x.off, x.n, s, nil); len(out) > 0 {
		c.t.Fatalf("%+v was not placed, and yet something is sent", x)
	}
	mem := r.Place(x.from, x.part, x.off, x.n)
	switch {
	case mem == nil:
		return
	case !claims[x] || len(mem) != int(x.n):
		c.t.Fatalf("%d bytes for %+v, which nobody sends", len(mem), x)
	case r.Place(x.from, x.part, x.off, x.n) != nil:
		c.t.Fatalf("memory twice for %+v", x)
	}
	clear(mem)
	for _, o := range r.Arrived(x.from, x.part, x.off, x.n, s, nil) {
		if !claims[claim{o.To, x.to, o.Part, o.Offset, uint32(len(o.Payload))}] {
			c.t.Fatalf("after %+v, part %d at %d is sent to host %d", x, o.Part, o.Offset, o.To)
		}
	}
	if r.Place(x.from, x.part, x.off, x.n) != nil {
		c.t.Fatalf("memory again for %+v", x)
	}
}

// Pieces that are nearly right get no memory.
func TestRelayRefusesWrongPieces(t *testing.T) {
	for _, strategy := range strategies {
		c, claims := honestClaims(t, strategy)
		for x := range claims {
			for _, lie := range []claim{
				{x.to, x.to, x.part, x.off, x.n}, {x.to, -1, x.part, x.off, x.n},
				{x.to, 3, x.part, x.off, x.n},
				{x.to, x.from, x.part + 7, x.off, x.n}, {x.to, x.from, 1<<32 - 1, x.off, x.n},
				{x.to, x.from, x.part, x.off + 2, x.n}, {x.to, x.from, x.part, 1<<64 - 4, x.n},
				{x.to, x.from, x.part, 1 << 63, x.n},
				{x.to, x.from, x.part, x.off, x.n + 4}, {x.to, x.from, x.part, x.off, x.n - 4},
				{x.to, x.from, x.part, x.off, 0},
				{x.to, x.from, x.part, x.off, 1<<32 - 1},
			} {
				if mem := c.relays[x.to].Place(lie.from, lie.part, lie.off, lie.n); mem != nil &&
					!claims[lie] {
					t.Fatalf("%v: %d bytes for %+v", strategy, len(mem), lie)
				}
			}
		}
		for x := range claims {
			c.tryClaim(claims, x)
		}
	}
}

// A result does not come before the partial sum that it depends on has left: the memory is still in
// use.
func TestRelayRefusesEarlyResults(t *testing.T) {
	const n = 1 << 10
	c := evenCluster(t, collective.AllReduce, tensor.F32, 2, 2, n)
	c.prepare(collective.Star{})
	if c.relays[1].Place(0, 1, 0, 4*n) != nil {
		t.Error("memory for the result before host 1 has given its sum")
	}
	c.send(1, c.relays[1].Chunk(0, collective.NewScratch(), nil))
	if c.relays[1].Place(0, 1, 0, 4*n) == nil {
		t.Error("no memory for the result")
	}
}

// Whatever piece is claimed first, before an exchange has begun, memory is given out only for those
// that honest hosts send, and once.
func FuzzRelay(f *testing.F) {
	clusters, known := make([]*cluster, len(strategies)), make([]map[claim]bool, len(strategies))
	for i, strategy := range strategies {
		clusters[i], known[i] = honestClaims(f, strategy)
		for x := range known[i] {
			f.Add(uint8(i), uint8(x.to), x.from, x.part, x.off, x.n)
		}
	}
	f.Fuzz(func(t *testing.T, strategy, to uint8, from int, part uint32, off uint64, n uint32) {
		i := int(strategy) % len(strategies)
		c := clusters[i]
		c.t = t
		c.prepare(strategies[i])
		c.tryClaim(known[i], claim{int(to) % len(c.relays), from, part, off, n})
	})
}
