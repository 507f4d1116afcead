package layout

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// maxPieces bounds the number of pieces from which a stored tensor is joined.
const maxPieces = 1 << 20

// How the stored tensors of a layout are made of logical ones. Nothing here does I/O; each call of
// Resolve makes its own, which nothing changes after storeTensors.

// A stored is a tensor as it would lie in the memory of a single rank: one logical tensor, or
// several joined.
type stored struct {
	name   string
	dtype  tensor.DType
	shape  tensor.Shape
	parts  []int          // indices of the logical tensors
	shapes []tensor.Shape // shapes of the parts
	chunks []chunk        // what each box of a part becomes
	// shapeKey is equal for stored tensors that are joined in the same way from parts of the same
	// shapes.
	shapeKey string
}

// A chunk is a box of a part and where it lies in the stored tensor.
type chunk struct {
	part int // index in stored.parts
	box  tensor.Box
	lead int   // index in the dimension that stacking adds, -1 without one
	move []int // offsets from indices of the part to those of the stored tensor
}

// storeTensors returns the stored tensors that the catalogue becomes, in the order of the first
// part of each.
func (c *compiled) storeTensors(tensors []Tensor) ([]*stored, error) {
	joins := map[string]*join{}
	var out []*stored
	for i, t := range tensors {
		e, p, caught := c.findEntry(t.Name)
		if e < 0 {
			out = append(out, unjoined(i, t))
			continue
		}
		entry := &c.stores[e]
		key, number, err := entry.joinKey(e, caught)
		if err != nil {
			return nil, fmt.Errorf("layout: tensor %s: %w", t.Name, err)
		}
		j := joins[key]
		if j == nil {
			j = &join{entry: entry, shapeKey: "join " + strconv.Itoa(e), rows: map[int][]int{},
				out: &stored{}}
			j.out.name = entry.name.fill(entry.withoutStacked(caught))
			joins[key] = j
			out = append(out, j.out)
		}
		if j.rows[number] == nil {
			j.rows[number] = slices.Repeat([]int{-1}, len(entry.parts))
		}
		if other := j.rows[number][p]; other >= 0 {
			return nil, fmt.Errorf("layout: tensors %s and %s are both part %q of %s",
				tensors[other].Name, t.Name, entry.Parts[p], j.out.name)
		}
		j.rows[number][p] = i
	}
	for _, key := range slices.Sorted(maps.Keys(joins)) {
		if err := joins[key].build(tensors); err != nil {
			return nil, fmt.Errorf("layout: stored tensor %s: %w", joins[key].out.name, err)
		}
	}
	return out, checkStored(out)
}

// checkStored fails when two stored tensors have one name, and where what is stacked and padded has
// too many dimensions or elements.
func checkStored(all []*stored) error {
	seen, total := map[string]bool{}, 0
	for _, s := range all {
		if seen[s.name] {
			return fmt.Errorf(
				"layout: two stored tensors are called %s; give one another name under store",
				s.name)
		}
		seen[s.name] = true
		n, err := s.shape.Elements()
		if err != nil || n > MaxElements-total {
			return fmt.Errorf("layout: with the stored tensor %s, of shape %v, there are more "+
				"dimensions or elements than anyone can hold", s.name, s.shape)
		}
		total += n
	}
	return nil
}

// findEntry returns the first store entry that takes a logical tensor, as which part, and what its
// pattern captured; -1 if none does.
func (c *compiled) findEntry(name string) (entry, part int, caught []string) {
	for e := range c.stores {
		for p, pattern := range c.stores[e].parts {
			if caught, ok := pattern.match(name); ok {
				return e, p, caught
			}
		}
	}
	return -1, 0, nil
}

// withoutStacked returns the captures without the stacked number.
func (e *storeEntry) withoutStacked(caught []string) []string {
	if e.stack < 0 {
		return caught
	}
	return slices.Delete(slices.Clone(caught), e.stack, e.stack+1)
}

// joinKey returns a key of the stored tensor that a part with these captures belongs to, and the
// part's stacked number. index is that of the entry.
func (e *storeEntry) joinKey(index int, caught []string) (key string, number int, err error) {
	key = strconv.Itoa(index) + "\x00" + strings.Join(e.withoutStacked(caught), "\x00")
	if e.stack >= 0 {
		if number, err = strconv.Atoi(caught[e.stack]); err != nil {
			return "", 0, fmt.Errorf("the number %s is too large", caught[e.stack])
		}
	}
	return key, number, nil
}

// unjoined returns a logical tensor that is stored as it is.
func unjoined(i int, t Tensor) *stored {
	return &stored{
		name: t.Name, dtype: t.DType, shape: t.Shape, parts: []int{i},
		shapes:   []tensor.Shape{t.Shape},
		chunks:   []chunk{{box: t.Shape.Box(), lead: -1, move: make([]int, len(t.Shape))}},
		shapeKey: "plain",
	}
}

// A join collects the parts of one stored tensor. It does no I/O, and is for the goroutine of one
// call of storeTensors.
type join struct {
	entry    *storeEntry
	shapeKey string
	// rows are, for each stacked number (0 without one), the logical tensor of each part, -1 while
	// missing.
	rows map[int][]int
	out  *stored // the stored tensor, which build fills in
}

