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

// A worker moves one block at a time. Its three buffers are all the memory that a move needs.
type worker struct {
	*run
	bytes   []byte // what is to be written
	back    []byte // what was read back
	scratch []byte // a box of the source, packed
	pieces  []piece
}

// A piece is a box of an op in a block.
type piece struct {
	*op
	box tensor.Box
	at  int // the byte of the block from which on it lies in one run; -1 when it does not
	sum digest.Sum
}

// block brings a block to the target, unless that was done and holds.
func (w *worker) block(b *block) error {
	w.cut(b)
	if parts := w.done[b.Block]; parts != nil && w.readBack(b) == nil {
		for i := range w.pieces {
			w.pieces[i].sum = w.summed(b, &w.pieces[i])
		}
		if slices.Equal(parts, w.parts()) {
			return w.finished(b, parts, false)
		}
	}
	w.bytes = slices.Grow(w.bytes[:0], int(b.To-b.From))[:b.To-b.From]
	for i := range w.pieces {
		if err := w.fetch(b, &w.pieces[i]); err != nil {
			return err
		}
	}
	if err := w.write(b); err != nil {
		return err
	}
	if err := w.check(b); err != nil {
		return err
	}
	return w.finished(b, w.parts(), true)
}

// cut lists the pieces of a block.
func (w *worker) cut(b *block) {
	w.pieces = w.pieces[:0]
	for _, i := range b.ops {
		o := &w.ops[i]
		for _, box := range o.within(b) {
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

// runs walks a piece in runs that lie side by side under a view and in a block, with the byte of each in the block.
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

func (p *piece) bytes() int { return p.box.Elements() * p.size }

// fetch reads a piece from the source, sums it up, and puts it where the new layout wants it.
func (w *worker) fetch(b *block, p *piece) error {
	n, packed := p.bytes(), p.box.Packed(0)
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
	if err := boxes.Read(read, p.old.At, p.size, p.box, p.From.View, memory, packed); err != nil {
		if p.From.New {
			return err
		}
		return &SourceError{p.old.Region, t.Name, p.box, err}
	}
	p.sum = w.Key.Box(p.box, t.Shape, p.size, memory, packed)
	if p.at < 0 {
		for run, at := range p.runs(b, packed) {
			copy(w.bytes[at:at+run.N*p.size], memory[run.A*p.size:])
		}
	}
	return nil
}

// write writes a block, and nothing into its holes. Pieces of ops that overlap are written at once when they leave none.
func (w *worker) write(b *block) error {
	var from, to int64 // what is ready to be written, in the region
	flush := func() error {
		if from == to {
			return nil
		}
		return w.Target.Write(b.Region, w.bytes[from-b.From:to-b.From], from)
	}
	for i := 0; i < len(w.pieces); {
		group, end := w.group(i)
		first, last := max(w.pieces[i].from, b.From), min(end, b.To)
		i += len(group)
		filled := 0
		for k := range group {
			filled += group[k].bytes()
		}
		if int64(filled) == last-first {
			if first != to {
				if err := flush(); err != nil {
					return err
				}
				from = first
			}
			to = last
			continue
		}
		for k := range group {
			for run, at := range group[k].runs(b, group[k].box.Packed(0)) {
				if err := w.Target.Write(b.Region, w.bytes[at:at+run.N*group[k].size], b.From+int64(at)); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

// group returns the pieces from number i on whose ops overlap, and where the last of these ends.
func (w *worker) group(i int) (group []piece, end int64) {
	end = w.pieces[i].to
	k := i + 1
	for ; k < len(w.pieces) && w.pieces[k].from < end; k++ {
		end = max(end, w.pieces[k].to)
	}
	return w.pieces[i:k], end
}

func (w *worker) readBack(b *block) error {
	w.back = slices.Grow(w.back[:0], int(b.To-b.From))[:b.To-b.From]
	return w.Target.Read(b.Region, w.back, b.From)
}

// summed is the sum of a piece over what was read back.
func (w *worker) summed(b *block, p *piece) (sum digest.Sum) {
	shape := w.Plan.Dst.Tensors[p.Tensor].Shape.View()
	for run, at := range p.runs(b, shape) {
		sum = sum.Plus(w.Key.Run(run.A*p.size, w.back[at:at+run.N*p.size]))
	}
	return sum
}

// check reads a block back and compares. A piece that lies in one run has the sum of the source when its bytes are those
// that the source's sum was taken of; all others are summed up again, where they are now.
func (w *worker) check(b *block) error {
	if err := w.readBack(b); err != nil {
		return err
	}
	for i := range w.pieces {
		p := &w.pieces[i]
		if n := p.bytes(); p.at >= 0 && bytes.Equal(w.back[p.at:p.at+n], w.bytes[p.at:p.at+n]) {
			continue
		}
		if sum := w.summed(b, p); sum != p.sum {
			return fmt.Errorf("tensor %q: what was written to %s, bytes %d to %d, is not what was read back (fingerprint %v, not %v); the memory or the disk is faulty, or somebody else writes there",
				w.Plan.Dst.Tensors[p.Tensor].Name, w.Target.Name(b.Region), b.From, b.To, sum, p.sum)
		}
	}
	return nil
}

// parts adds the pieces of each tensor up.
func (w *worker) parts() (parts []Part) {
	for i := range w.pieces {
		p := Part{Tensor: w.pieces[i].Tensor, First: w.pieces[i].Depth == 1}
		at, found := slices.BinarySearchFunc(parts, p, Part.compare)
		if !found {
			parts = slices.Insert(parts, at, p)
		}
		parts[at].Sum = parts[at].Sum.Plus(w.pieces[i].sum)
	}
	return parts
}
