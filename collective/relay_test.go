package collective_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

var kinds = []collective.Kind{collective.AllReduce, collective.ReduceScatter, collective.AllGather,
	collective.Broadcast, collective.Reduce,
	collective.Gather, collective.Scatter, collective.AllToAll, collective.Send, collective.Barrier}

// sampleCalls draws the calls of one collective, by rank, and their memory, with uneven blocks of n
// elements in all, and in place where that is allowed. For a Send there must be two members.
func sampleCalls(rng *rand.Rand, kind collective.Kind, d tensor.DType, op collective.Reduction,
	members,
	n int) []*collective.Call {
	blocks, root, inPlace, size := randomParts(rng, n, members), rng.IntN(members),
		rng.IntN(2) == 0,
		d.Size()
	rng.Shuffle(members, func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
	even := rng.IntN(2) == 0
	calls, off := make([]*collective.Call, members), 0
	for r := range calls {
		c := &collective.Call{Kind: kind, DType: d, Reduction: op, Peer: root, Shape: []int{n},
			Weight: 1}
		if !even {
			c.Weight = float64(rng.IntN(3))
		}
		if kind == collective.Barrier {
			c.DType = 0
		}
		whole, block := randomElements(rng, d, n), blocks[r]*size
		own := whole[off*size : off*size+block]
		switch kind {
		case collective.AllReduce:
			c.In, c.Out = whole, make([]byte, n*size)
			if inPlace {
				c.Out = c.In
			}
		case collective.ReduceScatter:
			c.In, c.Out = whole, make([]byte, block)
			if inPlace {
				c.Out = own
			}
		case collective.AllGather:
			c.In, c.Out = bytes.Clone(own), make([]byte, n*size)
			if inPlace {
				c.In, c.Out = own, whole
			}
		case collective.Reduce:
			c.In = whole
			if r == root {
				c.Out = make([]byte, n*size)
			}
		case collective.Broadcast:
			c.Out = make([]byte, n*size)
			if r == root {
				c.In, c.Out = whole, nil
				if inPlace {
					c.Out = c.In
				}
			}
		case collective.Gather:
			c.In = own
			if r == root {
				c.Out = make([]byte, n*size)
			}
		case collective.Scatter:
			c.Out = make([]byte, block)
			if r == root {
				c.In = whole
			}
		case collective.AllToAll:
			c.In, c.Splits = whole, randomParts(rng, n, members)
		}
		calls[r] = c
		off += blocks[r]
	}
	switch kind {
	case collective.AllToAll:
		for to, c := range calls {
			total := 0
			for _, sender := range calls {
				total += sender.Splits[to]
			}
			c.Out = make([]byte, total*size)
		}
	case collective.Send:
		calls[0].In, calls[1].Out, calls[1].Kind = randomElements(rng, d, n), make([]byte, n*size),
			collective.Recv
	}
	return calls
}

// randomHosts draws the host of each member.
func randomHosts(rng *rand.Rand, members, hosts int) []int {
	of := make([]int, members)
	for i := range of {
		of[i] = rng.IntN(hosts)
	}
	if rng.IntN(2) == 0 {
		slices.Sort(of) // ranks count host by host
	}
	return of
}

// Whatever the strategy, the timing and the places of the members: what one host would make of it
// comes out. Floating-point numbers that are added or multiplied come out as the tree says.
func TestRelay(t *testing.T) {
	relays := newRelays(5) // one use after another
	for _, kind := range kinds {
		for _, d := range tensor.DTypes() {
			for _, op := range reductionsOf(d) {
				if !kind.Reduces() && op != collective.Sum {
					continue
				}
				for i, strategy := range strategies {
					for _, n := range []int{0, 1, 130, 5000} {
						seed := uint64(kind)<<40 | uint64(d)<<32 | uint64(op)<<24 | uint64(
							i)<<20 | uint64(n)
						testRelay(t, relays, seed, kind, d, op, strategy, n)
					}
				}
			}
		}
	}
}

// Moves of several pieces each give what one host gives, as in TestRelay.
func TestRelayPieces(t *testing.T) {
	relays := newRelays(5)
	for i, strategy := range strategies {
		for _, kind := range []collective.Kind{collective.AllReduce, collective.Reduce,
			collective.Broadcast} {
			testRelay(t, relays, uint64(i), kind, tensor.F64, collective.Mean, strategy, 100_000)
			testRelay(t, relays, uint64(i), kind, tensor.BF16, collective.Sum, strategy, 200_000)
		}
	}
}

// testRelay makes one collective of n elements over random hosts, with some of the relays, which
// may be at most 5: aborted twice, then in full, and fails the test where the outputs are not those
// of one host. All that is drawn follows from the seed.
func testRelay(t *testing.T, relays []*collective.Relay, seed uint64, kind collective.Kind,
	d tensor.DType, op collective.Reduction, strategy collective.Strategy, n int) {
	rng := rand.New(rand.NewPCG(seed, 2))
	hosts, members := 2+rng.IntN(4), 1+rng.IntN(8)
	if kind == collective.Send {
		members = 2
	}
	of := randomHosts(rng, members, hosts)
	name := fmt.Sprintf("seed %d: %v of %d %v, %v, %v, members on hosts %v of %d", seed, kind, n, d,
		op, strategy, of, hosts)
	narrow := kind.Reduces() && (d == tensor.F16 || d == tensor.BF16) && rng.IntN(2) == 0
	once := func() []*collective.Call {
		calls := sampleCalls(rand.New(rand.NewPCG(seed, 3)), kind, d, op, members, n)
		for _, c := range calls {
			c.Narrow = narrow
		}
		return calls
	}
	want, got := once(), once()
	if shared := kind == collective.AllReduce ||
		kind == collective.AllGather; shared && rng.IntN(2) == 0 {
		shareOutputs(got, of)
	}
	var inputs [][]byte
	for _, c := range want {
		inputs = append(inputs, bytes.Clone(c.In))
	}
	runChunks(rng, buildSchedule(t, want), want)
	c := spreadOver(t, got, of, relays[:hosts])
	defer func() {
		if t.Failed() {
			t.Log(name)
		}
	}()
	c.piece, c.first = collective.MinPiece<<rng.IntN(5), rng.IntN(8)
	c.abortAfter(rng, strategy, rng.IntN(40))
	c.abortAfter(rng, strategy, math.MaxInt)
	c.prepare(strategy)
	c.exchange(rng)
	c.deliver(rng)
	if kind == collective.Send && of[0] != of[1] && n > 0 && len(c.log) == 0 {
		t.Fatal("nothing was sent")
	}
	exact := !kind.Reduces() || !d.Float() || op == collective.Min || op == collective.Max
	for r := range got {
		if exact && !bytes.Equal(got[r].Out, want[r].Out) {
			t.Fatalf("rank %d has other bytes than on one host", r)
		}
	}
	if !exact {
		o := newOracle(got, inputs, of, strategy)
		o.first = c.first
		o.check(t, got, want)
	}
}

// check fails the test unless got, sums, means or products of floating-point numbers by rank, are
// what the oracle says, and roughly want, those of one host.
func (o *oracle) check(t *testing.T, got, want []*collective.Call) {
	t.Helper()
	d, of := got[0].DType, o.of
	at := 0
	var exact []byte
	for r, c := range got {
		n := c.OutLen()
		switch {
		case n == 0:
			continue
		case c.Kind == collective.ReduceScatter:
			exact = encode(d, o.reduce(at, n, of[r:r+1]))
			at += n
		case c.Kind == collective.Reduce:
			exact = encode(d, o.reduce(0, n, of[r:r+1]))
		case exact == nil:
			exact = encode(d, o.reduce(0, n, of))
		}
		if !bytes.Equal(c.Out, exact) {
			t.Fatalf("rank %d has other bytes than the sum along the trees", r)
		}
		near := decode(d, want[r].Out)
		for i, x := range decode(d, c.Out) {
			if limit := 4 * epsilon(d) * float64(len(got)*len(got)); math.Abs(x-near[i]) > limit {
				t.Fatalf("rank %d, element %d: %v, on one host it is %v", r, i, x, near[i])
			}
		}
	}
}

// oracle says what a collective over several hosts must give: it adds up one element at a time,
// along the trees of a strategy. Its methods are pure functions of their arguments and of it.
type oracle struct {
	calls    []*collective.Call // by member
	xs       [][]float64        // by member: its input
	of       []int              // by member: its host
	strategy collective.Strategy
	first    int       // host that stands first, of those with a part, where there is no root
	scale    []float64 // by member: factor of its input
	total    float64   // factor of the result
}

// newOracle returns an oracle for calls over these inputs, with the scales of a mean.
func newOracle(calls []*collective.Call, inputs [][]byte, of []int,
	strategy collective.Strategy) *oracle {
	o := &oracle{calls: calls, of: of, strategy: strategy, total: 1}
	weights, equal := 0.0, true
	for r, c := range calls {
		o.xs = append(o.xs, decode(c.DType, inputs[r]))
		weights += c.Weight
		equal = equal && c.Weight == calls[0].Weight
	}
	for _, c := range calls {
		o.scale = append(o.scale, 1)
		if c.Reduction == collective.Mean && !equal {
			o.scale[len(o.scale)-1] = o.round(c.Weight / weights)
		}
	}
	if narrow := calls[0].Narrow && calls[0].DType == tensor.F16; equal && narrow &&
		calls[0].Reduction == collective.Mean {
		for i := range o.scale {
			o.scale[i] = o.round(1 / float64(len(calls)))
		}
	} else if calls[0].Reduction == collective.Mean && equal {
		o.total = o.round(1 / float64(len(calls)))
	}
	return o
}

// round returns x rounded to the type of the accumulator: f64 for f64, else f32.
func (o *oracle) round(x float64) float64 {
	if o.calls[0].DType == tensor.F64 {
		return x
	}
	return float64(float32(x))
}

// combine adds two numbers, or multiplies them, as the reduction says.
func (o *oracle) combine(x, y float64) float64 {
	if o.calls[0].Reduction == collective.Prod {
		return o.round(x * y)
	}
	return o.round(x + y)
}

// reduce returns elements at to at+n of the result as the takers, a list of hosts, get them, before
// they are rounded to the type of the calls.
func (o *oracle) reduce(at, n int, takers []int) (ys []float64) {
	var hosts []int
	for r, h := range o.of {
		if o.scale[r] != 0 {
			hosts = append(hosts, h)
		}
	}
	hosts = append(hosts, takers...)
	takers = slices.Compact(slices.Sorted(slices.Values(takers)))
	hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	root := -1
	if len(takers) == 1 {
		root = slices.Index(hosts, takers[0])
	} else {
		hosts = append(hosts[o.first%len(hosts):], hosts[:o.first%len(hosts)]...)
	}
	trees := 1
	if len(hosts) > 1 {
		trees = o.strategy.Trees(len(hosts), root)
	}
	lines := (n + 63) / 64
	for t := range trees {
		parent := make([]int, len(hosts))
		for i := range parent {
			parent[i] = -1
			if len(hosts) > 1 {
				parent[i] = o.strategy.Parent(t, len(hosts), root, i)
			}
		}
		top := slices.Index(parent, -1)
		for e := min(n, lines*t/trees*64); e < min(n, lines*(t+1)/trees*64); e++ {
			y, _ := o.partialSum(hosts, parent, top, top, at+e)
			ys = append(ys, o.round(y*o.total))
		}
	}
	return ys
}

// partialSum returns the partial sum of element e at host i, with all below it in the tree that
// parent is, as the parent gets it; false = none of them gives any. I, top (the root of the tree)
// and the entries of parent are positions in hosts.
func (o *oracle) partialSum(hosts, parent []int, top, i, e int) (acc float64, some bool) {
	add := func(x float64) {
		if acc = o.combine(acc, x); !some {
			acc, some = x, true
		}
	}
	for r, h := range o.of {
		if h == hosts[i] && o.scale[r] != 0 {
			add(o.round(o.xs[r][e] * o.scale[r]))
		}
	}
	for child := range parent {
		if parent[child] == i {
			if x, ok := o.partialSum(hosts, parent, top, child, e); ok {
				add(x)
			}
		}
	}
	if d := o.calls[0].DType; o.calls[0].Narrow && i != top {
		acc = decode(d, encode(d, []float64{acc}))[0]
	}
	return acc, some
}
