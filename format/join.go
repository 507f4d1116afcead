package format

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

// This file joins the parts of a tensor that ranks hold, for the formats whose ranks have files of
// their own. It does no I/O. What its functions return is the caller's, but shares boxes and
// strides with the parts, which nobody changes later.

// A Part is one rank's part of a tensor.
type Part struct {
	*Tensor
	Rank int // from 0
}

// A Cut says how ranks share a tensor along a dimension. The dimension consists of consecutive
// blocks, such as those of gate and up; every rank has a part of each block, in the order of the
// ranks, and holds its parts side by side.
// Its methods do not change it, and do no I/O.
type Cut struct {
	Dim    int     // dimension, from 0
	Widths [][]int // for each block the width of each rank's part, in indices of Dim
}

// CutBlocks returns the cut along a dimension when the part of every rank is made of so many blocks
// of one size, that of the rank. Parts may differ in size between ranks; with one block they lie
// side by side. ranks is how many ranks there are. Of a rank without a part the width is 0.
func CutBlocks(parts []Part, ranks, dim, blocks int) (Cut, error) {
	c := Cut{Dim: dim, Widths: make([][]int, blocks)}
	for b := range c.Widths {
		c.Widths[b] = make([]int, ranks)
	}
	for _, p := range parts {
		if p.Rank < 0 || p.Rank >= ranks {
			return c, fmt.Errorf("there is a part of rank %d, and %d ranks", p.Rank, ranks)
		}
		if dim >= len(p.Shape) {
			return c, fmt.Errorf("a part has shape %v, which cannot be cut along dimension %d",
				p.Shape, dim)
		}
		if p.Shape[dim]%blocks != 0 {
			return c, fmt.Errorf(
				"a part has shape %v, and dimension %d does not come apart in %d equal blocks",
				p.Shape, dim, blocks)
		}
		for b := range c.Widths {
			c.Widths[b][p.Rank] = p.Shape[dim] / blocks
		}
	}
	return c, nil
}

// JoinParts returns the tensor that is joined from its parts, which it leaves as they are. Of
// several parts of one rank the first counts, and the others are replicas. It fails when a rank has
// no part, or the parts do not match the cut.
func JoinParts(parts []Part, c Cut) (Tensor, error) {
	whole, err := emptyLike(parts)
	if err != nil {
		return whole, err
	}
	starts, size, err := c.partStarts()
	if err != nil {
		return whole, err
	}
	if c.Dim >= len(whole.Shape) {
		return whole, fmt.Errorf("a part has shape %v, which cannot be cut along dimension %d",
			whole.Shape, c.Dim)
	}
	whole.Shape[c.Dim] = size
	if _, err := whole.Shape.Elements(); err != nil {
		return whole, err
	}
	seen := make([]bool, len(starts[0]))
	for _, p := range parts {
		if err := c.checkPart(p, whole.Shape); err != nil {
			return whole, err
		}
		if p.DType != whole.DType {
			return whole, fmt.Errorf("one rank has %v, another %v", whole.DType, p.DType)
		}
		pieces, replicas := c.piecesInWhole(p, p.Pieces, starts),
			c.piecesInWhole(p, p.Replicas, starts)
		if seen[p.Rank] {
			pieces, replicas = nil, slices.Concat(pieces, replicas)
		}
		seen[p.Rank] = true
		whole.Pieces, whole.Replicas = append(whole.Pieces, pieces...),
			append(whole.Replicas, replicas...)
		whole.Proofs = append(whole.Proofs, p.Proofs...)
	}
	if rank := slices.Index(seen, false); rank >= 0 {
		return whole, fmt.Errorf("of rank %d there is no part", rank)
	}
	return whole, nil
}

// JoinReplicas returns one tensor for equal ones of several ranks: the first, of which the others
// are replicas.
func JoinReplicas(parts []Part) (Tensor, error) {
	whole, err := emptyLike(parts)
	if err != nil {
		return whole, err
	}
	for i, p := range parts {
		if p.DType != whole.DType || !p.Shape.Equal(whole.Shape) {
			return whole, fmt.Errorf("one rank has it as %v %v, another as %v %v", whole.DType,
				whole.Shape, p.DType, p.Shape)
		}
		if i == 0 {
			whole.Pieces, whole.Replicas = slices.Clone(p.Pieces), slices.Clone(p.Replicas)
		} else {
			whole.Replicas = slices.Concat(whole.Replicas, p.Pieces, p.Replicas)
		}
		whole.Proofs = append(whole.Proofs, p.Proofs...)
	}
	return whole, nil
}

