package collective_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// lengths are the grid of block lengths: none, odd, around vector widths, and more than one chunk.
var lengths = []int{0, 1, 2, 3, 7, 16, 31, 64, 65, 1000, 20_001}

// encode returns numbers as elements of a type, as they lie in memory: floating-point types round,
// and integers wrap around.
func encode(d tensor.DType, xs []float64) []byte {
	b := make([]byte, 0, len(xs)*d.Size())
	le := binary.LittleEndian
	for _, x := range xs {
		switch d {
		case tensor.F64:
			b = le.AppendUint64(b, math.Float64bits(x))
		case tensor.F32:
			b = le.AppendUint32(b, math.Float32bits(float32(x)))
		case tensor.F16:
			b = le.AppendUint16(b, uint16(tensor.Float16From(float32(x))))
		case tensor.BF16:
			b = le.AppendUint16(b, uint16(tensor.BFloat16From(float32(x))))
		case tensor.I64:
			b = le.AppendUint64(b, uint64(int64(x)))
		case tensor.I32:
			b = le.AppendUint32(b, uint32(int32(x)))
		case tensor.U8:
			b = append(b, uint8(int(x)))
		}
	}
	return b
}

// decode returns the numbers that elements of a type stand for.
func decode(d tensor.DType, b []byte) []float64 {
	le := binary.LittleEndian
	xs := make([]float64, 0, len(b)/d.Size())
	for ; len(b) > 0; b = b[d.Size():] {
		var x float64
		switch d {
		case tensor.F64:
			x = math.Float64frombits(le.Uint64(b))
		case tensor.F32:
			x = float64(math.Float32frombits(le.Uint32(b)))
		case tensor.F16:
			x = float64(tensor.Float16(le.Uint16(b)).Float32())
		case tensor.BF16:
			x = float64(tensor.BFloat16(le.Uint16(b)).Float32())
		case tensor.I64:
			x = float64(int64(le.Uint64(b)))
		case tensor.I32:
			x = float64(int32(le.Uint32(b)))
		case tensor.U8:
			x = float64(b[0])
		}
		xs = append(xs, x)
	}
	return xs
}

// epsilon returns the relative error that one rounding to the type may cause; 0 for integers.
func epsilon(d tensor.DType) float64 {
	switch d {
	case tensor.F64:
		return 1e-15
	case tensor.F32:
		return 2e-7
	case tensor.F16:
		return 1.0 / 1024
	case tensor.BF16:
		return 1.0 / 128
	}
	return 0
}

// randomElements draws n elements of a type, small enough that sums of them do not overflow.
func randomElements(rng *rand.Rand, d tensor.DType, n int) []byte {
	xs := make([]float64, n)
	for i := range xs {
		if d.Float() {
			xs[i] = rng.Float64()*2 - 1
		} else {
			xs[i] = float64(rng.IntN(4))
		}
	}
	return encode(d, xs)
}

// reduceNaively is the reference: it combines xs, one element of each rank, in float64. Weights are
// those of the ranks, which only a mean uses.
func reduceNaively(op collective.Reduction, weights, xs []float64) float64 {
	acc, total := xs[0], 0.0
	for _, w := range weights {
		total += w
	}
	if op == collective.Mean {
		acc = 0
		for i, x := range xs {
			acc += weights[i] * x / total
		}
		return acc
	}
	for _, x := range xs[1:] {
		switch op {
		case collective.Sum:
			acc += x
		case collective.Prod:
			acc *= x
		case collective.Min:
			acc = min(acc, x)
		case collective.Max:
			acc = max(acc, x)
		}
	}
	return acc
}

