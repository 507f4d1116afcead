package cursor_test

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/data/cursor"
)

// vectorsPath is the file of the vectors that Go and Python share. python/tests/test_cursor.py
// reads the same file.
const vectorsPath = "testdata/vectors.json"

// update has TestVectors write the file.
var update = flag.Bool("update", false, "write "+vectorsPath+" anew")

// vectors is what the file holds.
type vectors struct {
	Orders []orderVector
	Runs   []runVector
	Broken []string // hex of encodings that must be refused
}

// orderVector is a part of a shuffled order.
type orderVector struct {
	Samples, Seed, Epoch uint64
	From                 uint64
	Sample               []int64 // at the positions from From on
}

// runVector is data, and the first steps that a job makes with it.
type runVector struct {
	Samples, Batch, Seed uint64
	Shuffle, Apart       bool
	Batches              []uint64 // of the steps in turn, where the cursor takes one; nil = Batch
	Shares               []uint16 // that the cursor begins with; nil = all ranks have the same
	Round                uint32   // that the cursor begins with
	Rounds               []uint32 // of the steps in turn, where the cursor takes one; nil = Round
	Steps                []stepVector
}

// stepVector is a step: what its workers take, and who of them is part of the result.
type stepVector struct {
	Batch  uint64        // of the step; it can be another one than before
	Round  uint32        // of the step; it can be another one than before
	Done   []bool        // by rank
	Parts  [][][2]uint64 // by rank: the spans, each with its From and To
	Pieces [][][2]uint64 // of the last rank, by local step: the spans, as in Parts
	First  []int64       // the samples of rank 0, the first 100 of each span
	After  string        // hex of the encoding after the commit
}

// This package gives what the file says that Python shares; with -update it writes the file.
func TestVectors(t *testing.T) {
	got := makeVectors(t)
	if *update {
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorsPath, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(vectorsPath)
	if err != nil {
		t.Fatal(err)
	}
	var want vectors
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("orders and encodings are a promise; if the change is meant, go test -update "+
			"(-want +got): %s", diff)
	}
	for _, text := range want.Broken {
		b, _ := hex.DecodeString(text)
		if c, err := cursor.Parse(b); err == nil {
			t.Errorf("a broken encoding was read as %+v", c)
		}
	}
}