// emptyLike returns a tensor like the first of some parts, without pieces.
func emptyLike(parts []Part) (Tensor, error) {
	if len(parts) == 0 {
		return Tensor{}, errors.New("there is no part")
	}
	first := parts[0]
	whole := Tensor{Name: first.Name, DType: first.DType, Shape: slices.Clone(first.Shape)}
	if first.DType.Size() == 0 {
		return whole, fmt.Errorf("elements of %v share bytes, and are not put together",
			first.DType)
	}
	return whole, nil
}

// partStarts returns where in the whole tensor each rank's part of each block begins, and the size
// of the whole dimension.
func (c Cut) partStarts() (starts [][]int, size int, err error) {
	if len(c.Widths) == 0 || len(c.Widths[0]) == 0 {
		return nil, 0, errors.New("a cut without ranks")
	}
	for _, widths := range c.Widths {
		if len(widths) != len(c.Widths[0]) {
			return nil, 0, fmt.Errorf("%d ranks share one block, and %d another", len(c.Widths[0]),
				len(widths))
		}
		var at []int
		for _, n := range widths {
			if n < 0 || size > math.MaxInt-n {
				return nil, 0, fmt.Errorf("a rank has %d of a block", n)
			}
			at = append(at, size)
			size += n
		}
		starts = append(starts, at)
	}
	return starts, size, nil
}

// checkPart fails when a part does not match the cut of a whole tensor.
func (c Cut) checkPart(p Part, whole tensor.Shape) error {
	if p.Rank < 0 || p.Rank >= len(c.Widths[0]) {
		return fmt.Errorf("there is a part of rank %d, and %d ranks", p.Rank, len(c.Widths[0]))
	}
	due := slices.Clone(whole)
	due[c.Dim] = 0
	for _, widths := range c.Widths {
		due[c.Dim] += widths[p.Rank]
	}
	if !p.Shape.Equal(due) {
		return fmt.Errorf("rank %d has a part of shape %v, and %v is due", p.Rank, p.Shape, due)
	}
	return nil
}

// piecesInWhole returns the pieces of a part at their positions in the whole tensor. starts is what
// partStarts returns. With several blocks, pieces are split.
func (c Cut) piecesInWhole(p Part, pieces []Piece, starts [][]int) (list []Piece) {
	from := 0
	for b, widths := range c.Widths {
		n := widths[p.Rank]
		own, becomes := p.Shape.Box(), p.Shape.Box()
		own[c.Dim] = tensor.Span{From: from, To: from + n}
		becomes[c.Dim] = tensor.Span{From: starts[b][p.Rank], To: starts[b][p.Rank] + n}
		list = append(list, RestrictPieces(p.DType, pieces, own, becomes)...)
		from += n
	}
	return list
}

// RestrictPieces returns the part of the pieces that lies in box, moved to the box becomes of
// another tensor. Elements have whole bytes.
func RestrictPieces(d tensor.DType, pieces []Piece, box, becomes tensor.Box) (list []Piece) {
	for i := range pieces {
		p := &pieces[i]
		if !p.Box.Overlaps(box) {
			continue
		}
		some, view := p.Box.Intersect(box), p.View()
		offset := p.Offset + BytesOf(d, view.At(some))
		for k := range some {
			by := becomes[k].From - box[k].From
			some[k].From += by
			some[k].To += by
		}
		list = append(list, Piece{Box: some, File: p.File, Offset: offset, Strides: view.Strides})
	}
	return list
}

// Crop shortens the tensor to the first n indices of a dimension, which has at least as many.
// Elements have whole bytes.
func (t *Tensor) Crop(dim, n int) {
	t.Shape = slices.Clone(t.Shape)
	t.Shape[dim] = n
	box := t.Shape.Box()
	t.Pieces, t.Replicas = RestrictPieces(t.DType, t.Pieces, box, box),
		RestrictPieces(t.DType, t.Replicas, box, box)
}
