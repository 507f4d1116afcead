package digest

import (
	"math"
	"math/big"
	"testing"
)

// TestModPrime compares remainders with arbitrary precision where a number is just below or at a
// multiple of the prime, and where it is as large as can be.
func TestModPrime(t *testing.T) {
	for _, hi := range []uint64{0, 1, 7, 1 << 40, 1<<58 - 1} {
		for _, lo := range []uint64{0, 1, prime - 1, prime, prime + 1, 2*prime - 1, 2 * prime,
			7 * prime, 8*prime + 7, math.MaxUint64} {
			x := new(big.Int).SetUint64(hi)
			x.Lsh(x, 64).Add(x, new(big.Int).SetUint64(lo))
			want := x.Mod(x, new(big.Int).SetUint64(prime)).Uint64()
			if got := modPrime(hi, lo); got != want {
				t.Errorf("%d·2^64 + %d is %d, want %d", hi, lo, got, want)
			}
		}
	}
}

// TestParseSum reads what String writes, and nothing else.
func TestParseSum(t *testing.T) {
	for _, s := range []Sum{{}, {1, 2}, {prime - 1, math.MaxUint64}} {
		if got, err := ParseSum(s.String()); err != nil || got != s || !s.Valid() {
			t.Errorf("%v was read as %v, %v", s, got, err)
		}
	}
	for _, text := range []string{"", "/", "1/2", "0000000000000001", "0000000000000001/",
		"0000000000000001/02", "0000000000000001/-1", "000000000000000g/1",
		"00000000000000001/1", "000000000000000A/1", "1fffffffffffffff/1",
		"0000000000000001/18446744073709551616", "0000000000000001/1 "} {
		if s, err := ParseSum(text); err == nil {
			t.Errorf("%q was read as %v", text, s)
		}
	}
	if (Sum{Value: prime}).Valid() {
		t.Error("the prime is taken for a sum")
	}
}
