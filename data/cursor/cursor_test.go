package cursor_test

import (
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/data/cursor"
)

// newCursor returns the cursor at the start of data that New must accept; else it ends the test.
func newCursor(t interface{ Fatal(...any) }, samples, batch, seed uint64,
	shuffle bool) cursor.Cursor {
	c, err := cursor.New(samples, batch, seed, shuffle)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// repeatDone returns, by rank of size workers, that all are done, or that none is.
func repeatDone(size int, done bool) []bool { return slices.Repeat([]bool{done}, size) }

// A book counts how often each position of an epoch was committed, independently of the cursor.
type book struct {
	times []int  // by position
	epoch uint64 // of the newest step that was entered
}

// enter records the parts of the step from c, of which those that are done count, and ends the test
// unless they are what every batch must be.
func (b *book) enter(t *rapid.T, c cursor.Cursor, parts [][]cursor.Span, done []bool) {
	if c.Epoch != b.epoch {
		for p, n := range b.times {
			if n != 1 {
				t.Fatalf("epoch %d: position %d was committed %d times", b.epoch, p, n)
			}
		}
		clear(b.times)
		b.epoch++
	}
	open := 0
	for _, n := range b.times {
		open += 1 - n
	}
	seen := map[uint64]bool{}
	lengths := make([]int, len(parts))
	for rank, part := range parts {
		for _, s := range part {
			for p := s.From; p < s.To; p++ {
				if seen[p] {
					t.Fatalf("position %d is in two parts: %v", p, parts)
				}
				seen[p] = true
				lengths[rank]++
				if done[rank] {
					b.times[p]++
				}
			}
		}
	}
	want := min(int(c.Batch)*int(max(c.Round, 1)), open)
	if left := int(countSpans(c.Left)); c.Apart && left > 0 {
		want = left
	}
	if len(seen) != want || c.Count() != uint64(want) {
		t.Fatalf("a batch of %d samples, Count says %d, expected %d: %v", len(seen), c.Count(),
			want, parts)
	}
	if len(c.Shares) == len(parts) {
		checkShares(t, c, lengths)
		return
	}
	sorted := slices.IsSortedFunc(lengths, func(a, b int) int { return b - a })
	taking := slices.DeleteFunc(slices.Clone(lengths), func(n int) bool { return n == 0 })
	roomy := c.Batch >= 2*uint64(len(parts)) // no part of one position
	if !sorted || taking[0]-taking[len(taking)-1] > 1 ||
		!roomy && lengths[0]-lengths[len(lengths)-1] > 1 ||
		roomy && taking[len(taking)-1] == 1 && len(seen) > 1 ||
		len(seen) >= 2*len(parts) && len(taking) < len(parts) {
		t.Fatalf("uneven parts of %d, of a batch of %d: %v", len(seen), c.Batch, lengths)
	}
}

// checkShares ends the test unless the lengths of the parts of a batch are as the shares say.
func checkShares(t *rapid.T, c cursor.Cursor, lengths []int) {
	total, count, most := 0, 0, slices.Max(c.Shares)
	for rank, s := range c.Shares {
		total, count = total+int(s), count+lengths[rank]
	}
	if slices.Min(c.Shares) == most {
		return
	}
	roomy := c.Batch >= 2*uint64(len(lengths)) // no part of one position
	for rank, n := range lengths {
		quota, off := float64(count)*float64(c.Shares[rank])/float64(total), 1.0
		if roomy {
			off = 3
		}
		if math.Abs(quota-float64(n)) >= off || roomy && n == 1 && count > 1 ||
			c.Shares[rank] == 0 && n > 0 {
			t.Fatalf("rank %d with %d of %d takes %d of %d positions", rank, c.Shares[rank], total,
				n, count)
		}
		for other, m := range lengths {
			if c.Shares[rank] > c.Shares[other] && n < m {
				t.Fatalf("shares %v give parts of %v positions", c.Shares, lengths)
			}
		}
	}
}

// checkPieces ends the test unless the pieces of each part are the part again, in as many local
// steps as have no more than a batch of samples, and as even as they may be.
func checkPieces(t *rapid.T, c cursor.Cursor, parts [][]cursor.Span) {
	steps := int(c.LocalSteps())
	if most := max(int(c.Round), 1); steps != max(1, min(most,
		(int(c.Count())+int(c.Batch)-1)/int(c.Batch))) {
		t.Fatalf("%d local steps of up to %d for %d samples in batches of %d", steps, most,
			c.Count(), c.Batch)
	}
	for rank, part := range parts {
		var together []uint64
		lengths := make([]int, steps)
		for i := range steps {
			positions := positionsOf(c.Piece(uint64(i), rank, len(parts)))
			together, lengths[i] = append(together, positions...), len(positions)
		}
		if diff := cmp.Diff(positionsOf(part), together); diff != "" {
			t.Fatalf("the pieces of rank %d of %d (-part +pieces): %s", rank, len(parts), diff)
		}
		roomy, n := c.Batch >= 2*uint64(len(parts)), len(together)
		most, least := slices.Max(lengths), slices.Min(lengths)
		if !slices.IsSortedFunc(lengths, func(a, b int) int { return b - a }) ||
			most-least > 1 && (!roomy || n >= 2*steps) ||
			roomy && n > 1 && slices.Contains(lengths, 1) {
			t.Fatalf("uneven pieces of %d in batches of %d for %d: %v", n, c.Batch, len(parts),
				lengths)
		}
	}
}

// Whatever workers there are and are lost, and whatever the batch, the round and the shares are,
// every position is committed once an epoch, and an encoding comes back as it was.
func TestEverySampleExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.Uint64Range(1, 200).Draw(t, "samples")
		c := newCursor(t, samples, rapid.Uint64Range(1, 64).Draw(t, "batch"),
			rapid.Uint64().Draw(t, "seed"), true)
		c.Apart = rapid.Bool().Draw(t, "apart")
		b := &book{times: make([]int, samples)}
		bound := &leftBound{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if c.TakesBatch() && rapid.IntRange(0, 3).Draw(t, "change") == 0 {
				c = c.WithBatch(rapid.Uint64Range(1, 64).Draw(t, "batch"))
				c = c.WithRound(rapid.Uint32Range(0, 5).Draw(t, "round"))
			}
			size := rapid.IntRange(1, 12).Draw(t, "size")
			done := rapid.SliceOfN(rapid.Bool(), size, size).Draw(t, "done")
			if n := rapid.IntRange(0, 14).Draw(t, "shares"); n < 2 {
				c = c.WithShares(nil)
			} else if n <= size {
				c = c.WithShares(append([]uint16{rapid.Uint16Min(1).Draw(t, "first")},
					rapid.SliceOfN(rapid.Uint16Range(0, 9), size-1, size-1).Draw(t, "others")...))
			}
			if rapid.Bool().Draw(t, "calm") {
				done = repeatDone(size, true)
			}
			before := slices.Clone(c.Left)
			b.enter(t, c, c.Parts(size), done)
			checkPieces(t, c, c.Parts(size))
			next := c.Commit(size, done)
			if diff := cmp.Diff(before, c.Left); diff != "" {
				t.Fatalf("the commit changed the cursor before it: %s", diff)
			}
			bound.check(t, c, next, done)
			if next.Step != c.Step+c.LocalSteps() {
				t.Fatalf("step %d follows %d", next.Step, c.Step)
			}
			c = roundTrip(t, next)
		}
		// and the rest of the epoch, so that its last batches are checked too
		for epoch := c.Epoch; c.Epoch == epoch; {
			b.enter(t, c, c.Parts(3), repeatDone(3, true))
			c = c.Commit(3, repeatDone(3, true))
		}
		b.enter(t, c, c.Parts(1), repeatDone(1, true))
	})
}

