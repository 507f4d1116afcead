package collective_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
)

var strategies = collective.Strategies()

// cluster is a set of hosts with a Relay each, and what is on its way between them. The goroutine
// of the test uses it; what goes wrong in a method fails t.
type cluster struct {
	t      testing.TB
	of     []int                // by member: its host
	calls  [][]*collective.Call // by host, then by member
	relays []*collective.Relay  // by host
	sent   []int                // by host: bytes that it sent
	way    []piece              // pieces that were sent and have not arrived
	log    []piece              // all pieces that were sent, in order
	starts []int                // by host: chunks that have begun
	piece  int                  // bytes of a piece at most; 0 = those of defaultRoute
	first  int                  // host that stands first in trees
}

// piece is a collective.Outgoing on its way.
type piece struct {
	from, to int // hosts
	part     uint32
	off      uint64 // bytes
	payload  []byte
	memory   []byte // where Place puts it; nil = it was not placed yet
}

// spread gives every host a fresh Relay and its view of the calls, which are by member: those of
// its own members with memory, the others far. Of has each member's host.
func spread(t testing.TB, calls []*collective.Call, of []int, hosts int) *cluster {
	return spreadOver(t, calls, of, newRelays(hosts))
}

// newRelays returns a fresh Relay for each host.
func newRelays(hosts int) (relays []*collective.Relay) {
	for range hosts {
		relays = append(relays, &collective.Relay{})
	}
	return relays
}

// spreadOver does what spread does, with Relays that may have been used before.
func spreadOver(t testing.TB, calls []*collective.Call, of []int,
	relays []*collective.Relay) *cluster {
	hosts := len(relays)
	c := &cluster{t: t, of: of, relays: relays, sent: make([]int, hosts),
		starts: make([]int, hosts)}
	for h := range hosts {
		var mine []*collective.Call
		for member, call := range calls {
			if of[member] != h {
				far := *call
				far.Far = &collective.Far{}
				if call.Kind != collective.Barrier {
					*far.Far = collective.Far{In: call.InLen(), Out: call.OutLen()}
				}
				far.In, far.Out = nil, nil
				call = &far
			}
			mine = append(mine, call)
		}
		c.calls = append(c.calls, mine)
	}
	return c
}

// buildSchedule returns the schedule that a host makes of its calls; a refusal fails the test.
func buildSchedule(t testing.TB, calls []*collective.Call) *collective.Schedule {
	t.Helper()
	var s collective.Schedule
	if calls[0].Kind == collective.Send {
		s.BuildTransfer(calls[0], calls[1])
	} else if err := s.Build(calls); err != nil {
		t.Fatal(err)
	}
	return &s
}

// prepare begins a use of all relays with a strategy, and forgets what was on its way. All hosts
// must have the same schedule.
func (c *cluster) prepare(strategy collective.Strategy) {
	c.t.Helper()
	moves := buildSchedule(c.t, c.calls[0]).Moves
	for h, r := range c.relays {
		s := buildSchedule(c.t, c.calls[h])
		if !reflect.DeepEqual(c.commonMoves(s.Moves), c.commonMoves(moves)) {
			c.t.Fatalf("hosts 0 and %d have different schedules", h)
		}
		route := defaultRoute(strategy)
		if c.piece > 0 {
			route.Piece = c.piece
		}
		route.First = c.first
		r.Prepare(s, c.calls[h], collective.Sites{Of: c.of, N: len(c.relays), Self: h}, route)
	}
	clear(c.sent)
	clear(c.starts)
	c.way, c.log = nil, nil
}

// commonMoves returns moves as all hosts must have them: of the outputs of a host that are one
// memory, only which host it is counts.
func (c *cluster) commonMoves(moves []collective.Move) []collective.Move {
	if c.calls[0][0].Shared.Name == "" {
		return moves
	}
	moves = slices.Clone(moves)
	for i := range moves {
		m := &moves[i]
		m.Dst = slices.Clone(m.Dst)
		for j := range m.Dst {
			m.Dst[j].Member = c.of[m.Dst[j].Member]
		}
		m.Dst = slices.Compact(
			slices.SortedFunc(slices.Values(m.Dst), func(a, b collective.Span) int {
				return a.Member - b.Member
			}))
	}
	return moves
}

// defaultRoute returns a route along a strategy with pieces of the usual length.
func defaultRoute(s collective.Strategy) collective.Route {
	return collective.Route{Strategy: s, Piece: 256 << 10}
}

// send puts what a relay has to send on its way: it appends it to c.way and c.log. A piece that is
// empty, too long, or for its sender fails the test.
func (c *cluster) send(from int, out []collective.Outgoing) {
	for _, o := range out {
		if len(o.Payload) == 0 || len(o.Payload) > 1<<20 || o.To == from {
			c.t.Fatalf("host %d sends %d bytes to host %d", from, len(o.Payload), o.To)
		}
		p := piece{from: from, to: o.To, part: o.Part, off: o.Offset, payload: o.Payload}
		c.sent[from] += len(o.Payload)
		c.way, c.log = append(c.way, p), append(c.log, p)
	}
}

