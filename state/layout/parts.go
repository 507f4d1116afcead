package layout

import (
	"fmt"
	"slices"
)

// A Parts reads stores in the other direction: from a stored tensor to the logical tensors of which
// it is made. It knows the stores that do not stack. Nothing changes it after NewParts, so any
// goroutine may use it; it does no I/O. The caller owns the lists that it returns.
type Parts struct{ stores []storeEntry }

// NewParts returns the Parts of some stores. It fails for invalid ones.
func NewParts(stores []Store) (*Parts, error) {
	p := &Parts{}
	for i, s := range stores {
		e, err := s.compile()
		if err != nil {
			return nil, fmt.Errorf("layout: store %d: %w", i+1, err)
		}
		if e.stack < 0 {
			p.stores = append(p.stores, e)
		}
	}
	return p, nil
}

// Names returns the names of the logical tensors of which a stored tensor is made, in the order in
// which they are joined; none if no store makes a tensor of this name.
func (p *Parts) Names(stored string) (names []string) {
	_, names = p.findStore(stored)
	return names
}

// findStore returns the store, not to be changed, that makes a tensor of a name, and the names of
// its parts; nil if there is none.
func (p *Parts) findStore(stored string) (*storeEntry, []string) {
	for i := range p.stores {
		e := &p.stores[i]
		if caught, ok := e.name.match(stored); ok {
			var names []string
			for _, part := range e.parts {
				names = append(names, part.fill(caught))
			}
			return e, names
		}
	}
	return nil, nil
}

// StoredName returns the name of the tensor that a logical tensor is part of, and the number of its
// parts; "" if no store takes a tensor of this name.
func (p *Parts) StoredName(logical string) (name string, parts int) {
	for i := range p.stores {
		e := &p.stores[i]
		for _, part := range e.parts {
			if caught, ok := part.match(logical); ok {
				return e.name.fill(caught), len(e.parts)
			}
		}
	}
	return "", 0
}

// Split returns the logical tensors of which a stored tensor is made; none if no store makes a
// tensor of its name. Parts that are joined without units are taken to have equally many rows.
// unpadded is the size of a padded dimension without its padding.
func (p *Parts) Split(stored Tensor, unpadded int) (list []Tensor, err error) {
	e, names := p.findStore(stored.Name)
	if e == nil {
		return nil, nil
	}
	units, dim := e.Units, e.Dim
	if units == nil {
		units = slices.Repeat([]int{1}, len(names))
	}
	if len(names) > 1 && dim >= len(stored.Shape) {
		return nil, fmt.Errorf("layout: %s is joined along dimension %d, and its shape is %v",
			stored.Name, dim, stored.Shape)
	}
	all := 0
	for _, u := range units {
		all += u
	}
	for i, name := range names {
		t := Tensor{Name: name, DType: stored.DType, Shape: slices.Clone(stored.Shape)}
		if len(names) > 1 {
			if t.Shape[dim]%all != 0 {
				return nil, fmt.Errorf(
					"layout: %s has %d rows, which do not come out even over %v of %d parts",
					stored.Name, t.Shape[dim], units, len(names))
			}
			t.Shape[dim] = t.Shape[dim] / all * units[i]
		}
		if e.Pad != nil {
			if d := e.Pad.Dim; d >= len(t.Shape) || unpadded < 1 || unpadded > t.Shape[d] {
				return nil, fmt.Errorf("layout: %s has shape %v, of which %d along dimension %d "+
					"cannot be what is not padding", stored.Name, t.Shape, unpadded, d)
			}
			t.Shape[e.Pad.Dim] = unpadded
		}
		list = append(list, t)
	}
	return list, nil
}

// IsPadded reports whether a store pads the tensor of a name.
func (p *Parts) IsPadded(stored string) bool {
	e, _ := p.findStore(stored)
	return e != nil && e.Pad != nil
}