// leftBound is what the size of Left is promised to stay within. The zero value is for a cursor
// that has nothing left.
type leftBound struct {
	runs  int    // runs of neighbouring ranks that were lost since nothing was left
	round uint64 // the samples of the largest round since then
}

// check ends the test unless the promises about the size of Left are kept after the commit from c
// to next, in which those that are done took part.
func (b *leftBound) check(t *rapid.T, c, next cursor.Cursor, done []bool) {
	if len(c.Left) == 0 {
		*b = leftBound{}
	}
	b.round = max(b.round, c.Batch*max(uint64(c.Round), 1))
	for rank := range done {
		if !done[rank] && (rank == 0 || done[rank-1]) {
			b.runs++
		}
	}
	total := countSpans(next.Left)
	if len(next.Left) > b.runs || total > b.round || next.Next < c.Next && next.Epoch == c.Epoch {
		t.Fatalf("from %+v to %+v: %d samples in %d spans are left after %d lost runs, the "+
			"largest round had %d", c, next, total, len(next.Left), b.runs, b.round)
	}
}

// countSpans returns the number of positions of spans.
func countSpans(spans []cursor.Span) (n uint64) {
	for _, s := range spans {
		n += s.Len()
	}
	return n
}

// roundTrip returns a cursor that was encoded and parsed; it ends the test if that is another one.
func roundTrip(t *rapid.T, c cursor.Cursor) cursor.Cursor {
	b, err := c.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	back, err := cursor.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, back); diff != "" {
		t.Fatalf("another cursor comes back: %s", diff)
	}
	return back
}

