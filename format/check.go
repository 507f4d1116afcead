package format

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// This file checks the structure of a checkpoint, in the same way for every format.

// A Fault is a defect of a checkpoint.
type Fault struct {
	Name string `json:"name"` // name of a tensor, path of a value, or name of a file
	// Place is the rank that holds the part, as Coords.String writes it; "" = a whole tensor.
	Place  string `json:"place,omitempty"`
	File   string `json:"file,omitempty"` // "" = not about a single file
	Offset int64  `json:"offset"`         // byte in the file
	What   string `json:"what"`           // what is wrong, for people
}

// String writes the fault as one line for people.
func (f Fault) String() string {
	s := fmt.Sprintf("%q", f.Name)
	if f.Place != "" {
		s += " at " + f.Place
	}
	if f.File != "" {
		s += fmt.Sprintf(", %s, byte %d", f.File, f.Offset)
	}
	return s + ": " + f.What
}

// Check returns the defects in the structure of a checkpoint: pieces that lie outside their tensor
// or beyond the end of their file, that overlap in the tensor or in a file, or that leave elements
// uncovered; and values that could not be read. It opens the files, and reads no element. It is
// for the goroutine of files, and may block on them. nil means that there are none.
func (c *Checkpoint) Check(files *Files) (faults []Fault) {
	for i := range c.Tensors {
		faults = append(faults, c.Tensors[i].check(files)...)
	}
	for _, v := range c.Values {
		if u, ok := v.Data.(Unread); ok {
			faults = append(faults, Fault{Name: v.Path, What: u.Why.Error()})
		}
	}
	return faults
}

// check returns the defects in the structure of one tensor, as Check does. Like Check it opens
// files, on their goroutine.
func (t *Tensor) check(files *Files) (faults []Fault) {
	fault := func(p *Piece, format string, args ...any) {
		f := Fault{Name: t.Name, Place: t.Coords.String(), What: fmt.Sprintf(format, args...)}
		if p != nil {
			f.File, f.Offset = p.File, p.Offset
		}
		faults = append(faults, f)
	}
	whole, err := t.Shape.Elements()
	if err != nil || t.DType.Bits() == 0 {
		fault(nil, "%v elements of shape %v are none that a file can hold", t.DType, t.Shape)
		return faults
	}
	var boxes []tensor.Box
	var covered int
	for i := range len(t.Pieces) + len(t.Replicas) {
		p := t.pieceAt(i)
		if len(p.Box) != len(t.Shape) || !t.Shape.Box().Contains(p.Box) {
			fault(p, "box %v lies outside shape %v", p.Box, t.Shape)
			return faults
		}
		if file, err := files.Open(p.File); err != nil {
			fault(p, "%v", err)
		} else if span := p.SpanBytes(t.DType); p.Offset < 0 || span > file.Size-p.Offset {
			fault(p, "box %v has %d bytes, the file ends at %d", p.Box, span, file.Size)
		}
		if i < len(t.Pieces) {
			boxes = append(boxes, p.Box)
			covered += p.Box.Elements()
		}
	}
	for i, j := range tensor.Overlaps(boxes, boxes) {
		if i < j {
			fault(&t.Pieces[j], "box %v overlaps box %v in %s", boxes[j], boxes[i],
				t.Pieces[i].File)
			return faults
		}
	}
	if a, b := t.sharedBytes(); a != nil {
		fault(b, "box %v lies in the same bytes as box %v", b.Box, a.Box)
	}
	if covered != whole {
		fault(nil, "%d of %d elements of shape %v are in no file", whole-covered, whole, t.Shape)
	}
	return faults
}

// sharedBytes returns two pieces that share bytes of a file; nil if there are none. Pieces with
// strides can lie between each other, and are passed over. They are the tensor's own, not copies.
func (t *Tensor) sharedBytes() (a, b *Piece) {
	var packed []*Piece
	for i := range t.Pieces {
		if p := &t.Pieces[i]; p.Strides == nil && !p.Box.Empty() {
			packed = append(packed, p)
		}
	}
	slices.SortStableFunc(packed, func(x, y *Piece) int {
		return cmp.Or(strings.Compare(x.File, y.File), cmp.Compare(x.Offset, y.Offset))
	})
	for i := 1; i < len(packed); i++ {
		if a, b := packed[i-1], packed[i]; a.File == b.File &&
			b.Offset-a.Offset < a.SpanBytes(t.DType) {
			return a, b
		}
	}
	return nil, nil
}

// pieceAt returns the i-th, from 0, of the pieces and, after them, the replicas. It is the
// tensor's own, not a copy.
func (t *Tensor) pieceAt(i int) *Piece {
	if i < len(t.Pieces) {
		return &t.Pieces[i]
	}
	return &t.Replicas[i-len(t.Pieces)]
}
