package deepspeed

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// This file joins parameters from the flat buffers of ranks, by where their bytes lie: without
// I/O.

// joinGroup returns the optimizer's tensors of one group of parameters, joined from the flat
// buffers of the ranks that have parts of it. g is the group, and stage that of ZeRO.
func joinGroup(g int, stage int64, c groupCut) ([]format.Tensor, error) {
	ranks := c.ranks
	kinds := []string{"fp32"}
	var tensors []format.Tensor
	for kind, t := range ranks[0].groups[g] {
		// a number, such as the step: each parameter of a universal checkpoint has it
		if len(t.Shape) != 1 {
			for _, p := range c.names {
				tensors = append(tensors, t.AsTensor("optimizer."+kind+"."+p.name))
			}
			continue
		}
		kinds = append(kinds, kind)
	}
	for _, one := range ranks {
		if a, b := len(one.groups[g]), len(ranks[0].groups[g]); a != b {
			return nil, fmt.Errorf("%s has %d kinds of state of group %d, and %s %d", one.file.Name,
				a, g, ranks[0].file.Name, b)
		}
	}
	slices.Sort(kinds)
	// stage 3: where in each rank's buffer the next parameter starts
	starts := make([]int, len(ranks))
	start := 0 // and that of all ranks together
	for n, p := range c.shapes {
		for _, kind := range kinds {
			parts := make([]*torchzip.Tensor, len(ranks))
			for i, one := range ranks {
				parts[i] = one.groups[g][kind]
				if kind == "fp32" {
					parts[i] = one.fp32[g]
				}
				if parts[i] == nil || len(parts[i].Shape) != 1 {
					return nil, fmt.Errorf("%s has no flat buffer %s of group %d", one.file.Name,
						kind, g)
				}
			}
			var t format.Tensor
			var err error
			if stage == 3 {
				t, err = joinShares(p, parts, starts[0])
			} else if c.roundRobin {
				t, err = joinInOrder(p, g, ranks, parts, start)
			} else {
				t, err = joinFragments(p, g, ranks, parts)
			}
			if err != nil {
				return nil, fmt.Errorf("optimizer state %s: %w", kind, err)
			}
			t.Name = "optimizer." + kind + "." + c.names[n].name
			tensors = append(tensors, t)
		}
		for i := range starts {
			starts[i] += shareSize(p, len(ranks))
		}
		n, _ := p.shape.Elements()
		start += n
	}
	return tensors, nil
}

// joinInOrder joins a parameter that starts at an element of the flat buffer of all ranks. parts
// are their parts of the buffer.
func joinInOrder(p param, g int, ranks []*rank, parts []*torchzip.Tensor, start int) (format.Tensor,
	error) {
	t := format.Tensor{DType: parts[0].DType, Shape: p.shape}
	n, _ := p.shape.Elements()
	at, done := 0, 0
	for i, one := range ranks {
		own := one.fp32[g].Shape[0] // without what is filled up, which is after all parameters
		if from, to := max(start, at), min(start+n, at+own); from < to {
			if err := addPieces(&t, parts[i], from-start, to-start, from-at); err != nil {
				return t, fmt.Errorf("%q: %s: %w", p.name, one.file.Name, err)
			}
			done += to - from
		}
		at += own
	}
	if done != n {
		return t, fmt.Errorf("%q: the ranks have %d of its %d elements", p.name, done, n)
	}
	return t, nil
}

// shareSize returns how many elements of a parameter each rank has in stage 3; the last ranks'
// parts are padded.
func shareSize(p param, ranks int) int {
	n, _ := p.shape.Elements()
	return n/ranks + min(n%ranks, 1)
}

// joinShares joins a parameter that is cut into equal shares, which stand in each rank's buffer
// from start on.
func joinShares(p param, parts []*torchzip.Tensor, start int) (format.Tensor, error) {
	t := format.Tensor{DType: parts[0].DType, Shape: p.shape}
	n, _ := p.shape.Elements()
	each := shareSize(p, len(parts))
	for i, part := range parts {
		if err := addPieces(&t, part, min(i*each, n), min((i+1)*each, n), start); err != nil {
			return t, fmt.Errorf("%q, rank %d: %w", p.name, i, err)
		}
	}
	return t, nil
}

// joinFragments joins a parameter from the fragments that param_slice_mappings lists, in the order
// of the ranks.
func joinFragments(p param, g int, ranks []*rank, parts []*torchzip.Tensor) (format.Tensor, error) {
	t := format.Tensor{DType: parts[0].DType, Shape: p.shape}
	n, _ := p.shape.Elements()
	done := 0
	for i, one := range ranks {
		maps, err := pickle.Get[*pickle.List](one.file.Root, "optimizer_state_dict",
			"param_slice_mappings")
		if err != nil || g >= len(maps.Items) {
			return t, fmt.Errorf("%s does not say where in the flat buffers the parameters lie "+
				"(param_slice_mappings); it is of a DeepSpeed before 0.7, whose ds_to_universal "+
				"converts it", one.file.Name)
		}
		v, err := pickle.Get[*pickle.Object](maps.Items[g], p.name)
		if err != nil {
			continue // this rank has no part of it
		}
		count, start, err := parseFragment(v)
		if err == nil && count > n-done {
			err = fmt.Errorf("a fragment of %d elements after %d of %d", count, done, n)
		}
		if err != nil {
			return t, fmt.Errorf("%q: %s: %w", p.name, one.file.Name, err)
		}
		if err := addPieces(&t, parts[i], done, done+count, start); err != nil {
			return t, fmt.Errorf("%q: %s: %w", p.name, one.file.Name, err)
		}
		done += count
	}
	if done != n {
		return t, fmt.Errorf("%q: the ranks have %d of its %d elements", p.name, done, n)
	}
	return t, nil
}

// parseFragment reads a fragment_address: the number of elements, and the position of the first in
// the flat buffer.
func parseFragment(v *pickle.Object) (count, start int, err error) {
	var at [2]int64
	for i, name := range []string{"numel", "start"} {
		if at[i], err = pickle.Get[int64](v, name); err != nil {
			return 0, 0, err
		}
		if at[i] < 0 || at[i] > math.MaxInt32*1024 {
			return 0, 0, fmt.Errorf("%s is %d", name, at[i])
		}
	}
	return int(at[0]), int(at[1]), nil
}

// addPieces adds to a tensor the pieces of its elements [from, to), which stand in a flat buffer
// from start on.
func addPieces(t *format.Tensor, buffer *torchzip.Tensor, from, to, start int) error {
	if from == to {
		return nil
	}
	if buffer.DType != t.DType || len(buffer.Shape) != 1 || to-from > buffer.Shape[0] ||
		start > buffer.Shape[0]-(to-from) {
		return fmt.Errorf("elements %d to %d of a flat buffer of %v %v are due", start,
			start+to-from, buffer.DType, tensor.Shape(buffer.Shape))
	}
	file, offset, err := buffer.LocateFlat(start)
	if err != nil {
		return err
	}
	t.Pieces = append(t.Pieces, format.FlatPieces(t.DType, t.Shape, from, to, file, offset)...)
	return nil
}
