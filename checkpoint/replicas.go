package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/boxes"
	"github.com/shoal-ml/shoal/state/move"
)

// Boxes that lie in a checkpoint several times must be alike, since only one of them is read.

// checkReplicas compares the replicas of boxes with the pieces that are read, and fails where they
// differ. It passes over what cannot be read: whoever reads it will see that. It is for one
// goroutine at a time, shares the reading among as many as workers says, and waits for them.
func (c *Checkpoint) checkReplicas(ctx context.Context, workers int) error {
	type item struct {
		t        *format.Tensor
		p        *format.Piece
		from, to int
	}
	var items []item
	for i := range c.Tensors {
		t := c.asStored(&c.Tensors[i])
		most := move.BlockBytes / max(t.DType.Size(), 1) // elements of an item
		for k := range t.Replicas {
			p := &t.Replicas[k]
			for n, from := p.Box.Elements(), 0; from < n; from += most {
				items = append(items, item{t, p, from, min(from+most, n)})
			}
		}
	}
	r := c.newReader()
	size := func(i int) int64 {
		return 2 * int64(items[i].to-items[i].from) * int64(items[i].t.DType.Size())
	}
	err := shareItems(ctx, "comparing replicas", workers, len(items), size, func() func(int) error {
		var x, y []byte
		return func(i int) error {
			t, p := items[i].t, items[i].p
			for _, box := range p.Box.Range(items[i].from, items[i].to) {
				n := box.Elements() * t.DType.Size()
				x, y = slices.Grow(x[:0], n)[:n], slices.Grow(y[:0], n)[:n]
				read := func(b []byte, at int64) error { return r.readBytes(p.File, b, at) }
				err := boxes.ReadBox(read, p.Offset, t.DType.Size(), box, p.View(), x,
					box.Packed(0))
				if err = errors.Join(err, r.readBox(t, box, y)); err == nil && !bytes.Equal(x, y) {
					first := slices.IndexFunc(t.Pieces, func(q format.Piece) bool {
						return q.Box.Overlaps(box)
					})
					here, there := p.File, t.Pieces[first].File
					if here == there { // parameters that share one name
						here, there = fmt.Sprintf("%s at byte %d", here, p.Offset),
							fmt.Sprintf("at byte %d", t.Pieces[first].Offset)
					}
					return fmt.Errorf("%s: tensor %q: %s has another box %v than %s; nobody "+
						"says which is right: shoal state ls --json says where both are",
						c.path, t.Name, here, p.Box, there)
				}
			}
			return nil
		}
	})
	return errors.Join(err, r.Close())
}
