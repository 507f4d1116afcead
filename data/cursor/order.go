package cursor

import (
	"fmt"
	"math/bits"
)

// rounds of the Feistel network. Four give a pseudo-random permutation of a large domain (Luby and
// Rackoff, 1988); with fewer than eight the orders of a few samples are visibly uneven.
const rounds = 8

// An Order says which sample stands at which position of one epoch: a permutation of [0, samples)
// that is computed, not stored, so that every worker knows all of it from a seed. It is a Feistel
// network over the smallest power of four that holds all samples, walked along its cycle until it
// comes back into [0, samples) (Black and Rogaway, 2002): fewer than four evaluations on average.
// An Order never changes, so any goroutine may call its methods.
type Order struct {
	samples uint64
	plain   bool           // whether position i holds sample i; half and keys are unused then
	half    uint           // bits of one half of the domain; at least 1
	keys    [rounds]uint64 // the key of each round
}

// NewOrder returns the shuffled order of an epoch. Another seed or another epoch gives an unrelated
// one. It panics when there are more than MaxSamples.
func NewOrder(samples, seed, epoch uint64) Order {
	o := Identity(samples)
	o.plain = false
	o.half = max(1, uint(bits.Len64(max(samples, 1)-1)+1)/2)
	state := mixBits(seed + golden)
	state = mixBits((state ^ epoch) + golden)
	for i := range o.keys {
		state += golden
		o.keys[i] = mixBits(state)
	}
	return o
}

// Identity returns the order of data that is not shuffled: position i holds sample i. It panics
// when there are more than MaxSamples.
func Identity(samples uint64) Order {
	if samples > MaxSamples {
		panic(fmt.Sprintf("cursor: an order of %d samples, the limit is %d", samples,
			uint64(MaxSamples)))
	}
	return Order{samples: samples, plain: true}
}

// Samples returns how many positions, and so samples, the order has.
func (o Order) Samples() uint64 { return o.samples }

// At returns the sample at a position. It panics when the position is not in [0, samples).
func (o Order) At(position uint64) uint64 {
	if position >= o.samples {
		panic(fmt.Sprintf("cursor: position %d of an order of %d samples", position, o.samples))
	}
	if o.plain {
		return position
	}
	for position = o.permute(position); position >= o.samples; {
		position = o.permute(position)
	}
	return position
}

// Fill writes the samples at the positions of a span to the beginning of dst and returns how many
// these are. It panics when dst is too short.
func (o Order) Fill(dst []int64, from Span) int {
	dst = dst[:from.Len()]
	for i := range dst {
		dst[i] = int64(o.At(from.From + uint64(i)))
	}
	return len(dst)
}

// permute returns the place of x in a permutation of the domain, which may lie outside the samples:
// the network.
func (o *Order) permute(x uint64) uint64 {
	left, right := x>>o.half, x&(1<<o.half-1)
	for _, key := range o.keys {
		left, right = right, left^mixUpperBits(right^key)>>(64-o.half)
	}
	return left<<o.half | right
}

// golden is the increment of splitmix64 (Steele, Lea and Flood, 2014).
const golden = 0x9E3779B97F4A7C15

// mixBits is the output function of splitmix64: it spreads each bit over all 64.
func mixBits(z uint64) uint64 {
	z = mixUpperBits(z)
	return z ^ z>>31
}

// mixUpperBits is mixBits without its last step, which does not reach the upper bits that a round
// takes.
func mixUpperBits(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	return (z ^ z>>27) * 0x94D049BB133111EB
}
