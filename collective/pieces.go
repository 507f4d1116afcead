package collective

// Foreign memory passes through the arena piece by piece, while it lies in the caches: a call in pieces has for its input and its output a window of
// PiecesOpen pieces of PieceBytes, of which the last may be shorter. Piece i lies in place i mod PiecesOpen, and so does its result. Other ranks of the call may
// have all of their memory in the arena.
const (
	PieceBytes = 1 << 20
	PiecesOpen = 2
)

// Pieces is the number of pieces of a call in pieces.
func (c *Call) Pieces() int {
	per := PieceBytes / c.DType.Size()
	return (c.Whole + per - 1) / per
}

// InPieces reports whether one of the calls of a set is in pieces.
func InPieces(calls []*Posted) bool {
	for _, p := range calls {
		if p.Call.Whole > 0 {
			return true
		}
	}
	return false
}

// Piece makes c the part of an all-reduce that lies in piece i, of a call in pieces or of one that is there as a whole.
func (c *Call) Piece(of *Call, i int) {
	*c = *of
	c.Whole, c.Shape = 0, nil
	from, n := i*PieceBytes, min(PieceBytes, of.InLen()*of.DType.Size()-i*PieceBytes)
	if of.Whole > 0 {
		from = i % PiecesOpen * PieceBytes
	}
	c.In, c.Out = of.In[from:from+n:from+n], of.Out[from:from+n:from+n]
}

// checkPieces reports what is wrong with a call in pieces.
func (c *Call) checkPieces() error {
	switch {
	case c.Whole == 0:
		return nil
	case c.Kind != AllReduce || c.More || c.Step || c.Aside || c.Shared.Name != "":
		return fieldError("flags", "only an all_reduce that is no part of a step, and not into a shared result, comes in pieces")
	case len(c.In) != PiecesOpen*PieceBytes || len(c.Out) != len(c.In) || &c.In[0] != &c.Out[0]:
		return fieldError("in.count", "a call in pieces has one window of %d bytes for both ways", PiecesOpen*PieceBytes)
	}
	return nil
}
