package ranks

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// This file divides the writing of a running job's checkpoint among the ranks that hold the same
// state. Its functions are pure: all ranks compute the same of the same layout.

// balanceFiles sets in ranks, by slot and member, which rank writes each tensor: among the ranks
// that hold it, the one whose file has the fewest bytes so far, the lowest of several. It takes
// the tensors by name, and of one name by the lowest rank that holds them.
func balanceFiles(l *layout.Layout, ranks [][]int) {
	var all []local
	for i := range ranks {
		for m := range ranks[i] {
			all = append(all, local{i, m})
		}
	}
	slices.SortFunc(all, func(a, b local) int {
		s, t := &l.Slots[a.slot], &l.Slots[b.slot]
		return cmp.Or(cmp.Compare(s.Names[a.member], t.Names[b.member]),
			cmp.Compare(l.Sets[s.Set][0], l.Sets[t.Set][0]))
	})
	bytes := make([]int, l.Ranks)
	for _, x := range all {
		s := &l.Slots[x.slot]
		rank := &ranks[x.slot][x.member]
		for _, r := range l.Sets[s.Set] {
			if bytes[r] < bytes[*rank] {
				*rank = int(r)
			}
		}
		bytes[*rank] += s.Bytes()
	}
}

// DescribeSpread returns the content of LayoutName for a checkpoint whose ranks each write a Share.
// l is the resolved spec.
func DescribeSpread(spec *layout.Spec, l *layout.Layout) ([]byte, error) {
	return describeLayout(layoutJSON{Shoal: version, Spec: spec, Spread: true}, l)
}

// A Share is the file that a rank writes of a spread state.
type Share struct {
	Name    string // name of the file
	Head    []byte // beginning of the file; the tensors follow
	Tensors []Stored
	Bytes   int // bytes of the tensors
}

// A Stored is a local tensor in a file. Its pieces are the boxes that other files of the checkpoint
// hold as replicas only, if at all.
type Stored struct {
	layout.Local
	At int // offset of its first byte after the head
}

// ShareOf returns what a rank writes: tensors with wide elements first, then by name, so that each
// element is aligned. A rank that writes nothing has a share without tensors, and no file. It fails
// for element types that safetensors lacks.
func ShareOf(l *layout.Layout, rank int) (*Share, error) {
	mine := map[local]*Stored{}
	for i, members := range writerRanks(l, true) {
		for m, writer := range members {
			if writer == rank {
				s := &l.Slots[i]
				mine[local{i, m}] = &Stored{
					Local: layout.Local{Name: s.Names[m], DType: s.DType, Shape: s.Shape}}
			}
		}
	}
	for i := range l.Families {
		f := &l.Families[i]
		for _, c := range f.Grid.Cells {
			for m, index := range f.Tensors {
				if s := mine[local{f.Slots[c.Held[0].Slot], m}]; s != nil {
					s.Pieces = append(s.Pieces,
						layout.Piece{Tensor: index, Box: c.Box, View: c.Held[0].View})
				}
			}
		}
	}
	order := slices.SortedFunc(maps.Values(mine), func(a, b *Stored) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), cmp.Compare(a.Name, b.Name))
	})
	share, h := &Share{Name: fileName(rank)}, &safetensors.Header{}
	for _, s := range order {
		s.At = share.Bytes
		share.Bytes += s.Shape.Box().Elements() * s.DType.Size()
		h.Tensors = append(h.Tensors,
			safetensors.Tensor{Name: s.Name, DType: s.DType,
				Shape: append(tensor.Shape{}, s.Shape...), Begin: int64(s.At),
				End: int64(share.Bytes)})
		share.Tensors = append(share.Tensors, *s)
	}
	var err error
	if h.Metadata, err = fileMetadata(l, rank); err == nil {
		_, err = safetensors.Layout(h.Tensors, h.Metadata) // fails for what a file cannot hold
	}
	if err == nil {
		share.Head, err = h.AppendBinary(nil)
	}
	return share, err
}

// ShareMarks returns a bit for each tensor with elements in the memory of a rank, in the order of
// names, beginning with the lowest bit of the first byte: whether it belongs to the rank's share.
func ShareMarks(l *layout.Layout, rank int) []byte {
	wrote, names := map[string]bool{}, []string{}
	for i, members := range writerRanks(l, true) {
		s := &l.Slots[i]
		if !l.Sets[s.Set].Contains(rank) || s.Elements() == 0 {
			continue
		}
		for m, writer := range members {
			names, wrote[s.Names[m]] = append(names, s.Names[m]), writer == rank
		}
	}
	slices.Sort(names)
	marks := make([]byte, (len(names)+7)/8)
	for i, name := range names {
		if wrote[name] {
			marks[i/8] |= 1 << (i % 8)
		}
	}
	return marks
}
