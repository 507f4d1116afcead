// Package digest computes the fingerprint of training state: a sum over every byte of every tensor
// that does not depend on how the tensor is cut, where its shards lie and in which order they are
// added. So reshaped state is proved equal to what it was without moving a shard: each holder
// fingerprints what it holds, and the sums are added.
//
// The bytes of a tensor, packed and row-major, are taken as little-endian words of 32 bits, in
// blocks of 2048. With random weights t[k] for the words of a block and a random a, all from 1 to p
// - 1 for the prime p = 2^61 - 1, the fingerprint is
//
//	Σ (word i, with 1 added to each of its bytes) · t[i mod 2048] · a^(i div 2048)   mod p
//
// One changed word is always seen. Other differences stay unseen with a probability, over the
// choice of the key, of at most (n/2048 + 1)/(2^61 - 2) for n words: docs/design/state.md has the
// proof, docs/formats/fingerprint.md the bytes. It is no cryptographic hash: who knows the key can
// make two states with one fingerprint.
package digest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/tensor"
)

const (
	prime     = 1<<61 - 1
	blockBits = 11
	block     = 1 << blockBits // words
	stride    = 1 << 10        // blocks between the entries of Key.far
	// 1 in each byte of a word, so that zeros count too and a missing piece is seen.
	ones = 0x01010101
)

// ShownSeed is the seed of the key of the fingerprints that people see and compare: the same for
// every checkpoint. Seals have random ones.
const ShownSeed = 0

// A Key is the random weights. Sums under different keys cannot be compared or added. A key has a
// few 10 KiB and does not change after NewKey, so any number of goroutines may share it.
type Key struct {
	seed   uint64
	weight [block]uint64
	upTo   [block + 1]uint64 // prefix sums of weight, mod prime
	near   [stride]uint64    // a^i
	far    [stride]uint64    // a^(stride·i)
}

// A Sum is the fingerprint of some bytes of one or more tensors. Equal content has equal sums; both
// numbers must agree.
type Sum struct {
	Value uint64 // below 2^61 - 1
	Bytes uint64 // number of bytes that were added
}

// A Proof holds the sums of a state, or of a part of it, before and after it was moved. In New
// every replica counts, and in Old each element as often as it has replicas in New. Proofs of parts
// are added; the whole proof shows a correct move if Old equals New.
type Proof struct{ Old, New Sum }

// Plus returns the proof of two disjoint parts together.
func (p Proof) Plus(q Proof) Proof { return Proof{p.Old.Plus(q.Old), p.New.Plus(q.New)} }

// NewKey derives the weights from a seed.
func NewKey(seed uint64) *Key {
	k := &Key{seed: seed}
	r := splitmix(seed)
	for i := range k.weight {
		k.weight[i] = r.weight()
		k.upTo[i+1] = modPrime(0, k.upTo[i]+k.weight[i])
	}
	a := r.weight()
	k.near[0], k.far[0] = 1, 1
	for i := 1; i < stride; i++ {
		k.near[i] = mulMod(k.near[i-1], a)
	}
	factor := mulMod(k.near[stride-1], a)
	for i := 1; i < stride; i++ {
		k.far[i] = mulMod(k.far[i-1], factor)
	}
	return k
}

// Seed returns the seed that NewKey took.
func (k *Key) Seed() uint64 { return k.seed }

// Plus returns the sum of two disjoint parts of the same state together.
func (s Sum) Plus(t Sum) Sum { return Sum{modPrime(0, s.Value+t.Value), s.Bytes + t.Bytes} }

// Valid reports whether s can be a sum: its value is below the prime.
func (s Sum) Valid() bool { return s.Value < prime }

// String writes the sum as 16 hexadecimal digits and the number of bytes.
func (s Sum) String() string { return fmt.Sprintf("%016x/%d", s.Value, s.Bytes) }

// ParseSum reads what String writes.
func ParseSum(text string) (Sum, error) {
	value, count, _ := strings.Cut(text, "/")
	v, err := strconv.ParseUint(value, 16, 64)
	n, err2 := strconv.ParseUint(count, 10, 64)
	if s := (Sum{v, n}); err == nil && err2 == nil && v < prime && s.String() == text {
		return s, nil
	}
	return Sum{}, fmt.Errorf("digest: %.60q is no fingerprint; one is 16 hexadecimal digits, a "+
		"slash, and the number of bytes", text)
}

