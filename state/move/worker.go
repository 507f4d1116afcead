package move

import (
	"fmt"
	"iter"
	"slices"

	"github.com/shoal-ml/shoal/state/boxes"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/tensor"
)

// A worker moves one block at a time. Its two buffers are all the memory that a move needs.
type worker struct {
	*run
	bytes   []byte // a block of the target
	scratch []byte // a box of the source, packed
}

// block brings a block to the target, unless that was done and holds.
func (w *worker) block(b *block) error {
	w.bytes = slices.Grow(w.bytes[:0], int(b.To-b.From))[:b.To-b.From]
	if parts := w.done[b.Block]; parts != nil {
		if found, err := w.readBack(b); err == nil && slices.Equal(parts, found) {
			return w.finished(b, parts, false)
		}
	}
	parts, err := w.gather(b)
	if err != nil {
		return err
	}
	if err := w.write(b); err != nil {
		return err
	}
	found, err := w.readBack(b)
	if err != nil {
		return err
	}
	for i, p := range parts {
		if found[i] != p {
			return fmt.Errorf("tensor %q: what was written to %s, bytes %d to %d, is not what was read back (fingerprint %v, not %v); the memory or the disk is faulty, or somebody else writes there",
				w.Plan.Dst.Tensors[p.Tensor].Name, w.Target.Name(b.Region), b.From, b.To, found[i].Sum, p.Sum)
		}
	}
	return w.finished(b, parts, true)
}

// gather reads the elements of a block from the source, sums them up where the old layout has them, and puts them
// where the new one wants them.
func (w *worker) gather(b *block) (parts []Part, err error) {
	for _, i := range b.ops {
		o := &w.ops[i]
		var sum digest.Sum
		for _, box := range o.within(b) {
			s, err := w.fetch(b, o, box)
			if err != nil {
				return nil, err
			}
			sum = sum.Plus(s)
		}
		parts = addPart(parts, o, sum)
	}
	return parts, nil
}

// fetch does this for one box.
func (w *worker) fetch(b *block, o *op, box tensor.Box) (digest.Sum, error) {
	packed := box.Packed(0)
	n := box.Elements() * o.size
	w.scratch = slices.Grow(w.scratch[:0], n)[:n]
	memory, there := w.scratch, false
	for run, at := range o.runs(b, box, packed) { // what lies in one piece needs no other place
		if there = run.N*o.size == n; there {
			memory = w.bytes[at : at+n]
		}
		break
	}
	from := w.Source
	if o.From.New {
		from = w.Target
	}
	t := &w.Plan.Dst.Tensors[o.Tensor]
	read := func(b []byte, at int64) error { return from.Read(o.old.Region, b, at) }
	if err := boxes.Read(read, o.old.At, o.size, box, o.From.View, memory, packed); err != nil {
		if o.From.New {
			return digest.Sum{}, err
		}
		return digest.Sum{}, &SourceError{o.old.Region, t.Name, box, err}
	}
	if !there {
		for run, at := range o.runs(b, box, packed) {
			copy(w.bytes[at:at+run.N*o.size], memory[run.A*o.size:])
		}
	}
	return w.Key.Box(box, t.Shape, o.size, memory, packed), nil
}

// runs walks a box in runs that lie side by side under a view and in a block, with the byte of each in the block.
func (o *op) runs(b *block, box tensor.Box, v tensor.View) iter.Seq2[tensor.Run, int] {
	return func(yield func(tensor.Run, int) bool) {
		first := int(o.new.At - b.From)
		for run := range tensor.Runs(box, v, o.To.View) {
			if !yield(run, first+run.B*o.size) {
				return
			}
		}
	}
}

// write writes a block, and nothing into its holes.
func (w *worker) write(b *block) error {
	bytes := 0
	for _, i := range b.ops {
		for _, box := range w.ops[i].within(b) {
			bytes += box.Elements() * w.ops[i].size
		}
	}
	if bytes == len(w.bytes) {
		return w.Target.Write(b.Region, w.bytes, b.From)
	}
	for _, i := range b.ops {
		o := &w.ops[i]
		for _, box := range o.within(b) {
			for run, at := range o.runs(b, box, box.Packed(0)) {
				if err := w.Target.Write(b.Region, w.bytes[at:at+run.N*o.size], b.From+int64(at)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readBack sums up what a block of the target holds.
func (w *worker) readBack(b *block) (parts []Part, err error) {
	if err := w.Target.Read(b.Region, w.bytes, b.From); err != nil {
		return nil, err
	}
	for _, i := range b.ops {
		o := &w.ops[i]
		shape := w.Plan.Dst.Tensors[o.Tensor].Shape.View()
		var sum digest.Sum
		for _, box := range o.within(b) {
			for run, at := range o.runs(b, box, shape) {
				sum = sum.Plus(w.Key.Run(run.A*o.size, w.bytes[at:at+run.N*o.size]))
			}
		}
		parts = addPart(parts, o, sum)
	}
	return parts, nil
}

// addPart adds what an op has of a block; the ops of one tensor count together.
func addPart(parts []Part, o *op, sum digest.Sum) []Part {
	p := Part{Tensor: o.Tensor, First: o.Depth == 1}
	i, found := slices.BinarySearchFunc(parts, p, func(a, b Part) int { return a.compare(b) })
	if !found {
		parts = slices.Insert(parts, i, p)
	}
	parts[i].Sum = parts[i].Sum.Plus(sum)
	return parts
}