// Another epoch and another seed have other orders, and data that is not shuffled its own.
func TestEpochsHaveTheirOwnOrder(t *testing.T) {
	c := newCursor(t, 100, 100, 7, true)
	first, second := samplesOf(c.Order()), samplesOf(c.Commit(2, repeatDone(2, true)).Order())
	if slices.Equal(first, second) {
		t.Error("the second epoch has the order of the first")
	}
	if other := samplesOf(newCursor(t, 100, 100, 8, true).Order()); slices.Equal(first, other) {
		t.Error("another seed has the same order")
	}
	if plain := samplesOf(newCursor(t, 100, 100, 7, false).Order()); !slices.IsSorted(plain) {
		t.Error("data that is not shuffled is not in order")
	}
}

// With Apart, the steps from one with nothing left before it to the next such one hold together the
// batch that a run without a loss has there.
func TestApartStepsCompleteABatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCursor(t, rapid.Uint64Range(1, 200).Draw(t, "samples"),
			rapid.Uint64Range(1, 64).Draw(t, "batch"), 1, true)
		c.Apart = true
		whole := c
		for range rapid.IntRange(1, 20).Draw(t, "batches") {
			if batch := rapid.Uint64Range(0, 64).Draw(t, "batch"); batch > 0 {
				c, whole = c.WithBatch(batch), whole.WithBatch(batch)
			}
			round := rapid.Uint32Range(0, 3).Draw(t, "round")
			c, whole = c.WithRound(round), whole.WithRound(round)
			var got []uint64
			for begun := false; !begun || len(c.Left) > 0; begun = true {
				size := rapid.IntRange(1, 12).Draw(t, "size")
				done := rapid.SliceOfN(rapid.Bool(), size, size).Draw(t, "done")
				for rank, part := range c.Parts(size) {
					if n := len(positionsOf(part)); uint64(n) != c.PartLen(rank, size) {
						t.Fatalf("rank %d of %d gets %d positions, not %d", rank, size, n,
							c.PartLen(rank, size))
					}
					if done[rank] {
						got = append(got, positionsOf(part)...)
					}
				}
				c = c.Commit(size, done)
			}
			slices.Sort(got)
			if diff := cmp.Diff(positionsOf(whole.Part(0, 1)), got); diff != "" {
				t.Fatalf("the samples of a batch (-without a loss +with): %s", diff)
			}
			whole = whole.Commit(1, []bool{true})
			if c.Epoch != whole.Epoch || c.Next != whole.Next {
				t.Fatalf("the next batch is at %d of epoch %d, without a loss at %d of %d", c.Next,
					c.Epoch, whole.Next, whole.Epoch)
			}
		}
	})
}

// positionsOf returns the positions of spans, in their order.
func positionsOf(spans []cursor.Span) (positions []uint64) {
	for _, s := range spans {
		for p := s.From; p < s.To; p++ {
			positions = append(positions, p)
		}
	}
	return positions
}