// RunSum returns the sum of bytes that are contiguous in the packed tensor, from the byte offset
// on.
func (k *Key) RunSum(offset int, data []byte) Sum {
	s := Sum{Bytes: uint64(len(data))}
	if skew := offset % 4; skew != 0 {
		n := min(4-skew, len(data))
		s.Value = k.wordPart(offset, data[:n])
		offset, data = offset+n, data[n:]
	}
	for len(data) >= 4 {
		first := offset / 4
		at := first % block
		n := min(block-at, len(data)/4)
		// The sum is below 2^104, because there are at most 2^11 words.
		sum := modPrime(kernel.Weigh(k.weight[at:at+n], data[:4*n]))
		sum += mulMod(ones, k.upTo[at+n]+prime-k.upTo[at])
		s.Value = modPrime(0, s.Value+mulMod(modPrime(0, sum), k.powerOfBlock(first/block)))
		offset, data = offset+4*n, data[4*n:]
	}
	s.Value = modPrime(0, s.Value+k.wordPart(offset, data))
	return s
}

// wordPart returns the value of the sum of bytes within one word, from the byte offset on of the
// packed tensor; 0 for none.
func (k *Key) wordPart(offset int, data []byte) uint64 {
	if len(data) == 0 {
		return 0
	}
	word := uint64(0)
	for i, b := range data {
		word += (uint64(b) + 1) << (8 * (offset%4 + i))
	}
	return mulMod(mulMod(word, k.weight[offset/4%block]), k.powerOfBlock(offset/4/block))
}

// powerOfBlock returns a^block, mod prime.
func (k *Key) powerOfBlock(block int) uint64 {
	p := k.near[block%stride]
	if block /= stride; block > 0 {
		p = mulMod(p, k.far[block%stride])
	}
	for base := mulMod(k.far[stride-1], k.far[1]); block >= stride; base = mulMod(base, base) {
		// The rest are powers of a^(stride²), computed by squaring.
		if block/stride&1 == 1 {
			p = mulMod(p, base)
		}
		block = block / stride / 2 * stride
	}
	return p
}

// BoxSum returns the sum of a box of a tensor whose elements have size bytes each and lie in memory
// as the view says.
func (k *Key) BoxSum(box tensor.Box, shape tensor.Shape, size int, memory []byte,
	view tensor.View) (s Sum) {
	for r := range tensor.Runs(box, shape.View(), view) {
		s = s.Plus(k.RunSum(r.A*size, memory[r.B*size:][:r.N*size]))
	}
	return s
}

// TensorSum returns what a tensor with the given sum contributes to the sum of the whole state: the
// value times a weight drawn from name, element type and shape, so that two tensors cannot be
// exchanged unseen.
func (k *Key) TensorSum(name string, d tensor.DType, shape tensor.Shape, s Sum) Sum {
	h := sha256.Sum256(fmt.Appendf(nil, "%016x %q %v %v", k.seed, name, d, shape))
	return Sum{mulMod(s.Value, modPrime(0, binary.LittleEndian.Uint64(h[:]))), s.Bytes}
}

// modPrime returns a number that is congruent to hi·2^64 + lo, below prime, for hi < 2^58.
func modPrime(hi, lo uint64) uint64 {
	r := lo&prime + (lo>>61 | hi<<3)
	if hi != 0 {
		r = r&prime + r>>61
	}
	if r >= prime {
		r -= prime
	}
	return r
}

// mulMod multiplies mod prime; a·b must be below 2^122.
func mulMod(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return modPrime(hi, lo)
}

// splitmix is the random generator of Steele, Lea and Flood (OOPSLA 2014), for the goroutine of one
// call of NewKey.
type splitmix uint64

// next returns the next random number, and advances the generator.
func (s *splitmix) next() uint64 {
	*s += 0x9E3779B97F4A7C15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// weight draws a number from 1 to prime - 1, uniformly, and advances the generator.
func (s *splitmix) weight() uint64 {
	for {
		if x := s.next() >> 3; x < prime-1 {
			return x + 1
		}
	}
}
