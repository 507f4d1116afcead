package collective

import (
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

// Memory outside the arena passes through it piece by piece, while it lies in the caches: a call in
// pieces has a window of PiecesOpen pieces of PieceBytes for both its input and its output. Piece i
// lies at i mod PiecesOpen, and so does its result; the last piece may be shorter. Other ranks of
// the call may have all of their memory in the arena.
const (
	PieceBytes = 1 << 20
	PiecesOpen = 2
)

// windowElements returns the number of elements of c, a call in pieces, whose shape alone says it:
// its In and Out are nil.
func (c *Call) windowElements() int {
	n, _ := tensor.Shape(c.Shape).Elements()
	return n
}

// Pieces returns the number of pieces that c, a call in pieces, goes through its window in.
func (c *Call) Pieces() int {
	per := PieceBytes / c.DType.Size()
	return (c.windowElements() + per - 1) / per
}

// InPieces reports whether one of the calls of a set is in pieces.
func InPieces(calls []*Posted) bool {
	return slices.ContainsFunc(calls, func(p *Posted) bool { return p.Call.Window != nil })
}

// SetToPiece makes c the part of an all-reduce that piece i, counted from 0, covers, in the memory
// of that call. The all-reduce is a call in pieces, or one whose memory lies in the arena as a
// whole. Nobody else may be reading c; `of` is only read.
func (c *Call) SetToPiece(of *Call, i int) {
	from := i * PieceBytes
	n := min(PieceBytes, of.InLen()*of.DType.Size()-from)
	*c = *of
	c.Window, c.Shape = nil, nil
	if of.Window != nil {
		from = i % PiecesOpen * PieceBytes
		c.In, c.Out = of.Window, of.Window
	}
	c.In, c.Out = c.In[from:from+n:from+n], c.Out[from:from+n:from+n]
}

// checkPieces is the part of Check about calls in pieces: it returns what is wrong with such a
// call, and nil for all others. It only reads c.
func (c *Call) checkPieces() error {
	switch {
	case c.Window == nil:
		return nil
	case c.Kind != AllReduce || c.More || c.Step || c.Aside:
		return fieldError("flags", "only an all_reduce that is no part of a step comes in pieces")
	case len(c.Window) != PiecesOpen*PieceBytes:
		return fieldError("in.count", "the window of a call in pieces has %d bytes, not %d",
			PiecesOpen*PieceBytes, len(c.Window))
	}
	return nil
}
