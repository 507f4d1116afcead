package kernel

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestWeigh compares with arbitrary precision, at every length up to a few blocks and some beyond
// the largest part; with numbers drawn, and with the largest ones.
func TestWeigh(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	lengths := []int{2048, maxWeighed, maxWeighed + 1, 2*maxWeighed + 77}
	for n := range 140 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		for _, largest := range []bool{false, true} {
			weight, data, want := make([]uint64, n), make([]byte, 4*n), new(big.Int)
			for i := range weight {
				word := uint32(math.MaxUint32)
				if weight[i] = 1<<61 - 1; !largest {
					weight[i], word = r.Uint64N(1<<61), r.Uint32()
				}
				binary.LittleEndian.PutUint32(data[4*i:], word)
				x := new(big.Int).SetUint64(weight[i])
				want.Add(want, x.Mul(x, big.NewInt(int64(word))))
			}
			hi, lo := Weigh(weight, data)
			got := new(big.Int).SetUint64(hi)
			if got.Add(got.Lsh(got, 64), new(big.Int).SetUint64(lo)); got.Cmp(want) != 0 {
				t.Errorf("%d words, largest %v: %v, want %v", n, largest, got, want)
			}
		}
	}
}
