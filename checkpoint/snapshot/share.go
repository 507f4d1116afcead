package snapshot

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/tensor"
)

// How the bytes of a state are divided among the workers that write it. Nothing here does I/O or
// changes what it is given.

// shardingInfo is the key of torch for the offsets of a shard in its tensor.
const shardingInfo = "DCP_SHARDING_INFO"

// A Tensor is a tensor of the state.
type Tensor struct {
	Name  string
	DType tensor.DType
	Shape tensor.Shape
	// Cuts lists where a tensor that no worker holds entirely is cut: rank r writes the bytes from
	// Cuts[r] to Cuts[r+1]. nil means that the tensor is cut as Share says.
	Cuts []int
}

// Bytes returns the size in bytes of all elements of the tensor.
func (t Tensor) Bytes() int {
	n, err := t.Shape.Elements()
	if err != nil {
		panic("snapshot: " + err.Error()) // ParseState has checked
	}
	return n * t.DType.Size()
}

// cutDim returns the dimension along which the tensor is cut: the first that is longer than 1, so
// that every part is one run of bytes.
func (t Tensor) cutDim() int {
	for i, n := range t.Shape {
		if n > 1 {
			return i
		}
	}
	return 0
}

// rowBytes returns the bytes of a row: of the elements that have one index along the axis; at least
// 1. No cut goes through a row.
func (t Tensor) rowBytes() int {
	rows := 1
	if len(t.Shape) > 0 {
		rows = max(t.Shape[t.cutDim()], 1)
	}
	return max(t.Bytes()/rows, 1)
}

// A Run is a range of bytes of a tensor that lies in one shard: From is the first byte in the
// tensor, To the one after the last. Tensor is the tensor's index in the state.
type Run struct{ Tensor, From, To int }

// Share returns what a rank writes: the bytes that only it has, and as nearly its equal share of
// the other bytes, in the order of the tensors, as whole rows allow.
func (s *State) Share(rank int) (runs []Run) {
	total := 0
	for _, t := range s.Tensors {
		if t.Cuts == nil {
			total += t.Bytes()
		}
	}
	first, last, at := total*rank/s.Workers, total*(rank+1)/s.Workers, 0
	for i, t := range s.Tensors {
		if t.Cuts != nil {
			if from, to := t.Cuts[rank], t.Cuts[rank+1]; from < to {
				runs = append(runs, Run{i, from, to})
			}
			continue
		}
		n, row := t.Bytes(), t.rowBytes()
		from, to := min(max(first-at, 0), n)/row*row, min(max(last-at, 0), n)/row*row
		if from < to || n == 0 && rank == 0 {
			runs = append(runs, Run{i, from, to})
		}
		at += n
	}
	return runs
}

// Bytes returns the total length of runs in bytes.
func Bytes(runs []Run) (n int) {
	for _, r := range runs {
		n += r.To - r.From
	}
	return n
}

// shardHeader returns the beginning of a rank's shard, a safetensors header, with the state that
// the rank has for itself.
func (s *State) shardHeader(rank int, runs []Run, own json.RawMessage) ([]byte, error) {
	h := &safetensors.Header{}
	origin := format.Origin{Rank: rank, Ranks: s.Workers, File: 1, Files: 1,
		Shapes: map[string]tensor.Shape{}, Own: own}
	offsets, at := []byte{'{'}, 0
	for i, r := range runs {
		t := s.Tensors[r.Tensor]
		shape, starts := append(tensor.Shape{}, t.Shape...), make(tensor.Shape, len(t.Shape))
		origin.Shapes[t.Name] = slices.Clone(shape)
		if len(shape) > 0 && t.Bytes() > 0 {
			shape[t.cutDim()], starts[t.cutDim()] = (r.To-r.From)/t.rowBytes(), r.From/t.rowBytes()
		}
		if i > 0 {
			offsets = append(offsets, ',')
		}
		// A plain name needs no escape.
		offsets = fmt.Appendf(offsets, `"%s":{"saved_offsets":%v}`, t.Name, starts)
		h.Tensors = append(h.Tensors,
			safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: shape, Begin: int64(at),
				End: int64(at + r.To - r.From)})
		at += r.To - r.From
	}
	text, err := origin.Text()
	if err != nil {
		return nil, err
	}
	h.Metadata = map[string]string{shardingInfo: string(append(offsets, '}')),
		format.OriginKey: text}
	return h.AppendBinary(nil)
}
