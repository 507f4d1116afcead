package move

import (
	"bytes"
	"fmt"
	"iter"
	"slices"

	"github.com/shoal-ml/shoal/state/boxes"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/tensor"
)

// readBackBytes is the number of bytes read back at a time: they stay in a core's nearest cache
// until they are compared.
const readBackBytes = 64 << 10

// A worker moves one block at a time. Its buffers are all the memory that a move needs. It is for
// one goroutine, which waits while it reads the source, and writes and reads the target.
type worker struct {
	*run
	bytes   []byte     // block of the target
	scratch []byte     // box of the source, packed; later bytes that were read back
	pieces  []piece    // pieces of the block
	written [][2]int64 // ranges written, in the region
}

// A piece is a box of an op in a block. Only the goroutine of its worker uses it, and its methods
// change nothing.
type piece struct {
	*op
	box tensor.Box
	at  int // offset in the block, in bytes, if the piece lies in one run; else -1
	// sum and shown are fingerprints of the elements, under the two keys of the job.
	sum, shown digest.Sum
}

// moveBlock brings a block to the target, unless the journal says that it is there and its content
// agrees.
func (w *worker) moveBlock(b *block) error {
	w.listPieces(b)
	w.bytes = slices.Grow(w.bytes[:0], int(b.To-b.From))[:b.To-b.From]
	if parts := w.done[b.Block]; parts != nil && w.Target.Read(b.Region, w.bytes, b.From) == nil {
		for i := range w.pieces {
			p := &w.pieces[i]
			p.sum, p.shown = w.targetSum(b, p, w.Key), w.targetSum(b, p, w.Shown)
		}
		if now := w.sumParts(); slices.EqualFunc(parts, now, Part.sameSum) {
			return w.recordBlock(b, now, false)
		}
	}
	for i := range w.pieces {
		if err := w.fetchPiece(b, &w.pieces[i]); err != nil {
			return err
		}
	}
	if err := w.writeBlock(b); err != nil {
		return err
	}
	if err := w.readBack(b); err != nil {
		return err
	}
	return w.recordBlock(b, w.sumParts(), true)
}

// listPieces sets the pieces of the worker to those of a block.
func (w *worker) listPieces(b *block) {
	w.pieces = w.pieces[:0]
	for _, i := range b.ops {
		o := &w.ops[i]
		for _, box := range o.boxesIn(b) {
			p := piece{op: o, box: box, at: -1}
			for run, at := range p.runs(b, box.Packed(0)) {
				if run.N == box.Elements() {
					p.at = at
				}
				break
			}
			w.pieces = append(w.pieces, p)
		}
	}
}

// runs yields the runs of a piece that are contiguous both under a view and in a block, each with
// its offset in the block.
func (p *piece) runs(b *block, v tensor.View) iter.Seq2[tensor.Run, int] {
	return func(yield func(tensor.Run, int) bool) {
		first := int(p.new.At - b.From)
		for run := range tensor.Runs(p.box, v, p.To.View) {
			if !yield(run, first+run.B*p.size) {
				return
			}
		}
	}
}

// byteCount returns the number of bytes of the piece.
func (p *piece) byteCount() int { return p.box.Elements() * p.size }

// fetchPiece reads a piece from the source, fingerprints it, and puts it where the new layout wants
// it in the worker's bytes.
func (w *worker) fetchPiece(b *block, p *piece) error {
	n, packed := p.byteCount(), p.box.Packed(0)
	w.scratch = slices.Grow(w.scratch[:0], n)[:n]
	memory := w.scratch
	if p.at >= 0 {
		memory = w.bytes[p.at : p.at+n]
	}
	from := w.Source
	if p.From.New {
		from = w.Target
	}
	t := &w.Plan.Dst.Tensors[p.Tensor]
	read := func(b []byte, at int64) error { return from.Read(p.old.Region, b, at) }
	if err := boxes.ReadBox(read, p.old.At, p.size, p.box, p.From.View, memory,
		packed); err != nil {
		if p.From.New {
			return err
		}
		return &SourceError{p.old.Region, t.Name, p.box, err}
	}
	p.sum = w.Key.BoxSum(p.box, t.Shape, p.size, memory, packed)
	p.shown = digest.Sum{}
	if w.Shown != nil {
		p.shown = w.Shown.BoxSum(p.box, t.Shape, p.size, memory, packed)
	}
	if p.at < 0 {
		for run, at := range p.runs(b, packed) {
			copy(w.bytes[at:at+run.N*p.size], memory[run.A*p.size:])
		}
	}
	return nil
}