// A batch that is smaller than what lost workers left keeps the rest of that for the batches after.
func TestSmallerBatchKeepsWhatIsLeft(t *testing.T) {
	c := newCursor(t, 1000, 128, 0, false).Commit(4, []bool{false, true, false, true})
	c = c.WithBatch(24).Commit(2, []bool{true, false}) // of 0 to 32 and 64 to 96
	want := []cursor.Span{{From: 12, To: 32}, {From: 64, To: 96}}
	if diff := cmp.Diff(want, c.Left); diff != "" || c.Next != 128 || c.Committed() != 76 {
		t.Fatalf("%+v (-want +got): %s", c, diff)
	}
	for range 2 {
		c = c.Commit(3, repeatDone(3, true))
	}
	want = []cursor.Span{{From: 92, To: 96}}
	if diff := cmp.Diff(want, c.Left); diff != "" || c.Next != 128 || c.Committed() != 124 {
		t.Fatalf("%+v (-want +got): %s", c, diff)
	}
	if c = c.Commit(3, repeatDone(3, true)); len(c.Left) > 0 || c.Next != 148 {
		t.Errorf("the batch after goes on at %+v", c)
	}
}

// The last round of an epoch has fewer steps, and a worker with few samples of it takes none in
// some of them rather than a single one. A round that is made smaller keeps the rest of what is
// left.
func TestRound(t *testing.T) {
	c := newCursor(t, 100, 8, 0, false).WithRound(4) // 32 a round, and in the end 4
	for i, want := range []struct{ step, steps uint64 }{{0, 4}, {4, 4}, {8, 4}, {12, 1}, {13, 4}} {
		if c.Step != want.step || c.LocalSteps() != want.steps {
			t.Fatalf("round %d begins at step %d with %d steps, not %v", i, c.Step, c.LocalSteps(),
				want)
		}
		c = c.Commit(3, repeatDone(3, true))
	}
	c = newCursor(t, 11, 8, 0, false).WithRound(4) // two steps: parts of 3, 3, 3 and 2
	for step, want := range [][]cursor.Span{{{From: 9, To: 11}}, nil} {
		if diff := cmp.Diff(want, c.Piece(uint64(step), 3, 4)); diff != "" {
			t.Errorf("step %d of a part of two (-want +got): %s", step, diff)
		}
	}
	c = newCursor(t, 1000, 8, 0, false).WithRound(16).Commit(2, []bool{false, true}).WithRound(2)
	if c.Count() != 16 || countSpans(c.Left) != 64 {
		t.Fatalf("%d samples follow %d that are left", c.Count(), countSpans(c.Left))
	}
	c = c.Commit(1, []bool{true})
	if diff := cmp.Diff([]cursor.Span{{From: 16, To: 64}}, c.Left); diff != "" || c.Step != 18 {
		t.Errorf("after step %d is left (-want +got): %s", c.Step, diff)
	}
}

// A batch, a round or shares that no step can have panic.
func TestWhatNoStepCanHavePanics(t *testing.T) {
	c := newCursor(t, 10, 5, 0, false)
	for i, with := range []func(){
		func() { c.WithBatch(0) }, func() { c.WithBatch(cursor.MaxSamples + 1) },
		func() { c.WithShares([]uint16{0, 0}) },
		func() { c.WithRound(cursor.MaxRound + 1) }, func() { c.Piece(1, 0, 1) },
		func() { c.WithShares(make([]uint16, cursor.MaxShares+1)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("case %d passes", i)
				}
			}()
			with()
		}()
	}
}

// Shares divide a batch in whole numbers, ties go to the lower rank, and equal ones divide it as
// none do.
func TestShares(t *testing.T) {
	for _, x := range []struct {
		batch  uint64
		shares []uint16
		want   []uint64
	}{
		{16, []uint16{2, 1, 1}, []uint64{8, 4, 4}},
		{10, []uint16{2, 1, 1}, []uint64{6, 2, 2}}, // pairs
		{7, []uint16{1, 3, 3}, []uint64{2, 3, 2}},  // and one more
		{3, []uint16{1, 2, 2}, []uint64{1, 1, 1}},
		{2, []uint16{1, 2, 2}, []uint64{0, 1, 1}},
		{7, []uint16{5, 5, 5}, []uint64{3, 2, 2}},
		{7, []uint16{5, 1}, []uint64{7, 0}},
		{7, []uint16{5, 1, 1, 1}, []uint64{4, 1, 1, 1}},
		{7, []uint16{5, 1, 9, 1, 1}, []uint64{2, 1, 4, 0, 0}},
		{cursor.MaxSamples, []uint16{65535, 65535, 65534},
			[]uint64{1537236491717558474, 1537236491717558474, 1537213034992270956}},
	} {
		var got []uint64
		for _, part := range newCursor(t, cursor.MaxSamples, x.batch, 0, false).WithShares(
			x.shares).Parts(len(x.shares)) {
			got = append(got, countSpans(part))
		}
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%d by %v (-want +got): %s", x.batch, x.shares, diff)
		}
	}
}

