package checkpoint

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// Checksums of pieces add up to that of the whole, in any order.
func TestShiftedCRC(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		b := make([]byte, r.IntN(5000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		sum := uint32(0)
		for rest := b; len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			sum ^= shiftedCRC(crc32.ChecksumIEEE(rest[:n]), int64(len(rest)-n))
			rest = rest[n:]
		}
		if want := crc32.ChecksumIEEE(b); sum != want {
			t.Fatalf("%d bytes: %x, want %x", len(b), sum, want)
		}
	}
}
