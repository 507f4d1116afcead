package move_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/state/plan"
)

// key is the key of the fingerprints in these tests.
var key = digest.NewKey(7)

// memory is the ranks of a layout as regions, the slots of each one after the other. Workers of a
// move may read and write it at once; all else is for the goroutine of the test, while none does.
type memory struct {
	layout  *layout.Layout
	mu      sync.Mutex             // guards regions, and is held in spoil and fail
	regions [][]byte               // memory of each rank
	at      map[[2]int]int64       // rank and slot -> where its first member is
	spoil   func(b []byte)         // changes bytes on their way to the memory; nil = nothing does
	fail    func(region int) error // why a region cannot be read; nil = all can
}

// newMemory returns zeroed memory for all ranks of a layout.
func newMemory(l *layout.Layout) *memory {
	m := &memory{layout: l, regions: make([][]byte, l.Ranks), at: map[[2]int]int64{}}
	for i := range l.Slots {
		for _, r := range l.Sets[l.Slots[i].Set] {
			m.at[[2]int{int(r), i}] = int64(len(m.regions[r]))
			m.regions[r] = append(m.regions[r],
				make([]byte, l.Slots[i].Bytes()*len(l.Slots[i].Names))...)
		}
	}
	return m
}

// locate returns where the tensor of a place begins.
func (m *memory) locate(p *plan.Place) move.Location {
	s := &m.layout.Slots[p.Slot]
	return move.Location{Region: p.Rank, At: m.at[[2]int{p.Rank, p.Slot}] +
		int64(slices.Index(s.Names, p.Name)*s.Bytes())}
}

// Name implements move.Source.
func (m *memory) Name(region int) string { return fmt.Sprint("rank ", region) }

// Read implements move.Source, out of the region's bytes; it can be made to fail.
func (m *memory) Read(region int, b []byte, at int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		if err := m.fail(region); err != nil {
			return err
		}
	}
	copy(b, m.regions[region][at:][:len(b)])
	return nil
}

// Write implements move.Target, into the region's bytes.
func (m *memory) Write(region int, b []byte, at int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(m.regions[region][at:], b)
	if m.spoil != nil {
		m.spoil(m.regions[region][at:][:len(b)])
	}
	return nil
}

// fillExpected writes what an oracle says that each rank has of tensors laid out by spec: another
// value for each element, and zeros for padding.
func (m *memory) fillExpected(spec *layout.Spec, tensors []layout.Tensor) {
	for rank, arrays := range layouttest.ExpectedArrays(spec, tensors) {
		for i := range m.layout.Slots {
			s := &m.layout.Slots[i]
			if !m.layout.Sets[s.Set].Contains(rank) {
				continue
			}
			for k, name := range s.Names {
				at := m.at[[2]int{rank, i}] + int64(k*s.Bytes())
				for j, e := range arrays[name].Data {
					for x := range s.DType.Size() {
						v := byte(0)
						if e != layouttest.Padding {
							v = byte(1 + (e.Tensor*31+e.Index*7+x*13)%251)
						}
						m.regions[rank][at+int64(j*s.DType.Size()+x)] = v
					}
				}
			}
		}
	}
}

// change is a random change of layout of state in memory.
type change struct {
	model    layouttest.Model
	from, to *layout.Spec // the two layouts
	src, dst *memory      // the state in the two
	job      move.Job     // moves it from src to dst
}

