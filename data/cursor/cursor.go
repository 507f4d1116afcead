// Package cursor keeps the place of a job in its data: which positions of the epoch the next step
// trains on, who of the workers takes which, and which have been committed. With it every sample is
// trained on exactly once per epoch, whatever joins, leaves or is lost in between.
//
// It is pure: a Cursor is a value, a commit gives the next one, and equal cursors on different
// hosts give equal batches. Python has the same in shoal/cursor.py; docs/formats/cursor.md has the
// encoding and the numbers behind both.
package cursor

import (
	"fmt"
	"math/bits"
)

// MaxSamples bounds samples, batch, epochs and steps, so that no sum of positions overflows.
const MaxSamples = 1 << 62

// MaxRound bounds Cursor.Round.
const MaxRound = 1 << 16

// A Span is the positions from From up to, not including, To.
type Span struct{ From, To uint64 }

// Len returns the number of positions in the span.
func (s Span) Len() uint64 { return s.To - s.From }

// A Cursor is a place in the data. New, Parse, Commit, WithBatch, WithRound and WithShares make
// cursors; change no field, and not what Left and Shares refer to.
//
// From one commit to the next is a round: one optimizer step, or up to Round of them, which each
// worker makes on its own. A worker's part of a round is cut into a piece for each of its local
// steps. Who is lost in a round has committed nothing of it.
//
// The positions below Next that are not in Left are committed. Left goes first into the next round,
// or with Apart is that round. It is never larger than the largest round since nothing was left,
// and larger than a round now only where WithBatch or WithRound has made that smaller. Then a round
// takes the first positions of Left, and the rest stays for those after.
//
// The number of spans in Left is at most the number of runs of neighbouring ranks that were lost
// since nothing was left. A round that reaches all of Left is its k spans and one fresh span, in
// the order of positions, so it has k boundaries. A lost run is one piece of that sequence and
// consists of one span more than it has boundaries inside. The runs do not overlap, so together
// they hold each boundary at most once: k spans become k + runs at most, and none without a loss. A
// round that does not reach all of Left has no fresh span, so there are k - 1 boundaries, and the
// rest of Left is one piece more: again k + runs at most.
type Cursor struct {
	Epoch uint64 // the epoch of the next step; 0 = the first
	Next  uint64 // the first position of the epoch that was never handed out; at most Samples
	// Left is the positions that were handed out in a round and are not committed, because their
	// worker was lost: spans in ascending order that do not touch each other.
	Left    []Span
	Step    uint64 // number of committed optimizer steps, over all epochs
	Samples uint64 // number of samples in an epoch; at least 1
	// Batch is the number of samples of an optimizer step, over all workers. Only the steps of the
	// last round of an epoch have fewer, and with Apart one that completes the one before.
	Batch uint64
	Seed  uint64 // what the order of each epoch follows from
	Plain bool   // whether the data is not shuffled
	// Apart says that Left is a batch of its own, so that all batches hold the same samples as they
	// do without a loss. Then the step after a loss completes the one before.
	Apart bool
	// Round is the number of optimizer steps from one commit to the next, which workers make on
	// their own, at most MaxRound; 0 and 1 = each step is committed. The last round of an epoch may
	// have fewer: LocalSteps.
	Round uint32
	// Shares has the part of the work of each rank, in whole numbers that are compared with each
	// other; nil = all have the same, and so they have where their number is another one than that
	// of the ranks. At most MaxShares, one of them not 0.
	Shares []uint16
}

// New returns the cursor at the start of the first epoch. It fails when samples or batch is not in
// [1, MaxSamples].
func New(samples, batch, seed uint64, shuffle bool) (Cursor, error) {
	c := Cursor{Samples: samples, Batch: batch, Seed: seed, Plain: !shuffle}
	return c, c.validate()
}

// Describe puts the data of the cursor into words, for an error.
func (c Cursor) Describe() string {
	order := fmt.Sprintf("shuffled with seed %d", c.Seed)
	if c.Plain {
		order = "in their own order"
	}
	return fmt.Sprintf("%d samples in batches of %d, %s", c.Samples, c.Batch, order)
}

// SameData reports whether two cursors are places in the same data: as many samples, in the same
// batches and order. Apart may differ.
func (c Cursor) SameData(o Cursor) bool { return c.SameSamples(o) && c.Batch == o.Batch }

// SameSamples reports whether two cursors are places in the same data but for the batch: as many
// samples, in the same order.
func (c Cursor) SameSamples(o Cursor) bool {
	return c.Samples == o.Samples && c.Seed == o.Seed && c.Plain == o.Plain
}

// WithBatch returns the same place with batches of n samples from the next step on; c stays as it
// is. Whatever the batches are, each sample is trained on once. Where TakesBatch is false, a batch
// that lost workers have left incomplete is completed all the same, by the next step. It panics
// when n is not in [1, MaxSamples].
func (c Cursor) WithBatch(n uint64) Cursor {
	if n < 1 || n > MaxSamples {
		panic(fmt.Sprintf("cursor: a batch of %d samples; it takes 1 to 2^62", n))
	}
	c.Batch = n
	return c
}

