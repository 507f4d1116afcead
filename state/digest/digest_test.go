package digest_test

import (
	"bytes"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/tensor"
	"pgregory.net/rapid"
)

// prime is the modulus of fingerprints.
var prime = new(big.Int).SetUint64(1<<61 - 1)

// expectedWeights returns what a key of this seed draws, by the description in
// docs/formats/fingerprint.md: the weights t, and a.
func expectedWeights(seed uint64) (t [2048]*big.Int, a *big.Int) {
	next := func() *big.Int { // from 1 to 2^61 - 2
		for {
			seed += 0x9E3779B97F4A7C15
			z := seed
			z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
			z = (z ^ z>>27) * 0x94D049BB133111EB
			if z = (z ^ z>>31) >> 3; z < 1<<61-2 {
				return new(big.Int).SetUint64(z + 1)
			}
		}
	}
	for i := range t {
		t[i] = next()
	}
	return t, next()
}

// TestRunIsTheFormula adds up byte by byte, in arbitrary precision.
func TestRunIsTheFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		block := rapid.SampledFrom(
			[]int{0, 1, 5, 1023, 1024, 1 << 20, 1<<20 + 1, 3<<20 + 7, 1<<42 + 1<<21 + 3}).Draw(t,
			"block")
		offset := 8192*block + rapid.IntRange(0, 8191).Draw(t, "offset")
		data := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "data")
		if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
			data = bytes.Repeat(data, 200)
		}
		weight, a := expectedWeights(seed)
		want := new(big.Int)
		for i, b := range data {
			at := offset + i
			x := big.NewInt(int64(b) + 1)
			x.Lsh(x, uint(8*(at%4))).Mul(x, weight[at/4%2048])
			x.Mul(x, new(big.Int).Exp(a, big.NewInt(int64(at/8192)), prime))
			want.Add(want, x).Mod(want, prime)
		}
		got := digest.NewKey(seed).RunSum(offset, data)
		if got.Value != want.Uint64() || got.Bytes != uint64(len(data)) {
			t.Fatalf("%d bytes at %d: %v, want %016x", len(data), offset, got, want.Uint64())
		}
	})
}

// key is the key of the fingerprints in these tests.
var key = digest.NewKey(7)

// spreadRandom draws a layout of a model and the content of its tensors, and returns them with the
// fingerprint of each tensor.
func spreadRandom(t *rapid.T, m layouttest.Model) (*layout.Layout, [][]byte, []digest.Sum) {
	l, err := layouttest.DrawSpec(t, m).Resolve(m.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	content, sums := make([][]byte, len(m.Tensors)), make([]digest.Sum, len(m.Tensors))
	seed := rapid.Uint64().Draw(t, "content")
	for i, x := range m.Tensors {
		n, _ := x.Shape.Elements()
		content[i] = make([]byte, n*x.DType.Size())
		for k := range content[i] {
			seed = seed*6364136223846793005 + 1442695040888963407
			content[i][k] = byte(seed >> 56)
		}
		sums[i] = key.RunSum(0, content[i])
	}
	return l, content, sums
}

// TestAnyLayout adds the sums of the shards, each box counted once, and finds the sums of the
// tensors.
func TestAnyLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := layouttest.DrawModel(t)
		l, content, want := spreadRandom(t, m)
		got := make([]digest.Sum, len(want))
		for _, f := range l.Families {
			for _, c := range f.Grid.Cells {
				h := c.Held[rapid.IntRange(0, len(c.Held)-1).Draw(t, "replica")]
				slot := &l.Slots[f.Slots[h.Slot]]
				for _, i := range f.Tensors {
					size := slot.DType.Size()
					memory := make([]byte, slot.Bytes())
					for r := range tensor.Runs(c.Box, f.Grid.Shape.View(), h.View) {
						copy(memory[r.B*size:][:r.N*size], content[i][r.A*size:])
					}
					got[i] = got[i].Plus(key.BoxSum(c.Box, f.Grid.Shape, size, memory, h.View))
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("sums of shards %v, of tensors %v", got, want)
		}
	})
}