// drawChange draws two layouts of a model, with memory for both, of which that of the first is
// filled, and a job of two workers that moves between them.
func drawChange(t *rapid.T) *change {
	c := &change{model: layouttest.DrawModel(t)}
	c.from, c.to = layouttest.DrawSpec(t, c.model), layouttest.DrawSpec(t, c.model)
	var memories [2]*memory
	for i, spec := range []*layout.Spec{c.from, c.to} {
		l, err := spec.Resolve(c.model.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		memories[i] = newMemory(l)
	}
	c.src, c.dst = memories[0], memories[1]
	c.src.fillExpected(c.from, c.model.Tensors)
	cluster := plan.Cluster{Devices: []int{0, c.dst.layout.Ranks},
		Old: make([]int, c.src.layout.Ranks), New: make([]int, c.dst.layout.Ranks)}
	if rapid.Bool().Draw(t, "fresh") {
		cluster.Devices, cluster.Fresh = cluster.Devices[1:], true
	}
	p, err := plan.Build(c.src.layout, c.dst.layout, cluster)
	if err != nil {
		t.Fatal(err)
	}
	c.job = move.Job{Plan: p, Old: c.src.locate, New: c.dst.locate, Source: c.src, Target: c.dst,
		Key: key, Workers: 2,
		Block: int64(16 * rapid.IntRange(1, 30).Draw(t, "block")), Record: func(move.Record) error {
			return nil
		}}
	return c
}

// checkTarget fails the test unless the target is what the oracle says.
func (c *change) checkTarget(t *rapid.T) {
	want := newMemory(c.dst.layout)
	want.fillExpected(c.to, c.model.Tensors)
	for rank := range want.regions {
		if !bytes.Equal(want.regions[rank], c.dst.regions[rank]) {
			t.Fatalf("from %+v\nto %+v\nrank %d has %x, want %x", *c.from, *c.to, rank,
				c.dst.regions[rank], want.regions[rank])
		}
	}
}

// TestRun moves between random layouts in memory, stops at a random block, and goes on with the
// journal, part of which is lost.
func TestRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChange(t)
		var id move.Identity
		journal, stop := move.AppendHeader(nil, id), rapid.IntRange(0, 30).Draw(t, "stop")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c.job.Record = func(r move.Record) error {
			journal = move.AppendRecord(journal, r)
			if stop--; stop < 0 {
				cancel()
			}
			return nil
		}
		first, err := move.Run(ctx, c.job)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		cut := len(journal) - rapid.IntRange(0, min(40, len(journal)-48)).Draw(t, "cut")
		if c.job.Done, _, err = move.ParseJournal(journal[:cut], id); err != nil {
			t.Fatal(err)
		}
		// the journal is there, the block is not
		if n := len(c.job.Done); n > 0 && rapid.Bool().Draw(t, "lost") {
			b := c.job.Done[n-1].Block
			clear(c.dst.regions[b.Region][b.From:b.To])
		}
		c.job.Record = func(move.Record) error { return nil }
		second, err := move.Run(context.Background(), c.job)
		if err != nil {
			t.Fatal(err)
		}
		c.checkTarget(t)
		if first != nil && !slices.Equal(first.Sums, second.Sums) {
			t.Fatalf("fingerprints %v, then %v", first.Sums, second.Sums)
		}
	})
}

// TestBlocks hears of all blocks before and after: of a plan that is fresh they are of one depth,
// in the order in which they lie, and each ends once.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChange(t)
		var all []move.Block
		left, mu := map[move.Block]int{}, sync.Mutex{}
		c.job.Record = nil
		c.job.Begin = func(blocks []move.Block) {
			all = blocks
			for _, b := range blocks {
				left[b]++
			}
		}
		c.job.End = func(b move.Block) error {
			mu.Lock()
			defer mu.Unlock()
			left[b]--
			return nil
		}
		if _, err := move.Run(context.Background(), c.job); err != nil {
			t.Fatal(err)
		}
		c.checkTarget(t)
		for b, n := range left {
			if n != 0 {
				t.Fatalf("block %v was begun %d times more than it ended", b, n)
			}
		}
		inOrder := slices.IsSortedFunc(all, func(a, b move.Block) int {
			if a.Region != b.Region {
				return a.Region - b.Region
			}
			return int(a.From - b.From)
		})
		if fresh := c.job.Plan.Cluster.Fresh; fresh &&
			(!inOrder || slices.ContainsFunc(all, func(b move.Block) bool {
				return b.Depth != 1
			})) {
			t.Fatalf("blocks %v", all)
		}
		c.job.End = func(move.Block) error { return errors.New("no room") }
		if _, err := move.Run(context.Background(), c.job); len(all) > 0 &&
			(err == nil || !strings.Contains(err.Error(), "no room")) {
			t.Fatalf("an end that fails: %v", err)
		}
	})
}

// TestSpoiled changes bytes on their way to the target: one bit, two elements that change places,
// all of a block by one place.
func TestSpoiled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChange(t)
		how := rapid.IntRange(0, 2).Draw(t, "how")
		at := rapid.IntRange(0, 1<<20).Draw(t, "at")
		changed := false
		c.dst.spoil = func(b []byte) {
			if changed {
				return
			}
			before := slices.Clone(b)
			switch i := at % len(b); how {
			case 0:
				b[i] ^= 1 << (at % 8)
			case 1:
				b[i], b[0] = b[0], b[i]
			case 2:
				copy(b, before[1:])
			}
			changed = !bytes.Equal(before, b)
		}
		_, err := move.Run(context.Background(), c.job)
		if changed != (err != nil) || err != nil &&
			!strings.Contains(err.Error(), "is not what was read back") {
			t.Fatalf("changed %v: %v", changed, err)
		}
	})
}

