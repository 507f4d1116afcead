package megatron

// This file places parameters in a reshardable's buckets: its goroutine, no I/O.
import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron/order"
	"github.com/shoal-ml/shoal/tensor"
)

// joinState returns the state of all parameters, joined from the buffers, assuming that they were
// registered under the names that names returns for them.
func (r *reshardable) joinState(names func(string) string) ([]format.Tensor, error) {
	held, used := map[string]map[[2]int][]*format.Tensor{}, 0
	for _, s := range r.ranks.ranks {
		for o := range 2 {
			apart := r.several
			if o == 1 && !apart || o == 0 && apart && s.ep > 0 {
				continue
			}
			id := bufferID{o, s.pp*r.size.tp + s.tp, 0}
			if o == 1 {
				id.rank = (s.pp*r.size.ep+s.ep)*r.size.tp + s.tp
			}
			chunks := make([][]*local, r.ranks.chunks)
			for _, l := range s.model {
				if !apart || cutExperts.MatchString(l.param) == (o == 1) {
					chunks[l.chunk] = append(chunks[l.chunk], l)
				}
			}
			for _, params := range chunks {
				if len(params) == 0 {
					continue
				}
				slices.SortFunc(params, func(a, b *local) int {
					return slices.Compare(order.SortKey(names(b.name)),
						order.SortKey(names(a.name)))
				})
				if err := r.takeParams(id, params, held); err != nil {
					return nil, err
				}
				id.number++
				used++
			}
		}
	}
	if used != len(r.buffers) {
		return nil, unnamedErrorf(
			"the distributed optimizer has %d buffers, and by the arguments there would be %d",
			len(r.buffers), used)
	}
	return r.assemble(held)
}

// takeParams finds parameters in a buffer, and adds what it has of them to held: by the kind of
// state, then by slot and member of the layout. The first one there was registered last.
func (r *reshardable) takeParams(id bufferID, params []*local,
	held map[string]map[[2]int][]*format.Tensor) error {
	list, bucket, end := r.buffers[id], 0, 0
	wrong := func(l *local) error {
		return unnamedErrorf(
			"the distributed optimizer's buffer %d of ranks %d has buckets that do "+
				"not end where parameters do (%q); not all parameters are trained, or Megatron "+
				"registers them in another order than shoal knows", id.number, id.rank, l.param)
	}
	for _, l := range params {
		n, at := l.Shape.Box().Elements(), (end+align-1)/align*align
		// an embedding that another stage has too begins a bucket at such a multiple
		if bucket < len(list) &&
			(end == list[bucket][aloneKind].Shape[0] || at == list[bucket][aloneKind].Shape[0]) {
			bucket, at = bucket+1, 0
		}
		if bucket >= len(list) || at+n > list[bucket][aloneKind].Shape[0] {
			return wrong(l)
		}
		for kind, flat := range list[bucket] {
			if held[kind] == nil {
				held[kind] = map[[2]int][]*format.Tensor{}
			}
			pieces, whole := piecesFrom(flat, l.Shape, at)
			if !whole {
				return unnamedErrorf("%q has no elements where %q stands", flat.Name, l.param)
			}
			key := [2]int{l.slot, l.member}
			held[kind][key] = append(held[kind][key],
				&format.Tensor{DType: flat.DType, Shape: l.Shape, Pieces: pieces})
		}
		end = at + n
	}
	if bucket != len(list)-1 || end != list[bucket][aloneKind].Shape[0] {
		return wrong(params[len(params)-1])
	}
	return nil
}

// piecesFrom returns a parameter's pieces, from element at of flat on; whole = none is missing.
func piecesFrom(flat *format.Tensor, shape tensor.Shape, at int) (pieces []format.Piece,
	whole bool) {
	next, to := at, at+shape.Box().Elements()
	i, _ := slices.BinarySearchFunc(flat.Pieces, at, func(p format.Piece, at int) int {
		return cmp.Compare(p.Box[0].To, at+1)
	})
	for _, p := range flat.Pieces[i:] {
		from, end := max(at, p.Box[0].From), min(to, p.Box[0].To)
		if from >= end || from != next || p.Strides != nil {
			break
		}
		pieces = append(pieces,
			format.FlatPieces(flat.DType, shape, from-at, end-at, p.File,
				p.Offset+int64((from-p.Box[0].From)*flat.DType.Size()))...)
		next = end
	}
	return pieces, next == to
}

// assemble returns the whole tensors, joined from those of ranks in held.
func (r *reshardable) assemble(held map[string]map[[2]int][]*format.Tensor) (all []format.Tensor,
	err error) {
	kinds := slices.Sorted(maps.Keys(held))
	l := r.ranks.layout
	for _, f := range l.Families {
		for member, index := range f.Tensors {
			for _, kind := range kinds {
				t := format.Tensor{Name: optimizerKey + "." + kind + "." +
					strings.TrimPrefix(l.Tensors[index].Name, "model."),
					Shape: l.Tensors[index].Shape}
				if kind == aloneKind {
					t.Name = optimizerKey + ".fp32." +
						strings.TrimPrefix(l.Tensors[index].Name, "model.")
				}
				for _, cell := range f.Grid.Cells {
					first := true
					for _, h := range cell.Held {
						moved := boxFrom(cell.Box, l.Slots[f.Slots[h.Slot]].Shape,
							h.View.At(cell.Box))
						for _, from := range held[kind][[2]int{f.Slots[h.Slot], member}] {
							t.DType = from.DType
							pieces := format.RestrictPieces(from.DType, from.Pieces, moved,
								cell.Box)
							if first {
								t.Pieces = append(t.Pieces, pieces...)
							} else {
								t.Replicas = append(t.Replicas, pieces...)
							}
							first = false
						}
					}
					if first {
						return nil, unnamedErrorf(
							"the distributed optimizer's buffers have nothing of %q", t.Name)
					}
				}
				all = append(all, t)
			}
		}
	}
	return all, nil
}
