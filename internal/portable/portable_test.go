package portable

import (
	"math"
	"math/rand/v2"
	"testing"
)

// check compares a function with the one of package math at a number: they may differ by a relative
// and an absolute error.
func check(t *testing.T, name string, x, got, want, relative, absolute float64) {
	t.Helper()
	if math.IsNaN(want) && math.IsNaN(got) || got == want {
		return
	}
	if !(math.Abs(got-want) <= relative*math.Abs(want)+absolute) {
		t.Errorf("%s(%v) = %v, package math has %v", name, x, got, want)
	}
}

// All functions are those of package math but for the last digits.
func TestAsPackageMath(t *testing.T) {
	const digits = 1e-15
	r := rand.New(rand.NewPCG(1, 2))
	special := []float64{0, 1, -1, 0.5, 2, math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64,
		1e-307, 709.7, -745, 1 + 1e-15, 1 - 1e-15}
	for i := range 20000 {
		x, y := (r.Float64()-0.5)*math.Exp2(20*r.Float64()-9), r.NormFloat64()
		if i < len(special) {
			x = special[i]
		}
		z := math.Abs(x)
		check(t, "Exp", x, Exp(x), math.Exp(x), digits, 0)
		check(t, "Exp2", x, Exp2(x), math.Exp2(x), digits, 0)
		check(t, "Log", x, Log(x), math.Log(x), digits, 0)
		check(t, "Log", z, Log(z), math.Log(z), digits, 0)
		check(t, "Log2", z, Log2(z), math.Log2(z), digits, 3e-16) // near 1 that of math has fewer
		check(t, "Pow", z, Pow(z, y), math.Pow(z, y), digits*(1+math.Abs(y*math.Log(z))), 0)
		check(t, "Hypot", x, Hypot(x, y), math.Hypot(x, y), digits, 0)
		check(t, "NormalBelow", x, NormalBelow(x), 0.5*math.Erfc(-x/math.Sqrt2), 0, 3e-15)
		p := math.Exp(-z) // near 0 and 1 Erfinv has fewer digits
		check(t, "NormalQuantile", p, NormalQuantile(p), math.Sqrt2*math.Erfinv(2*p-1),
			1e-14+3e-16/min(p, 1-p), 0)
	}
	// Of numbers with fewer bits the assembly of package math has no right logarithm.
	check(t, "Log", 5e-324, Log(math.SmallestNonzeroFloat64), -1074*math.Ln2, digits, 0)
}

// Whole powers of two are exact.
func TestPowersOfTwo(t *testing.T) {
	for i := -1074; i <= 1023; i++ {
		x := math.Ldexp(1, i)
		if Log2(x) != float64(i) || Exp2(float64(i)) != x {
			t.Fatalf("Log2(%v) = %v, Exp2(%d) = %v", x, Log2(x), i, Exp2(float64(i)))
		}
	}
}

// The bits of all functions are those that were computed on the first processor that they ran on.
func TestSameBits(t *testing.T) {
	sum, r := uint64(0), rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		x, y := float64(80*r.Float64())-40, float64(6*r.Float64())-3
		for _, v := range []float64{Exp(x), Exp2(x), Log(math.Abs(x)), Log2(math.Abs(x)),
			Pow(math.Abs(x), y), Hypot(x, y), NormalBelow(y), NormalBelow(x),
			NormalQuantile(r.Float64())} {
			sum = sum*0x9E3779B97F4A7C15 + math.Float64bits(v)
		}
	}
	const want = uint64(0x39e967b52aece5b5)
	if sum != want {
		t.Errorf("the bits of 45,000 results come to %#x, not to %#x", sum, want)
	}
}

// What the slowest functions take.
func BenchmarkFunctions(b *testing.B) {
	for name, f := range map[string]func(float64) float64{"Exp": Exp, "Log": Log,
		"NormalBelow": NormalBelow, "NormalQuantile": NormalQuantile, "math.Exp": math.Exp,
		"math.Log": math.Log, "math.Erfc": math.Erfc, "math.Erfinv": math.Erfinv} {
		b.Run(name, func(b *testing.B) {
			sum := 0.0
			for i := range b.N {
				sum += f(float64(i%1000) / 1001)
			}
			_ = sum
		})
	}
}

// The numbers of RandomBits are those that Rosetta Code has of splitmix64, for the same seed.
func TestRandomBits(t *testing.T) {
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423,
		4593380528125082431, 16408922859458223821} {
		if got := RandomBits(1234567, uint64(i+1)); got != want {
			t.Errorf("number %d is %d, want %d", i+1, got, want)
		}
	}
}