// TestSourceDies plans anew without a rank that cannot be read, and moves only what is missing;
// when nobody else has what it had, the plan says so.
func TestSourceDies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChange(t)
		dead := rapid.IntRange(0, c.src.layout.Ranks-1).Draw(t, "dead")
		gone := errors.New("gone")
		c.src.fail = func(region int) error {
			if region == dead {
				return gone
			}
			return nil
		}
		c.job.Record = func(r move.Record) error {
			c.job.Done = append(c.job.Done, r)
			return nil
		}
		_, err := move.Run(context.Background(), c.job)
		if err != nil {
			var e *move.SourceError
			if !errors.As(err, &e) || e.Region != dead || !errors.Is(err, gone) {
				t.Fatal(err)
			}
			cluster := c.job.Plan.Cluster
			cluster.Old[dead] = plan.Lost
			p, err := plan.Build(c.src.layout, c.dst.layout, cluster)
			var lost *plan.LostError
			if errors.As(err, &lost) {
				return
			}
			c.job.Plan = p
			if _, err := move.Run(context.Background(), c.job); err != nil {
				t.Fatal(err)
			}
		}
		c.checkTarget(t)
	})
}

// TestFullDisk has a journal that cannot be written: the move fails with its error.
func TestFullDisk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChange(t)
		full := errors.New("no space left")
		c.job.Record = func(move.Record) error { return full }
		if _, err := move.Run(context.Background(), c.job); !errors.Is(err, full) {
			t.Fatal(err)
		}
	})
}

// TestJournal writes records, and reads them again up to where the journal is cut off.
func TestJournal(t *testing.T) {
	id := move.Identity{1, 2}
	want := []move.Record{
		{Block: move.Block{Region: 3, From: 1 << 40, To: 1<<40 + 99, Depth: 2},
			Parts: []move.Part{{Tensor: 5, First: true, Sum: digest.Sum{Value: 1 << 60, Bytes: 7}},
				{Tensor: 5}}},
		{Block: move.Block{}, Parts: nil},
	}
	text := move.AppendHeader(nil, id)
	ends := []int{len(text)}
	for _, r := range want {
		text = move.AppendRecord(text, r)
		ends = append(ends, len(text))
	}
	for n := range len(text) + 1 {
		got, good, err := move.ParseJournal(text[:n], id)
		whole := 0
		for whole < len(want) && ends[whole+1] <= n {
			whole++
		}
		if diff := cmp.Diff(want[:whole], got,
			cmp.Transformer("nil", func(r []move.Record) []move.Record {
				return append([]move.Record{}, r...)
			})); diff != "" || err != nil {
			t.Fatalf("cut at %d: %v\n%s", n, err, diff)
		}
		if n >= ends[0] && good != ends[whole] {
			t.Fatalf("cut at %d: %d bytes are good, want %d", n, good, ends[whole])
		}
	}
	if _, _, err := move.ParseJournal(text, move.Identity{1}); !errors.Is(err, move.ErrOther) {
		t.Errorf("another move: %v", err)
	}
	if _, _, err := move.ParseJournal([]byte("something else"), id); !errors.Is(err,
		move.ErrOther) {
		t.Errorf("no journal: %v", err)
	}
}

// FuzzJournal demands that what is read is what would be written.
func FuzzJournal(f *testing.F) {
	var id move.Identity
	f.Add(move.AppendRecord(move.AppendHeader(nil, id),
		move.Record{Block: move.Block{Region: 1, To: 300},
			Parts: []move.Part{{Tensor: 2, Sum: digest.Sum{Bytes: 300}}}}))
	f.Fuzz(func(t *testing.T, text []byte) {
		records, good, err := move.ParseJournal(text, id)
		if err != nil || good == 0 {
			return
		}
		again := move.AppendHeader(nil, id)
		for _, r := range records {
			again = move.AppendRecord(again, r)
		}
		back, _, err := move.ParseJournal(again, id)
		if diff := cmp.Diff(records, back); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	})
}
