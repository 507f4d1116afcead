//go:build !purego

package kernel

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// TestWeighInVectors compares every way that this processor has, since Weigh takes the fastest
// only, with plain Go.
func TestWeighInVectors(t *testing.T) {
	ways := map[string]func(weight *uint64, data *byte, n int) (hi, lo uint64){}
	if hasWeigh256 {
		ways["avx2"] = weigh256
	}
	if hasWeigh512 {
		ways["avx512"] = weigh512
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{weighBlock, 2 * weighBlock, 3 * weighBlock, 2048, maxWeighed} {
		for _, largest := range []bool{false, true} {
			weight, data := make([]uint64, n), make([]byte, 4*n)
			for i := range weight {
				word := uint32(math.MaxUint32)
				if weight[i] = 1<<61 - 1; !largest {
					weight[i], word = r.Uint64N(1<<61), r.Uint32()
				}
				binary.LittleEndian.PutUint32(data[4*i:], word)
			}
			wantHi, wantLo := weighGeneric(weight, data)
			for name, weigh := range ways {
				if hi, lo := weigh(&weight[0], &data[0], n/weighBlock); hi != wantHi ||
					lo != wantLo {
					t.Errorf("%s: %d words, largest %v: %x %x, want %x %x", name, n, largest, hi,
						lo, wantHi, wantLo)
				}
			}
		}
	}
}