// makeVectors computes the vectors anew, always the same. A failure ends the test.
func makeVectors(t *testing.T) (v vectors) {
	const most = ^uint64(0)
	for _, o := range []orderVector{
		{Samples: 1}, {Samples: 2, Seed: 1}, {Samples: 3, Seed: 2, Epoch: 1}, {Samples: 4, Seed: 3},
		{Samples: 5, Seed: most, Epoch: 3},
		{Samples: 16, Seed: 4}, {Samples: 17, Seed: 4}, {Samples: 100, Seed: 5, Epoch: 6},
		{Samples: 1797, Seed: 7, Epoch: most, From: 1700},
		{Samples: 50000, Epoch: 1, From: 40000},
		{Samples: 1281167, Seed: 42, Epoch: 89, From: 1281100},
		{Samples: 1 << 32, Seed: 8}, {Samples: 1<<32 + 1, Seed: 8},
		{Samples: 1<<53 + 1, Seed: 9, From: 1 << 52},
		{Samples: cursor.MaxSamples, Seed: 10, From: cursor.MaxSamples - 40},
	} {
		o.Sample = make([]int64, min(40, o.Samples-o.From))
		cursor.NewOrder(o.Samples, o.Seed, o.Epoch).Fill(o.Sample,
			cursor.Span{From: o.From, To: o.From + uint64(len(o.Sample))})
		v.Orders = append(v.Orders, o)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, r := range []runVector{
		{Samples: 103, Batch: 20, Seed: 1, Shuffle: true},
		{Samples: 7, Batch: 20, Seed: 2, Shuffle: true}, {Samples: 64, Batch: 16},
		{Samples: 1, Batch: 1, Seed: most, Shuffle: true},
		{Samples: cursor.MaxSamples, Batch: 50, Seed: 3, Shuffle: true},
		{Samples: 104, Batch: 20, Seed: 4, Apart: true},
		{Samples: 301, Batch: 48, Seed: 5, Shuffle: true, Batches: []uint64{48, 5, 5, 64, 1, 17}},
		{Samples: 301, Batch: 48, Seed: 6, Apart: true, Batches: []uint64{48, 7, 96}},
		{Samples: 301, Batch: 48, Seed: 7, Shuffle: true, Shares: []uint16{3, 1, 2}},
		{Samples: 301, Batch: 7, Seed: 8, Shares: []uint16{1, 0, 7, 5}, Round: 1},
		{Samples: 301, Batch: 64, Seed: 9, Shares: []uint16{9, 10}, Batches: []uint64{64, 3, 17}},
		{Samples: cursor.MaxSamples, Batch: 50, Shares: []uint16{65535, 1, 65534, 2, 3}},
		{Samples: 40, Batch: 8, Round: 1},
		{Samples: 301, Batch: 8, Seed: 10, Shuffle: true, Round: 5},
		{Samples: 301, Batch: 12, Seed: 11, Batches: []uint64{12, 5, 8, 3, 1, 17},
			Rounds: []uint32{5, 0, 3, 9, 1, 2}},
		{Samples: 301, Batch: 8, Round: 4, Apart: true, Rounds: []uint32{4, 2, 7}},
		{Samples: 301, Batch: 16, Round: 3, Shares: []uint16{3, 1, 2}},
		{Samples: cursor.MaxSamples, Batch: 1 << 61, Round: cursor.MaxRound},
	} {
		r.Steps = makeSteps(t, random, r)
		v.Runs = append(v.Runs, r)
	}
	for _, b := range brokenEncodings() {
		v.Broken = append(v.Broken, hex.EncodeToString(b))
	}
	return v
}

// makeSteps returns the first 25 steps of a run, about a third of them with losses drawn from
// random.
func makeSteps(t *testing.T, random *rand.Rand, r runVector) (steps []stepVector) {
	c := newCursor(t, r.Samples, r.Batch, r.Seed, r.Shuffle)
	c.Apart, c.Round = r.Apart, r.Round
	c = c.WithShares(r.Shares)
	for i := range 25 {
		if r.Batches != nil && c.TakesBatch() {
			c = c.WithBatch(r.Batches[i%len(r.Batches)])
		}
		if r.Rounds != nil && c.TakesBatch() {
			c = c.WithRound(r.Rounds[i%len(r.Rounds)])
		}
		done := repeatDone(1+random.IntN(6), true)
		if random.IntN(3) == 0 {
			for rank := range done {
				done[rank] = random.IntN(2) == 0
			}
		}
		step := stepVector{Batch: c.Batch, Round: c.Round, Done: done, First: []int64{}}
		for _, part := range c.Parts(len(done)) {
			step.Parts = append(step.Parts, pairsOf(part))
		}
		for n := range min(c.LocalSteps(), 9) {
			step.Pieces = append(step.Pieces, pairsOf(c.Piece(n, len(done)-1, len(done))))
		}
		for _, s := range c.Part(0, len(done)) {
			s.To = min(s.To, s.From+100) // of a part of 2^61
			dst := make([]int64, s.Len())
			c.Order().Fill(dst, s)
			step.First = append(step.First, dst...)
		}
		c = c.Commit(len(done), done)
		b, err := c.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		step.After = hex.EncodeToString(b)
		steps = append(steps, step)
	}
	return steps
}

// pairsOf returns spans as the file has them.
func pairsOf(spans []cursor.Span) [][2]uint64 {
	pairs := [][2]uint64{}
	for _, s := range spans {
		pairs = append(pairs, [2]uint64{s.From, s.To})
	}
	return pairs
}

// brokenEncodings returns encodings with one thing wrong in each, always the same.
func brokenEncodings() (list [][]byte) {
	c := cursor.Cursor{Next: 40, Step: 2, Samples: 100, Batch: 20,
		Left: []cursor.Span{{From: 22, To: 25}, {From: 30, To: 40}}}
	good, _ := c.AppendBinary(nil)
	list = append(list, nil, good[:55], good[:87], append(slices.Clone(good), 0))
	for _, change := range []func(*cursor.Cursor){
		func(c *cursor.Cursor) { c.Samples = 0 },
		func(c *cursor.Cursor) { c.Samples = cursor.MaxSamples + 1 },
		func(c *cursor.Cursor) { c.Samples = 39 },
		func(c *cursor.Cursor) { c.Batch = 0 },
		func(c *cursor.Cursor) { c.Batch = cursor.MaxSamples + 1 },
		func(c *cursor.Cursor) { c.Epoch = cursor.MaxSamples + 1 },
		func(c *cursor.Cursor) { c.Step = ^uint64(0) },
		func(c *cursor.Cursor) { c.Next = 39 },
		func(c *cursor.Cursor) { c.Next = 101 },
		func(c *cursor.Cursor) { c.Next, c.Left = 100, nil },
		func(c *cursor.Cursor) { c.Left[0].From = 25 },
		func(c *cursor.Cursor) { c.Left[0].From = 26 },
		func(c *cursor.Cursor) { c.Left[0].To = 30 },
		func(c *cursor.Cursor) { c.Left[0].To = 31 },
		func(c *cursor.Cursor) { c.Left[1].To = ^uint64(0) },
		func(c *cursor.Cursor) { c.Left[0], c.Left[1] = c.Left[1], c.Left[0] },
		func(c *cursor.Cursor) { c.Round = cursor.MaxRound + 1 },
		func(c *cursor.Cursor) { c.Shares = []uint16{0, 0} },
		func(c *cursor.Cursor) { c.Shares = slices.Repeat([]uint16{1}, cursor.MaxShares+1) },
	} {
		changed := c
		changed.Left = slices.Clone(c.Left)
		change(&changed)
		b, _ := changed.AppendBinary(nil)
		list = append(list, b)
	}
	withShares := c
	withShares.Shares = []uint16{2, 1}
	shared, _ := withShares.AppendBinary(nil)
	list = append(list, shared[:len(shared)-1], shared[:len(shared)-5],
		append(slices.Clone(shared), 0, 0), slices.Concat(shared[:len(shared)-8], make([]byte, 8)))
	for at, value := range map[int]byte{48: 8, 51: 0x80, 52: 1, 53: 1, 55: 0xFF} {
		b := slices.Clone(good)
		b[at] = value
		list = append(list, b)
	}
	slices.SortFunc(list[len(list)-5:], slices.Compare)
	return list
}

// Whatever is read can be written back to the same bytes, and goes on to train.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(vectorsPath)
	if err != nil {
		f.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		f.Fatal(err)
	}
	for _, text := range v.Broken {
		b, _ := hex.DecodeString(text)
		f.Add(b, uint8(3))
	}
	for _, r := range v.Runs {
		for _, s := range r.Steps[:5] {
			b, _ := hex.DecodeString(s.After)
			f.Add(b, uint8(len(s.Done)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, losses uint8) {
		c, err := cursor.Parse(b)
		if err != nil {
			return
		}
		back, err := c.AppendBinary(nil)
		if err != nil || !slices.Equal(b, back) {
			t.Fatalf("%x came back as %x, %v", b, back, err)
		}
		total, done := uint64(0), make([]bool, 8)
		for rank, part := range c.Parts(len(done)) {
			done[rank] = losses>>rank&1 == 0
			for _, s := range part {
				total += s.Len()
				c.Order().At(s.To - 1)
			}
		}
		if total != c.Count() || total == 0 {
			t.Fatalf("parts of %d samples of a batch of %d", total, c.Count())
		}
		if next := c.Commit(len(done), done); next.Fits() {
			b, _ := next.AppendBinary(nil)
			if _, err := cursor.Parse(b); err != nil && next.Epoch <= cursor.MaxSamples &&
				next.Step <= cursor.MaxSamples {
				t.Fatalf("after a commit: %v", err)
			}
		}
	})
}
