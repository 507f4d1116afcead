// Package move executes a plan: it brings every box of the new state to its place, and proves that
// what lies there afterwards equals what was there before. Both ends are linear memories, such as
// files or a bucket, so the same code serves all. Running jobs execute theirs as a collective, with
// the same proof (docs/design/reshape.md).
//
// A move goes block by block. A block is a part of the target that is assembled in a buffer,
// written with one call where it has no hole, read back, and compared with the source by
// fingerprint (state/digest): the sums of the source are taken at the positions of the old layout,
// those of the target at the positions of the new one. A journal records finished blocks, so that
// an interrupted move continues where it stopped.
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

// A Source is the old state. Several goroutines may use it at once, and wait for it.
type Source interface {
	// Read fills b with the bytes of a region from at on. Fewer bytes are an error.
	Read(region int, b []byte, at int64) error
	// Name describes a region in errors.
	Name(region int) string
}

// A Target is the new state while it is written. Several goroutines may use it at once, and wait
// for it.
type Target interface {
	Source
	// Write writes the bytes of a region from at on.
	Write(region int, b []byte, at int64) error
}

// A Location is the byte of a region at which position 0 of a view lies.
type Location struct {
	Region int   // number of the region
	At     int64 // byte in it
}

// A Job describes a move to be made. Run changes nothing in it, and closes nothing.
type Job struct {
	Plan *plan.Plan
	// Old and New return where a local tensor of the old or the new layout lies. The goroutine of
	// Run calls them.
	Old, New func(p *plan.Place) Location
	Source   Source
	Target   Target
	Key      *digest.Key // key of the fingerprints
	Shown    *digest.Key // key of further fingerprints of the source, for people; nil = none
	Workers  int         // number of blocks in memory at a time; 0 = 1
	// Block bounds the bytes of a block, a multiple of 16; 0 means BlockBytes.
	Block int64
	// Done is what the journal records. It is verified and not moved again.
	Done []Record
	// Record adds a record to the journal; nil if there is none. One goroutine calls it at a time.
	Record func(Record) error
	// Begin receives all blocks, in their order, before the first is moved; nil if not wanted.
	Begin func([]Block)
	// End is called when a block is in the target; nil if not wanted. Several goroutines may call
	// it at once, and may wait in it.
	End func(Block) error
	// Progress receives how many bytes of the new state are written, and how many there are; nil if
	// not wanted. One goroutine calls it at a time.
	Progress func(done, all int64)
}

// A Result is the outcome of a move.
type Result struct {
	// Sums is the fingerprint of each tensor of the new layout, computed from the source and equal
	// in the target.
	Sums   []digest.Sum
	Shown  []digest.Sum // the same under the key Job.Shown; zeros if that is nil
	Moved  int64        // bytes written, replicas included
	Reused int64        // bytes that an earlier run had written
}

// A SourceError says that a region of the source cannot be read. Another plan may avoid it. Nobody
// changes it.
type SourceError struct {
	Region int    // number of the region
	Tensor string // name of the tensor
	Box    tensor.Box
	Err    error
}

// Error says which box of which tensor cannot be read, and why.
func (e *SourceError) Error() string {
	return fmt.Sprintf("tensor %q, box %v: %v", e.Tensor, e.Box, e.Err)
}

// Unwrap returns why the region cannot be read.
func (e *SourceError) Unwrap() error { return e.Err }

// Run executes a move, and returns when all of it is done or has failed. It moves blocks in Workers
// goroutines, which have ended when it returns, and stops between blocks when ctx ends. When it
// fails, what is in the journal stays good. A failure to read the source is a *SourceError.
func Run(ctx context.Context, job Job) (*Result, error) {
	if job.Block == 0 {
		job.Block = BlockBytes
	}
	r := &run{Job: job, sums: make([]digest.Sum, len(job.Plan.Dst.Tensors)),
		shown: make([]digest.Sum, len(job.Plan.Dst.Tensors)),
		done:  map[Block][]Part{}}
	for _, d := range job.Done {
		r.done[d.Block] = d.Parts
	}
	blocks, err := r.planBlocks()
	if err != nil {
		return nil, err
	}
	for i := range r.ops {
		r.all += int64(job.Plan.OpBytes(&r.ops[i].Op))
	}
	if r.Begin != nil {
		list := make([]Block, len(blocks))
		for i := range blocks {
			list[i] = blocks[i].Block
		}
		r.Begin(list)
	}
	for len(blocks) > 0 { // one depth after the other, because later ones read it
		n := 0
		for n < len(blocks) && blocks[n].Depth == blocks[0].Depth {
			n++
		}
		if err := r.moveBlocks(ctx, blocks[:n]); err != nil {
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
	return &Result{Sums: r.sums, Shown: r.shown, Moved: r.moved, Reused: r.reused}, nil
}

// A run is a move in progress. Its methods are for the goroutine of Run, except for nextBlock and
// recordBlock, which any worker may call.
type run struct {
	Job
	ops  []op             // ops of the plan, in the order of depth, then position
	done map[Block][]Part // parts of each block that the journal records
	all  int64            // bytes to be written, replicas included

	mu            sync.Mutex   // guards the fields below, and is held in Record and Progress
	next          int          // index of the next block that a worker takes
	sums, shown   []digest.Sum // fingerprints of each tensor, as far as it is moved
	moved, reused int64        // bytes written now, and by an earlier run
}

// moveBlocks moves blocks, which are of one depth, in the goroutines of the workers, in their
// order, and waits for them.
func (r *run) moveBlocks(ctx context.Context, blocks []block) error {
	r.next = 0
	g := group.New(ctx)
	for range min(max(r.Workers, 1), len(blocks)) {
		g.Go("move", func(ctx context.Context) error {
			w := worker{run: r}
			for b := r.nextBlock(blocks); b != nil && ctx.Err() == nil; b = r.nextBlock(blocks) {
				err := w.moveBlock(b)
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

// nextBlock returns the next block that no worker has taken; nil if there is none. Any worker may
// call it.
func (r *run) nextBlock(blocks []block) *block {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == len(blocks) {
		return nil
	}
	r.next++
	return &blocks[r.next-1]
}

// recordBlock adds a block to the sums, and to the journal when it is new: when it was moved now.
// Any worker may call it; one at a time is in it, and the others wait while it writes to the
// journal.
func (r *run) recordBlock(b *block, parts []Part, moved bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var bytes int64
	for _, p := range parts {
		if p.First {
			r.sums[p.Tensor] = r.sums[p.Tensor].Plus(p.Sum)
			r.shown[p.Tensor] = r.shown[p.Tensor].Plus(p.Shown)
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