// TestDamageIsSeen damages a tensor that is held in two halves of rows: one byte, halves that
// changed places, rows that moved, a half that is missing or counted twice.
func TestDamageIsSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		row := rapid.IntRange(1, 300).Draw(t, "row")
		half := row * rapid.IntRange(1, 60).Draw(t, "rows")
		seed := rapid.Uint64().Draw(t, "content")
		data := make([]byte, 2*half)
		if rapid.Bool().Draw(t, "not zero") {
			for i := range data {
				seed = seed*6364136223846793005 + 1442695040888963407
				data[i] = byte(seed >> 56)
			}
		}
		a, b := data[:half], data[half:]
		sum := func(first, second []byte) digest.Sum {
			return key.RunSum(0, first).Plus(key.RunSum(half, second))
		}
		whole := sum(a, b)
		if whole != key.RunSum(0, data) {
			t.Fatal("two halves are not the whole")
		}
		bad := slices.Clone(data)
		at := rapid.IntRange(0, len(bad)-1).Draw(t, "place")
		bad[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		if key.RunSum(0, bad) == whole {
			t.Fatalf("a flip of byte %d is not seen", at)
		}
		if !bytes.Equal(a, b) && sum(b, a) == whole {
			t.Fatal("swapped halves are not seen")
		}
		by := rapid.IntRange(1, len(data)-1).Draw(t, "shift")
		moved := slices.Concat(data[by:], data[:by])
		if !bytes.Equal(moved, data) && key.RunSum(0, moved) == whole {
			t.Fatalf("a shift by %d is not seen", by)
		}
		if half := key.RunSum(0, a); half.Value == whole.Value ||
			half.Plus(whole).Value == whole.Value {
			t.Fatal("a missing or doubled half is not seen")
		}
	})
}

// TestTensorsChangePlaces gives two tensors of one shape each other's content.
func TestTensorsChangePlaces(t *testing.T) {
	s := tensor.Shape{3, 5}
	x, y := key.RunSum(0, make([]byte, 60)), key.RunSum(0, bytes.Repeat([]byte{1}, 60))
	state := func(a, b digest.Sum) digest.Sum {
		return key.TensorSum("a", tensor.F32, s, a).Plus(key.TensorSum("b", tensor.F32, s, b))
	}
	if state(x, y) == state(y, x) {
		t.Error("swapped tensors are not seen")
	}
	if key.TensorSum("a", tensor.F32, s, y) == key.TensorSum("a", tensor.I32, s, y) ||
		key.TensorSum("a", tensor.F32, s, y) == key.TensorSum("a", tensor.F32, tensor.Shape{5, 3},
			y) {
		t.Error("another type or shape is not seen")
	}
}

// TestVectors demands the sums that docs/formats/fingerprint.md lists: they must not change.
func TestVectors(t *testing.T) {
	k := digest.NewKey(42)
	ramp := make([]byte, 20000)
	for i := range ramp {
		ramp[i] = byte(i)
	}
	for _, c := range []struct {
		offset int
		data   []byte
		want   string
	}{
		{0, nil, "0000000000000000/0"},
		{0, []byte{0}, "17bae644c5fd6dd3/1"},
		{3, []byte{1, 2, 3}, "10d789e83ddacd6b/3"},
		{0, ramp, "14f435ada466c479/20000"},
		{1 << 40, ramp, "1c56b3b30ed50583/20000"},
	} {
		if got := k.RunSum(c.offset, c.data).String(); got != c.want {
			t.Errorf("%d bytes at %d: %s, want %s", len(c.data), c.offset, got, c.want)
		}
	}
	if got := fmt.Sprint(
		k.TensorSum("w", tensor.BF16, tensor.Shape{2, 3},
			k.RunSum(0, ramp))); got != "149e72d2d376f2b4/20000" {
		t.Errorf("Tensor: %s", got)
	}
}