// writeBlock writes the worker's bytes to the target, and nothing into the holes of the block, and
// sets written. Pieces of ops that overlap are written at once when they leave no hole.
func (w *worker) writeBlock(b *block) error {
	w.written = w.written[:0]
	put := func(from, to int64) error {
		if from == to {
			return nil
		}
		w.written = append(w.written, [2]int64{from, to})
		return w.Target.Write(b.Region, w.bytes[from-b.From:to-b.From], from)
	}
	var from, to int64 // range ready to be written, in the region
	for i := 0; i < len(w.pieces); {
		group, end := w.overlapping(i)
		first, last := max(w.pieces[i].from, b.From), min(end, b.To)
		i += len(group)
		filled := 0
		for k := range group {
			filled += group[k].byteCount()
		}
		if int64(filled) == last-first {
			if first != to {
				if err := put(from, to); err != nil {
					return err
				}
				from = first
			}
			to = last
			continue
		}
		for k := range group {
			for run, at := range group[k].runs(b, group[k].box.Packed(0)) {
				if err := put(b.From+int64(at), b.From+int64(at+run.N*group[k].size)); err != nil {
					return err
				}
			}
		}
	}
	return put(from, to)
}

// overlapping returns the pieces from index i on whose ops overlap, and where the last of these
// ends in the region. The caller does not change the list.
func (w *worker) overlapping(i int) (group []piece, end int64) {
	end = w.pieces[i].to
	k := i + 1
	for ; k < len(w.pieces) && w.pieces[k].from < end; k++ {
		end = max(end, w.pieces[k].to)
	}
	return w.pieces[i:k], end
}

// targetSum computes the fingerprint of a piece under a key, if there is one, from the worker's
// bytes, which hold the block at the positions of the new layout.
func (w *worker) targetSum(b *block, p *piece, key *digest.Key) (sum digest.Sum) {
	if key == nil {
		return sum
	}
	whole := w.Plan.Dst.Tensors[p.Tensor].Shape.View()
	for run, at := range p.runs(b, whole) {
		sum = sum.Plus(key.RunSum(run.A*p.size, w.bytes[at:at+run.N*p.size]))
	}
	return sum
}

// readBack reads a block back, and fails if it is not what was read from the source. If its bytes
// are those that were written, a piece that lies in one run has the sum of the source. The other
// pieces were taken apart, so their sums are computed again at their new positions.
func (w *worker) readBack(b *block) error {
	for _, x := range w.written {
		for from := x[0]; from < x[1]; from += readBackBytes {
			n := min(readBackBytes, x[1]-from)
			w.scratch = slices.Grow(w.scratch[:0], int(n))[:n]
			if err := w.Target.Read(b.Region, w.scratch, from); err != nil {
				return err
			}
			if !bytes.Equal(w.scratch, w.bytes[from-b.From:][:n]) {
				return w.mismatchError(b, from, from+n)
			}
		}
	}
	for i := range w.pieces {
		if p := &w.pieces[i]; p.at < 0 && w.targetSum(b, p, w.Key) != p.sum {
			return w.mismatchError(b, p.from, p.to)
		}
	}
	return nil
}

// mismatchError is the error of a target that does not hold what was written to a range of its
// region, in bytes.
func (w *worker) mismatchError(b *block, from, to int64) error {
	i := slices.IndexFunc(w.pieces, func(p piece) bool { return p.from < to && from < p.to })
	return fmt.Errorf("tensor %q: what was written to %s, bytes %d to %d, is not what was read "+
		"back; the memory or the disk is faulty, or somebody else writes there",
		w.Plan.Dst.Tensors[w.pieces[i].Tensor].Name, w.Target.Name(b.Region), from, to)
}

// sumParts returns the sums of the block's pieces, by tensor and in the order of Part.compare.
func (w *worker) sumParts() (parts []Part) {
	for i := range w.pieces {
		p := Part{Tensor: w.pieces[i].Tensor, First: w.pieces[i].Depth == 1 &&
			!w.pieces[i].Duplicate}
		at, found := slices.BinarySearchFunc(parts, p, Part.compare)
		if !found {
			parts = slices.Insert(parts, at, p)
		}
		parts[at].Sum = parts[at].Sum.Plus(w.pieces[i].sum)
		parts[at].Shown = parts[at].Shown.Plus(w.pieces[i].shown)
	}
	return parts
}