// WithShares returns the same place with the next batches divided by other shares, which it keeps;
// c stays as it is. The result of a step does not depend on them, but for rounding: each sample
// counts as much. It panics where there are more than MaxShares, or all of them are 0.
func (c Cursor) WithShares(shares []uint16) Cursor {
	c.Shares = shares
	if err := c.validateSetting(); err != nil {
		panic(err.Error())
	}
	return c
}

// WithRound returns the same place with rounds of n optimizer steps from the next one on; c stays
// as it is. It panics when n is above MaxRound.
func (c Cursor) WithRound(n uint32) Cursor {
	c.Round = n
	if err := c.validateSetting(); err != nil {
		panic(err.Error())
	}
	return c
}

// TakesBatch reports whether the next step can be the first of another batch or of another round.
// With Apart it is not where a batch is incomplete: who trains takes the steps up to its end as
// one.
func (c Cursor) TakesBatch() bool { return !c.Apart || len(c.Left) == 0 }

// Order returns the order of the samples in the cursor's epoch.
func (c Cursor) Order() Order {
	if c.Plain {
		return Identity(c.Samples)
	}
	return NewOrder(c.Samples, c.Seed, c.Epoch)
}

// Count returns how many samples the next round has over all workers: Batch for each of its steps,
// or what the epoch still has when that is less. With Apart it is what is left, if anything is.
func (c Cursor) Count() uint64 {
	left := c.countLeft()
	if c.Apart && left > 0 {
		return left
	}
	rest := left + c.Samples - c.Next
	if over, whole := bits.Mul64(c.Batch, max(uint64(c.Round), 1)); over == 0 {
		return min(whole, rest)
	}
	return rest
}

// LocalSteps returns of how many optimizer steps the next round is: of as many as it takes with
// Batch samples or fewer in each, and of Round at most.
func (c Cursor) LocalSteps() uint64 {
	if c.Round <= 1 {
		return 1
	}
	return min((c.Count()-1)/c.Batch+1, max(uint64(c.Round), 1))
}

// Committed returns how many samples were committed over all epochs, modulo 2^64.
func (c Cursor) Committed() uint64 { return c.Epoch*c.Samples + c.Next - c.countLeft() }

// Commit returns the cursor after the next round, in which size workers took their parts and those
// whose done is true are part of the result. The others' parts come first in the round after, and
// then what of Left the round has not reached; with Apart they are that round. When all of an epoch
// is committed, the next begins. C stays as it is, and shares no memory but Shares with the result.
//
// It is exact whatever was lost, but a result that does not Fit cannot be handed to others. Then
// leave it, and run the round again from c with those who are there: where c fits, so does what a
// round without a loss makes of it. It panics unless len(done) is size, and at least 1.
func (c Cursor) Commit(size int, done []bool) Cursor {
	mustHaveWorkers(size)
	if len(done) != size {
		panic(fmt.Sprintf(
			"cursor: a commit of %d workers says for %d of them whether they are done", size,
			len(done)))
	}
	next, count, left, d := c, c.Count(), c.countLeft(), c.divide(size)
	next.Left = nil
	next.Next += count - min(count, left)
	next.Step += c.LocalSteps()
	for rank := range done {
		if !done[rank] {
			next.Left = c.appendPositions(next.Left, d.start(uint64(rank)), d.start(uint64(rank)+1))
		}
	}
	next.Left = c.appendPositions(next.Left, count, left) // what the round has not reached
	if next.Next == next.Samples && len(next.Left) == 0 {
		next.Epoch++
		next.Next = 0
	}
	return next
}

// mustHaveWorkers panics unless there is a worker to take a part.
func mustHaveWorkers(size int) {
	if size < 1 {
		panic(fmt.Sprintf("cursor: %d workers; it takes one at least", size))
	}
}

// countLeft returns the number of positions in Left.
func (c Cursor) countLeft() (n uint64) {
	for _, s := range c.Left {
		n += s.Len()
	}
	return n
}

// appendPositions appends to dst the positions from the lo-th to before the hi-th of the next
// round. They must come after those that dst has already, whose last span may become longer.
func (c Cursor) appendPositions(dst []Span, lo, hi uint64) []Span {
	for i := 0; i <= len(c.Left) && lo < hi; i++ {
		span := Span{c.Next, c.Samples}
		if i < len(c.Left) {
			span = c.Left[i]
		}
		from, to := min(lo, span.Len()), min(hi, span.Len())
		if from < to {
			dst = appendSpan(dst, Span{span.From + from, span.From + to})
		}
		lo, hi = lo-from, hi-to
	}
	return dst
}

// appendSpan appends a span to dst, or extends the last one of dst, in place, where they touch.
func appendSpan(dst []Span, s Span) []Span {
	if n := len(dst); n > 0 && dst[n-1].To == s.From {
		dst[n-1].To = s.To
		return dst
	}
	return append(dst, s)
}