// build fills in the stored tensor, when all its parts are collected. It fails where one is missing
// or does not fit the others.
func (j *join) build(tensors []Tensor) error {
	s, e := j.out, j.entry
	numbers := slices.Sorted(maps.Keys(j.rows))
	for _, n := range numbers {
		for p, t := range j.rows[n] {
			if t < 0 {
				return fmt.Errorf("part %q is missing in the catalogue", e.Parts[p])
			}
		}
		s.parts = append(s.parts, j.rows[n]...)
	}
	first := tensors[s.parts[0]]
	// The store only renames the tensor, whatever its shape.
	if len(e.Parts) == 1 && e.Dim == 0 && e.Units == nil && e.stack < 0 && e.Pad == nil {
		name := s.name
		*s = *unjoined(s.parts[0], first)
		s.name = name
		return nil
	}
	s.dtype = first.DType
	if e.Dim >= len(first.Shape) {
		return fmt.Errorf("joined along dimension %d, but %s has shape %v", e.Dim, first.Name,
			first.Shape)
	}
	for lead := range numbers {
		row := s.parts[lead*len(e.parts):][:len(e.parts)]
		for p, t := range row {
			if err := checkJoinable(tensors[t], first, e.Dim); err != nil {
				return err
			}
			if a, b := tensors[t].Shape, tensors[s.parts[p]].Shape; !a.Equal(b) {
				return fmt.Errorf("%s has shape %v, which does not stack on %v", tensors[t].Name, a,
					b)
			}
		}
		if err := j.addRow(tensors, row, lead); err != nil {
			return err
		}
	}
	if e.stack >= 0 {
		s.shape = slices.Insert(s.shape, 0, len(numbers))
	}
	s.shapeKey = fmt.Sprint(j.shapeKey, len(numbers))
	for i, t := range s.parts {
		s.shapes = append(s.shapes, tensors[t].Shape)
		if i < len(e.parts) {
			s.shapeKey += tensors[t].Shape.String()
		}
	}
	return j.pad()
}

// checkJoinable fails unless a part has the type of the first one, and its shape but for one
// dimension.
func checkJoinable(t, first Tensor, dim int) error {
	if t.DType != first.DType {
		return fmt.Errorf("%s is %v and %s is %v; what is joined has one element type", first.Name,
			first.DType, t.Name, t.DType)
	}
	if len(t.Shape) == len(first.Shape) {
		a := slices.Clone(t.Shape)
		if a[dim] = first.Shape[dim]; a.Equal(first.Shape) {
			return nil
		}
	}
	return fmt.Errorf("%s has shape %v and %s %v; they may differ in dimension %d only", first.Name,
		first.Shape, t.Name, t.Shape, dim)
}

// addRow adds the parts of one stacked number to the stored tensor, unit by unit, and sets its
// shape without the stacked dimension. lead is the index in that.
func (j *join) addRow(tensors []Tensor, row []int, lead int) error {
	s, dim := j.out, j.entry.Dim
	units := j.entry.Units
	if units == nil {
		for _, t := range row {
			units = append(units, max(tensors[t].Shape[dim], 1))
		}
	}
	groups := -1
	for p, t := range row {
		n := tensors[t].Shape[dim]
		if n%units[p] != 0 || groups >= 0 && n/units[p] != groups {
			return fmt.Errorf(
				"%s has %d rows, which are not as many units of %d as the other parts have",
				tensors[t].Name, n, units[p])
		}
		groups = n / units[p]
	}
	if groups > maxPieces/len(row) {
		return fmt.Errorf("it would be joined from more than %d pieces", maxPieces)
	}
	at := 0
	for g := range groups {
		for p, t := range row {
			box := tensors[t].Shape.Box()
			box[dim] = tensor.Span{From: g * units[p], To: (g + 1) * units[p]}
			c := chunk{part: lead*len(row) + p, box: box, lead: -1, move: make([]int, len(box))}
			if j.entry.stack >= 0 {
				c.lead = lead
			}
			c.move[dim] = at - box[dim].From
			at += units[p]
			s.chunks = append(s.chunks, c)
		}
	}
	s.shape = slices.Clone(tensors[row[0]].Shape)
	s.shape[dim] = at
	return nil
}

// pad extends the shape of the stored tensor, if the store pads it.
func (j *join) pad() error {
	pad := j.entry.Pad
	if pad == nil {
		return nil
	}
	s := j.out
	if pad.Dim >= len(s.shape) {
		return fmt.Errorf("pad in dimension %d, but the shape is %v", pad.Dim, s.shape)
	}
	s.shape[pad.Dim] = (s.shape[pad.Dim] + pad.Multiple - 1) / pad.Multiple * pad.Multiple
	return nil
}

// intersectPart returns the part of a box of the stored tensor that a chunk fills, as a box of the
// logical tensor, and v, a view of the stored tensor, as a view for indices of the logical one. A
// nil box = the chunk fills nothing of it.
func (c *chunk) intersectPart(box tensor.Box, v tensor.View) (tensor.Box, tensor.View) {
	if c.lead >= 0 {
		if c.lead < box[0].From || c.lead >= box[0].To {
			return nil, v
		}
		v.Base += c.lead * v.Strides[0]
		v.Strides = v.Strides[1:]
		box = box[1:]
	}
	part := make(tensor.Box, len(box))
	for d, m := range c.move {
		part[d] = tensor.Span{From: max(box[d].From-m, c.box[d].From),
			To: min(box[d].To-m, c.box[d].To)}
		if part[d].Len() == 0 {
			return nil, v
		}
		v.Base += m * v.Strides[d]
	}
	return part, v
}