// buildAndRun runs a complete set of calls, one for each rank, the way an agent does, with chunks
// in a random order; the results are in the outputs of calls. A call that Check refuses, or a set
// that Build does, fails the test.
func buildAndRun(t *testing.T, rng *rand.Rand, calls []*collective.Call) {
	t.Helper()
	for r, c := range calls {
		if err := c.Check(len(calls), r); err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	var s collective.Schedule
	if err := s.Build(calls); err != nil {
		t.Fatal(err)
	}
	runChunks(rng, &s, calls)
}

// runChunks executes a schedule over the memory of calls, with chunks in a random order.
func runChunks(rng *rand.Rand, s *collective.Schedule, calls []*collective.Call) {
	var r collective.Executor
	r.Prepare(s, calls)
	scratch := collective.NewScratch()
	for _, i := range rng.Perm(r.Chunks()) {
		r.Chunk(i, scratch)
	}
}

// reductionsOf lists the reductions that there are for an element type.
func reductionsOf(d tensor.DType) []collective.Reduction {
	ops := []collective.Reduction{collective.Sum, collective.Min, collective.Max, collective.Prod}
	if d.Float() {
		ops = append(ops, collective.Mean)
	}
	return ops
}

// forEachWorld runs f as a subtest for every size of world, element type, and length of the grid,
// in elements, with random numbers that are the same in each run.
func forEachWorld(t *testing.T,
	f func(t *testing.T, rng *rand.Rand, size int, d tensor.DType, n int)) {
	for size := 1; size <= 8; size++ {
		for _, d := range tensor.DTypes() {
			for _, n := range lengths {
				seed := uint64(size)<<32 | uint64(d)<<24 | uint64(n)
				t.Run(fmt.Sprintf("ranks=%d/%v/n=%d", size, d, n), func(t *testing.T) {
					f(t, rand.New(rand.NewPCG(seed, 1)), size, d, n)
				})
			}
		}
	}
}

// checkReduced fails the test if got, a result, differs from the reference over the inputs, by
// rank, from their element off on, by more than roundings explain.
func checkReduced(t *testing.T, op collective.Reduction, d tensor.DType, weights []float64,
	inputs [][]float64, off int, got []float64) {
	t.Helper()
	xs := make([]float64, len(inputs))
	for i, g := range got {
		scale := 0.0
		for r := range inputs {
			xs[r] = inputs[r][off+i]
			scale += math.Abs(xs[r])
		}
		want := reduceNaively(op, weights, xs)
		if !d.Float() {
			want = decode(d, encode(d, []float64{want}))[0] // wraps around
		}
		if tol := epsilon(d) * float64(len(inputs)+1) * max(scale,
			math.Abs(want)); math.Abs(g-want) > tol {
			t.Fatalf("%v %v element %d: got %v, want %v (tolerance %v) from %v", op, d, i, g, want,
				tol, xs)
		}
	}
}

// All-reduce, apart and in place, reduce and reduce-scatter give what the naive reference gives,
// and the same bytes on every rank.
func TestReducingCollectives(t *testing.T) {
	forEachWorld(t, func(t *testing.T, rng *rand.Rand, size int, d tensor.DType, n int) {
		for _, op := range reductionsOf(d) {
			inputs, raw, weights := make([][]float64, size), make([][]byte, size),
				make([]float64, size)
			for r := range inputs {
				raw[r] = randomElements(rng, d, n)
				inputs[r] = decode(d, raw[r])
				weights[r] = float64(1 + rng.IntN(3))
			}
			call := func(r int, kind collective.Kind, in, out []byte) *collective.Call {
				return &collective.Call{Kind: kind, DType: d, Reduction: op, Weight: weights[r],
					Peer: size / 2, In: in, Out: out, Shape: []int{n}}
			}
			apart, inPlace, reduce, scatter := make([]*collective.Call, size),
				make([]*collective.Call, size), make([]*collective.Call, size),
				make([]*collective.Call, size)
			blocks := randomParts(rng, n, size)
			for r := range size {
				apart[r] = call(r, collective.AllReduce, raw[r], make([]byte, len(raw[r])))
				scatter[r] = call(r, collective.ReduceScatter, raw[r],
					make([]byte, blocks[r]*d.Size()))
				reduce[r] = call(r, collective.Reduce, raw[r], nil)
				if r == size/2 {
					reduce[r].Out = make([]byte, len(raw[r]))
				}
				same := bytes.Clone(raw[r])
				inPlace[r] = call(r, collective.AllReduce, same, same)
			}
			buildAndRun(t, rng, apart)
			buildAndRun(t, rng, inPlace)
			buildAndRun(t, rng, reduce)
			buildAndRun(t, rng, scatter)
			checkReduced(t, op, d, weights, inputs, 0, decode(d, apart[0].Out))
			off := 0
			for r := range size {
				part := apart[0].Out[off*d.Size() : (off+blocks[r])*d.Size()]
				if !bytes.Equal(apart[r].Out, apart[0].Out) ||
					!bytes.Equal(inPlace[r].Out, apart[0].Out) ||
					!bytes.Equal(scatter[r].Out, part) {
					t.Fatalf("%v: rank %d has other bytes than rank 0, or in place, or scattered",
						op, r)
				}
				off += blocks[r]
			}
			if !bytes.Equal(reduce[size/2].Out, apart[0].Out) {
				t.Fatalf("%v: the root has other bytes", op)
			}
		}
	})
}

// randomParts splits n into random parts, which add up to it.
func randomParts(rng *rand.Rand, n, parts int) []int {
	c := make([]int, parts)
	for i := range c[1:] {
		c[i] = rng.IntN(n + 1)
		n -= c[i]
	}
	c[parts-1] = n
	return c
}

// All-gather, broadcast, gather and scatter bring exactly the bytes of their inputs to where they
// belong.
func TestMovingCollectives(t *testing.T) {
	forEachWorld(t, func(t *testing.T, rng *rand.Rand, size int, d tensor.DType, n int) {
		blocks, root := randomParts(rng, n, size), size-1
		var whole []byte
		calls := map[collective.Kind][]*collective.Call{}
		add := func(kind collective.Kind, in, out []byte) *collective.Call {
			c := &collective.Call{Kind: kind, DType: d, Peer: root, In: in, Out: out,
				Shape: []int{n}}
			calls[kind] = append(calls[kind], c)
			return c
		}
		for r := range size {
			part := randomElements(rng, d, blocks[r])
			whole = append(whole, part...)
			add(collective.AllGather, part, make([]byte, n*d.Size()))
			if r == root {
				add(collective.Gather, part, make([]byte, n*d.Size()))
				add(collective.Broadcast, whole, nil)
				add(collective.Scatter, whole, make([]byte, len(part)))
				continue
			}
			add(collective.Gather, part, nil)
			add(collective.Broadcast, nil, make([]byte, n*d.Size()))
			add(collective.Scatter, nil, make([]byte, len(part)))
		}
		for kind := range calls {
			buildAndRun(t, rng, calls[kind])
		}
		for r := range size {
			part := calls[collective.AllGather][r].In
			if got := calls[collective.AllGather][r].Out; !bytes.Equal(got, whole) {
				t.Fatalf("all_gather on rank %d", r)
			}
			if got := calls[collective.Scatter][r].Out; !bytes.Equal(got, part) {
				t.Fatalf("scatter on rank %d", r)
			}
			if got := calls[collective.Broadcast][r].Out; r != root && !bytes.Equal(got, whole) {
				t.Fatalf("broadcast on rank %d", r)
			}
		}
		if got := calls[collective.Gather][root].Out; !bytes.Equal(got, whole) {
			t.Fatal("gather")
		}
	})
}

// An all-to-all with even blocks, or with split counts, brings each block to its rank.
func TestAllToAll(t *testing.T) {
	forEachWorld(t, func(t *testing.T, rng *rand.Rand, size int, d tensor.DType, n int) {
		for _, even := range []bool{true, false} {
			calls, want := make([]*collective.Call, size), make([][]byte, size)
			for r := range calls {
				c := &collective.Call{Kind: collective.AllToAll, DType: d,
					In: randomElements(rng, d, n*size), Shape: []int{n * size}}
				at := 0
				for to := range size {
					k := n
					if !even {
						k = rng.IntN(n + 1)
						c.Splits = append(c.Splits, k)
					}
					want[to] = append(want[to], c.In[at*d.Size():(at+k)*d.Size()]...)
					at += k
				}
				c.In = c.In[:at*d.Size()]
				calls[r] = c
			}
			for r, c := range calls {
				c.Out = make([]byte, len(want[r]))
			}
			buildAndRun(t, rng, calls)
			for r, c := range calls {
				if !bytes.Equal(c.Out, want[r]) {
					t.Fatalf("rank %d, even %v", r, even)
				}
			}
		}
	})
}

// In place, an all_gather's input lies in its own block of the output, and a reduce_scatter's
// output in its block of the input.
func TestOwnBlockInPlace(t *testing.T) {
	const size, n = 4, 5000
	rng := rand.New(rand.NewPCG(1, 2))
	var gather, scatter []*collective.Call
	var parts, sums []byte
	totals := make([]float64, size*n)
	for r := range size {
		out := make([]byte, size*n*4)
		in := out[r*n*4 : (r+1)*n*4]
		copy(in, randomElements(rng, tensor.F32, n))
		parts = append(parts, in...)
		gather = append(gather,
			&collective.Call{Kind: collective.AllGather, DType: tensor.F32, In: in, Out: out,
				Shape: []int{n}})
		whole := randomElements(rng, tensor.I32, size*n)
		for i, x := range decode(tensor.I32, whole) {
			totals[i] += x
		}
		scatter = append(scatter,
			&collective.Call{Kind: collective.ReduceScatter, DType: tensor.I32,
				Reduction: collective.Sum,
				In:        whole, Out: whole[r*n*4 : (r+1)*n*4], Shape: []int{size * n}})
	}
	sums = encode(tensor.I32, totals)
	buildAndRun(t, rng, gather)
	buildAndRun(t, rng, scatter)
	for r := range size {
		if !bytes.Equal(gather[r].Out, parts) {
			t.Errorf("all_gather in place on rank %d", r)
		}
		if !bytes.Equal(scatter[r].Out, sums[r*n*4:(r+1)*n*4]) {
			t.Errorf("reduce_scatter in place on rank %d", r)
		}
	}
}

// A weight of 0 leaves a rank out, whatever its input holds.
func TestWeightZero(t *testing.T) {
	nan := encode(tensor.F32, []float64{math.NaN(), math.NaN()})
	x := encode(tensor.F32, []float64{3, 4})
	calls := []*collective.Call{
		{Kind: collective.AllReduce, DType: tensor.F32, Reduction: collective.Mean, Weight: 0,
			In: nan, Out: nan},
		{Kind: collective.AllReduce, DType: tensor.F32, Reduction: collective.Mean, Weight: 5,
			In: x, Out: x},
	}
	buildAndRun(t, rand.New(rand.NewPCG(1, 1)), calls)
	for r, c := range calls {
		if got := decode(tensor.F32, c.Out); got[0] != 3 || got[1] != 4 {
			t.Errorf("rank %d: %v, want [3 4]", r, got)
		}
	}
}

// A send and its receive copy the bytes.
func TestTransfer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	x := randomElements(rng, tensor.BF16, 70_001)
	send := &collective.Call{Kind: collective.Send, DType: tensor.BF16, Peer: 1, In: x}
	recv := &collective.Call{Kind: collective.Recv, DType: tensor.BF16, Peer: 0,
		Out: make([]byte, len(x))}
	var s collective.Schedule
	s.BuildTransfer(send, recv)
	runChunks(rng, &s, []*collective.Call{send, recv})
	if !bytes.Equal(recv.Out, x) {
		t.Error("the bytes changed on the way")
	}
}

// The steady state of a collective allocates nothing.
func TestScheduleAllocatesNothing(t *testing.T) {
	var calls []*collective.Call
	for range 4 {
		x := make([]byte, 1<<20)
		calls = append(calls,
			&collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
				Reduction: collective.Mean, Weight: 1, In: x, Out: x, Shape: []int{1 << 18}})
	}
	var s collective.Schedule
	var r collective.Executor
	scratch := collective.NewScratch()
	allocs := testing.AllocsPerRun(20, func() {
		if err := s.Build(calls); err != nil {
			t.Fatal(err)
		}
		r.Prepare(&s, calls)
		for i := range r.Chunks() {
			r.Chunk(i, scratch)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations a collective", allocs)
	}
	if want := 4 * 2 << 20; s.Bytes != want {
		t.Errorf("%d bytes moved, the minimum is %d", s.Bytes, want)
	}
}
