package format_test

// This file tests the joining of parts.
import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// TestJoin cuts tensors of bytes into blocks, and these over ranks, each rank's as it likes, and
// joins them.
func TestJoin(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
		ranks, dims := n("ranks", 1, 4), n("dimensions", 1, 3)
		c := format.Cut{Dim: n("dimension", 0, dims-1)}
		whole := format.Tensor{DType: tensor.U8}
		for range dims {
			whole.Shape = append(whole.Shape, n("extent", 1, 4))
		}
		whole.Shape[c.Dim] = 0
		// of a rank, the indices that it has, in the order in which it has them
		owner := map[int][]int{}
		for range n("blocks", 1, 3) {
			var widths []int
			for rank := range ranks {
				widths = append(widths, n("width", 0, 3))
				for range widths[rank] {
					owner[rank] = append(owner[rank], whole.Shape[c.Dim])
					whole.Shape[c.Dim]++
				}
			}
			c.Widths = append(c.Widths, widths)
		}
		elements, _ := whole.Shape.Elements()
		want := make([]byte, elements)
		for i := range want {
			want[i] = byte(i + 1)
		}
		dir := fstest.MapFS{}
		var parts []format.Part
		for rank := range ranks {
			p := &format.Tensor{Name: "w", DType: tensor.U8, Shape: slices.Clone(whole.Shape)}
			p.Shape[c.Dim] = len(owner[rank])
			file := string(rune('a' + rank))
			dir[file] = &fstest.MapFile{
				Data: append([]byte{99}, gather(want, whole.Shape, c.Dim, owner[rank])...)}
			all := p.Shape.Box().Elements()
			p.Pieces = format.FlatPieces(p.DType, p.Shape, 0, n("split", 0, all), file, 1)
			done := 0
			for _, q := range p.Pieces {
				done += q.Box.Elements()
			}
			p.Pieces = append(p.Pieces,
				format.FlatPieces(p.DType, p.Shape, done, all, file, int64(1+done))...)
			if all > 0 {
				p.Replicas = []format.Piece{{Box: p.Shape.Box(), File: file, Offset: 1}}
			}
			parts = append(parts, format.Part{Tensor: p, Rank: rank})
		}
		got, err := format.JoinParts(rapid.Permutation(parts).Draw(r, "order"), c)
		if err != nil {
			r.Fatal(err)
		}
		files := format.NewFiles(dir)
		checkpoint := format.Checkpoint{Tensors: []format.Tensor{got, replicasAsPieces(got)}}
		if faults := checkpoint.Check(files); len(faults) > 0 {
			r.Fatal(faults)
		}
		for _, x := range checkpoint.Tensors {
			b := make([]byte, len(want))
			if err := files.Read(&x, b); err != nil || !slices.Equal(b, want) ||
				!x.Shape.Equal(whole.Shape) {
				r.Fatalf("%v %v, want %v: %v", x.Shape, b, want, err)
			}
		}
		rows := n("rows", 0, got.Shape[c.Dim])
		got.Crop(c.Dim, rows)
		short := make([]byte, got.Bytes())
		kept := make([]int, rows)
		for i := range kept {
			kept[i] = i
		}
		if err := files.Read(&got, short); err != nil ||
			!slices.Equal(short, gather(want, whole.Shape, c.Dim, kept)) {
			r.Fatalf("of %v the first %d of dimension %d are %v: %v", want, rows, c.Dim, short, err)
		}
	})
}

// replicasAsPieces returns a tensor whose pieces are the replicas of another.
func replicasAsPieces(t format.Tensor) format.Tensor {
	t.Name, t.Pieces, t.Replicas = "copies", t.Replicas, nil
	return t
}

// gather returns the elements of a packed tensor with some indices in a dimension, in their order.
// Elements are bytes.
func gather(all []byte, shape tensor.Shape, dim int, indices []int) (some []byte) {
	inner, outer := shape[dim+1:].Box().Elements(), shape[:dim].Box().Elements()
	for o := range outer {
		for _, i := range indices {
			at := (o*shape[dim] + i) * inner
			some = append(some, all[at:at+inner]...)
		}
	}
	return some
}

// TestJoinRefuses gives parts that do not come to a whole: the error says why.
func TestJoinRefuses(t *testing.T) {
	part := func(rank int, d tensor.DType, shape ...int) format.Part {
		return format.Part{Tensor: &format.Tensor{Name: "w", DType: d, Shape: shape}, Rank: rank}
	}
	join := func(ranks, dim, blocks int) func(...format.Part) error {
		return func(parts ...format.Part) error {
			c, err := format.CutBlocks(parts, ranks, dim, blocks)
			if err == nil {
				_, err = format.JoinParts(parts, c)
			}
			return err
		}
	}
	same := func(parts ...format.Part) error {
		_, err := format.JoinReplicas(parts)
		return err
	}
	with := func(c format.Cut) func(...format.Part) error {
		return func(parts ...format.Part) error {
			_, err := format.JoinParts(parts, c)
			return err
		}
	}
	for want, err := range map[string]error{
		"of rank 1 there is no part": join(2, 0, 1)(part(0, tensor.F32, 2)),
		"of rank 2, and 2 ranks": join(2, 0, 1)(part(0, tensor.F32, 2),
			part(2, tensor.F32, 2)),
		"cannot be cut along dimension 1": join(2, 1, 1)(part(0, tensor.F32, 2),
			part(1, tensor.F32, 2)),
		"does not come apart in 2 equal": join(2, 0, 2)(part(0, tensor.F32, 3),
			part(1, tensor.F32, 2)),
		"rank 1 has a part of shape [2,4]": join(2, 0, 1)(part(0, tensor.F32, 2, 3),
			part(1, tensor.F32, 2, 4)),
		"share bytes": join(2, 0, 1)(part(0, tensor.F4, 2),
			part(1, tensor.F4, 2)),
		"another as f32 [3]":  same(part(0, tensor.F32, 2), part(1, tensor.F32, 3)),
		"another as bf16 [2]": same(part(0, tensor.F32, 2), part(1, tensor.BF16, 2)),
		"there is no part":    same(),
		"one rank has bf16, another f32": join(2, 0, 1)(part(0, tensor.BF16, 2),
			part(1, tensor.F32, 2)),
		"a cut without ranks": with(format.Cut{})(part(0, tensor.F32, 2)),
		"and [3,2] is due": with(format.Cut{Widths: [][]int{{1, 1}, {2, 0}}})(
			part(0, tensor.F32, 2, 2), part(1, tensor.F32, 1, 2)),
		"2 ranks share one block": with(format.Cut{Widths: [][]int{{1, 1}, {2}}})(
			part(0, tensor.F32, 2), part(1, tensor.F32, 1)),
		"a rank has": with(format.Cut{Widths: [][]int{{math.MaxInt, 1}}})(
			part(0, tensor.F32, 2), part(1, tensor.F32, 1)),
		"more elements than": with(format.Cut{Widths: [][]int{{math.MaxInt - 1, 1}}})(
			part(0, tensor.F32, 2, 2), part(1, tensor.F32, 1, 2)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
