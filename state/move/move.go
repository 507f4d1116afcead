// Package move carries a plan out: it brings every box of the new state to its place, and proves
// that what is there then is what was there before. Both ends are linear memories, such as files or
// a bucket, so the same code serves all. Running jobs carry theirs out as a collective, with the
// same proof (docs/design/reshape.md).
//
// A move goes block by block. A block is a part of the target that is assembled in a buffer,
// written with one call where it has no hole, read back, and compared with the source by
// fingerprint (state/digest): the sums on the source's side are taken at the places where the old
// layout says that elements are, those on the target's side where the new one says so. What is done
// goes into a journal, so that a move that was cut off goes on where it stopped.
//
// Blocks depend on the new layout alone. So when a source dies, the caller plans anew without it,
// and blocks that are in the journal stay done.
package move

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// A Source is the old state. Its methods are for several goroutines at once.
type Source interface {
	// Read fills b with the bytes of a region from at on; less is an error.
	Read(region int, b []byte, at int64) error
	// Name says what a region is, for errors.
	Name(region int) string
}

// A Target is the new state while it comes to be. Its methods are for several goroutines at once.
type Target interface {
	Source
	Write(region int, b []byte, at int64) error
}

// A Location is where the place 0 of a view is: a byte of a region.
type Location struct {
	Region int
	At     int64
}

// A Job is a move that is to be made.
type Job struct {
	Plan *plan.Plan
	// Old and New say where the local tensors of the two layouts lie: that of a place.
	Old, New func(p *plan.Place) Location
	Source   Source
	Target   Target
	Key      *digest.Key
	Workers  int // as many blocks are in memory at a time
	// Block is up to how many bytes a block has, a multiple of 16; 0 for BlockBytes.
	Block int64
	// Done is what the journal says; it is verified and not moved again.
	Done []Record
	// Record, if there is one, keeps a record in the journal; it is called by one goroutine at a
	// time.
	Record func(Record) error
	// Begin, if there is one, is told all blocks, in their order, before the first is moved.
	Begin func([]Block)
	// End, if there is one, is told of each block that it is in the target; several goroutines may
	// call it at once, and wait in it.
	End func(Block) error
	// Progress, if there is one, is told how many bytes of the new state are there, of how many.
	Progress func(done, all int64)
}

// A Result is what a move has found.
type Result struct {
	// of each tensor of the new layout, taken from the source and equal in the target
	Sums   []digest.Sum
	Moved  int64 // bytes that were written, replicas included
	Reused int64 // bytes that an earlier run had written
}

// A SourceError says that a region of the source cannot be read. Another plan may do without it.
type SourceError struct {
	Region int
	Tensor string
	Box    tensor.Box
	Err    error
}

func (e *SourceError) Error() string {
	return fmt.Sprintf("tensor %q, box %v: %v", e.Tensor, e.Box, e.Err)
}

func (e *SourceError) Unwrap() error { return e.Err }

// Run makes a move. When it fails, what is in the journal stays good. A failure to read the source
// is a *SourceError.
func Run(ctx context.Context, job Job) (*Result, error) {
	if job.Block == 0 {
		job.Block = BlockBytes
	}
	r := &run{Job: job, sums: make([]digest.Sum, len(job.Plan.Dst.Tensors)),
		done: map[Block][]Part{}}
	for _, d := range job.Done {
		r.done[d.Block] = d.Parts
	}
	blocks, err := r.blocks()
	if err != nil {
		return nil, err
	}
	for i := range r.ops {
		r.all += int64(job.Plan.Bytes(&r.ops[i].Op))
	}
	if r.Begin != nil {
		list := make([]Block, len(blocks))
		for i := range blocks {
			list[i] = blocks[i].Block
		}
		r.Begin(list)
	}
	for len(blocks) > 0 { // all of a depth before what reads it
		n := 0
		for n < len(blocks) && blocks[n].Depth == blocks[0].Depth {
			n++
		}
		if err := r.share(ctx, blocks[:n]); err != nil {
			return nil, err
		}
		blocks = blocks[n:]
	}
	for i, t := range job.Plan.Dst.Tensors {
		if want := uint64(t.Shape.Box().Elements() * t.DType.Size()); r.sums[i].Bytes != want {
			return nil, fmt.Errorf(
				"move: %d bytes of tensor %q were moved, it has %d; the plan is not of this state",
				r.sums[i].Bytes, t.Name, want)
		}
	}
	return &Result{Sums: r.sums, Moved: r.moved, Reused: r.reused}, nil
}

// run is a move under way.
type run struct {
	Job
	ops  []op
	done map[Block][]Part
	all  int64

	mu            sync.Mutex
	next          int
	sums          []digest.Sum
	moved, reused int64
}

// share deals blocks out to the workers, in their order.
func (r *run) share(ctx context.Context, blocks []block) error {
	r.next = 0
	g := group.New(ctx)
	for range min(max(r.Workers, 1), len(blocks)) {
		g.Go("move", func(ctx context.Context) error {
			w := worker{run: r}
			for b := r.take(blocks); b != nil && ctx.Err() == nil; b = r.take(blocks) {
				err := w.block(b)
				if err == nil && r.End != nil {
					err = r.End(b.Block)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return errors.Join(g.Wait(), context.Cause(ctx))
}

func (r *run) take(blocks []block) *block {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == len(blocks) {
		return nil
	}
	r.next++
	return &blocks[r.next-1]
}

// finished adds a block up, and records it when it is new.
func (r *run) finished(b *block, parts []Part, moved bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var bytes int64
	for _, p := range parts {
		if p.First {
			r.sums[p.Tensor] = r.sums[p.Tensor].Plus(p.Sum)
		}
		bytes += int64(p.Sum.Bytes)
	}
	if !moved {
		r.reused += bytes
	} else {
		r.moved += bytes
		if r.Record != nil {
			if err := r.Record(Record{b.Block, parts}); err != nil {
				return err
			}
		}
	}
	if r.Progress != nil {
		r.Progress(r.moved+r.reused, r.all)
	}
	return nil
}