// place asks the receiver for the memory of a piece, and keeps it in p; a second request must fail.
func (c *cluster) place(p *piece) {
	r := c.relays[p.to]
	p.memory = r.Place(p.from, p.part, p.off, uint32(len(p.payload)))
	if len(p.memory) != len(p.payload) {
		c.t.Fatalf("host %d has no place for %d bytes of part %d at %d from host %d", p.to,
			len(p.payload), p.part, p.off, p.from)
	}
	if again := r.Place(p.from, p.part, p.off, uint32(len(p.payload))); again != nil {
		c.t.Fatalf("host %d gives the same memory twice", p.to)
	}
}

// arrive copies a placed piece to its memory and tells the receiver, and sends what that has to
// send then. To tell it again must do nothing.
func (c *cluster) arrive(p *piece, s *collective.Scratch) {
	r := c.relays[p.to]
	copy(p.memory, p.payload)
	c.send(p.to, r.Arrived(p.from, p.part, p.off, uint32(len(p.payload)), s, nil))
	if out := r.Arrived(p.from, p.part, p.off, uint32(len(p.payload)), s, nil); len(out) > 0 {
		c.t.Fatalf("host %d hears twice of a piece and sends again", p.to)
	}
}

// exchange runs all relays in a random order until nothing is left to do; they must be done then.
func (c *cluster) exchange(rng *rand.Rand) {
	c.t.Helper()
	c.takeActions(rng, math.MaxInt)
	for h, r := range c.relays {
		if !r.Done() {
			c.t.Fatalf("nothing is on its way, but host %d is not done", h)
		}
	}
}

// takeActions takes so many actions in a random order, or as many as there are: a piece is placed,
// a piece arrives, or a chunk is begun. It returns how many it took.
func (c *cluster) takeActions(rng *rand.Rand, most int) int {
	c.t.Helper()
	s := collective.NewScratch()
	order := make([][]int, len(c.relays))
	for h, r := range c.relays {
		order[h] = rng.Perm(r.Chunks())
	}
	for taken := range most {
		left := len(c.way)
		for h := range order {
			left += len(order[h]) - c.starts[h]
		}
		if left == 0 {
			return taken
		}
		i := rng.IntN(left)
		if i < len(c.way) {
			if p := &c.way[i]; p.memory == nil {
				c.place(p)
				continue
			}
			p := c.way[i]
			c.way[i] = c.way[len(c.way)-1]
			c.way = c.way[:len(c.way)-1]
			c.arrive(&p, s)
			continue
		}
		i -= len(c.way)
		for h := range order {
			if rest := len(order[h]) - c.starts[h]; i >= rest {
				i -= rest
				continue
			}
			c.starts[h]++
			c.send(h, c.relays[h].Chunk(order[h][c.starts[h]-1], s, nil))
			break
		}
	}
	return most
}

// runRounds runs all relays in rounds, in each of which all that was sent in the round before
// arrives, and returns the number of rounds. Nothing is delivered to the other outputs.
func (c *cluster) runRounds() (n int) {
	s := collective.NewScratch()
	for h, r := range c.relays {
		for i := range r.Chunks() {
			c.send(h, r.Chunk(i, s, nil))
		}
	}
	for ; len(c.way) > 0; n++ {
		way := c.way
		c.way = nil
		for i := range way {
			c.place(&way[i])
			c.arrive(&way[i], s)
		}
	}
	return n
}

// deliver has all relays write what is left of the outputs, in a random order.
func (c *cluster) deliver(rng *rand.Rand) {
	s := collective.NewScratch()
	for _, r := range c.relays {
		for _, i := range rng.Perm(r.Deliveries()) {
			r.Deliver(i, s)
		}
	}
}

// abortAfter begins a use with fresh relays, and reverts it after at most so many actions. The
// memory of the calls must then be as before. The relays of c are as before, too.
func (c *cluster) abortAfter(rng *rand.Rand, strategy collective.Strategy, most int) {
	c.t.Helper()
	var before [][]byte
	for member, h := range c.of {
		before = append(before, bytes.Clone(c.calls[h][member].In),
			bytes.Clone(c.calls[h][member].Out))
	}
	used := c.relays
	c.relays = newRelays(len(used)) // a Relay that was given up is used no more
	c.prepare(strategy)
	taken := c.takeActions(rng, most)
	for _, r := range c.relays {
		for _, i := range rng.Perm(r.Pieces()) {
			r.Revert(i)
			r.Revert(i)
		}
	}
	for member, h := range c.of {
		if call := c.calls[h][member]; !bytes.Equal(call.In, before[2*member]) ||
			!bytes.Equal(call.Out, before[2*member+1]) {
			c.t.Fatalf("the memory of member %d is not what it was before a use that was given "+
				"up after %d actions", member, taken)
		}
	}
	c.relays = used
}