// The last batch of an epoch, and what was lost of it, is divided among the workers: in no parts of
// one where a whole batch has two for each.
func TestTailIsShared(t *testing.T) {
	c := newCursor(t, 10, 8, 0, false).Commit(2, []bool{true, false}) // positions 4 to 8 were lost
	want := [][]cursor.Span{{{From: 4, To: 6}}, {{From: 6, To: 8}}, {{From: 8, To: 10}}, nil}
	if diff := cmp.Diff(want, c.Parts(4)); diff != "" {
		t.Errorf("parts of the last batch (-want +got): %s", diff)
	}
	c = c.Commit(4, []bool{false, true, false, true})
	want = [][]cursor.Span{{{From: 4, To: 5}}, {{From: 5, To: 6}}, {{From: 8, To: 9}},
		{{From: 9, To: 10}}, nil}
	if diff := cmp.Diff(want, c.Parts(5)); diff != "" {
		t.Errorf("parts of what was lost of it (-want +got): %s", diff)
	}
	if c = c.Commit(1, repeatDone(1, true)); c.Epoch != 1 || c.Next != 0 || c.Step != 3 {
		t.Errorf("the next epoch has not begun: %+v", c)
	}
}

// Every second of a thousand workers is lost: more than an encoding holds. The step can be run
// again.
func TestTooManyLosses(t *testing.T) {
	const size = 1000
	c := newCursor(t, 1<<40, 100*size, 0, true)
	done := repeatDone(size, true)
	for rank := 0; rank < size; rank += 2 {
		done[rank] = false
	}
	next := c.Commit(size, done)
	if next.Fits() || len(next.Left) != size/2 {
		t.Fatalf("%d spans fit", len(next.Left))
	}
	if _, err := next.AppendBinary(nil); err == nil {
		t.Error("a cursor beyond the limit was encoded")
	}
	if next = next.Commit(size/2, repeatDone(size/2, true)); len(next.Left) > 0 ||
		next.Next != 150*size {
		t.Errorf("the losses were not made good: %d spans, next %d", len(next.Left), next.Next)
	}
	if !c.Commit(size/2, repeatDone(size/2, true)).Fits() {
		t.Error("the step does not fit when it is run again")
	}
}

// With the most samples there can be, parts join without a gap and no sum or product overflows.
func TestLargestNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCursor(t, cursor.MaxSamples,
			cursor.MaxSamples-rapid.Uint64Range(0, 10).Draw(t, "less"),
			0, true)
		if rapid.Bool().Draw(t, "rounds") {
			c = c.WithRound(cursor.MaxRound)
		}
		size := 1 << rapid.IntRange(0, 10).Draw(t, "size")
		end := uint64(0)
		for _, part := range c.Parts(size) {
			if len(part) != 1 || part[0].From != end {
				t.Fatalf("the parts have a gap at %d: %v", end, part)
			}
			end = part[0].To
		}
		if end != c.Count() || end < c.Batch || bits.LeadingZeros64(end) == 0 {
			t.Fatalf("the parts end at %d, the batch at %d", end, c.Batch)
		}
	})
}

// A step without a loss allocates nothing.
func TestCalmStepAllocatesNothing(t *testing.T) {
	c, done := newCursor(t, 1<<40, 4096, 1, true), repeatDone(64, true)
	if n := testing.AllocsPerRun(100, func() { c = c.Commit(64, done) }); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// Numbers of samples out of range are refused.
func TestNewRefuses(t *testing.T) {
	for _, c := range []struct{ samples, batch uint64 }{{0, 1}, {1, 0}, {cursor.MaxSamples + 1, 1},
		{1, cursor.MaxSamples + 1}} {
		if _, err := cursor.New(c.samples, c.batch, 0, true); err == nil {
			t.Errorf("%d samples in batches of %d pass", c.samples, c.batch)
		}
	}
}
