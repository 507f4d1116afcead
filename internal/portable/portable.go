// Package portable has the functions of package math that give other last digits on other
// processors, as functions that do not: math.Log and others are assembly on some, and elsewhere the
// compiler fuses their products with sums. It is for pure rooms that must give the same bytes
// everywhere. There a product that is added is written float64(x*y) + z, too, which forbids to fuse
// it. What is not here, math.Sqrt or math.Floor say, is exact on every processor.
//
// Results are within a few units of the last digit. Numbers by chance follow from a seed.
package portable

import "math"

// The functions are pure but for init, which fills tables before anybody calls one.

const (
	// ln2High and ln2Low are the logarithm of 2 as a sum, the first with as few digits that it can
	// be multiplied by an exponent without rounding.
	ln2High = 6.93147180369123816490e-01
	ln2Low  = 1.90821492927058770002e-10
	// Exp is infinite above maxExp, and 0 below minExp.
	maxExp, minExp = 709.79, -745.14
)

// factorials are 1/n!, of the series of Exp; atanh are 2/(2n+1), of that of Log.
var (
	factorials [14]float64
	atanh      [12]float64
)

// init computes the coefficients, of which each takes a few roundings at most.
func init() {
	n := 1.0
	for i := range factorials {
		n *= max(1, float64(i))
		factorials[i] = 1 / n
	}
	for i := range atanh {
		atanh[i] = 2 / (2*float64(i) + 1)
	}
}

// series returns c[0] + c[1]·x + c[2]·x² + …, where c has an even number of elements. It adds even
// and odd terms apart, which takes half of the time.
func series(c []float64, x float64) float64 {
	square, n := float64(x*x), len(c)
	even, odd := c[n-2], c[n-1]
	for i := n - 4; i >= 0; i -= 2 {
		even = float64(even*square) + c[i]
		odd = float64(odd*square) + c[i+1]
	}
	return even + float64(odd*x)
}

// Exp returns e to the power of x.
func Exp(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x > maxExp:
		return math.Inf(1)
	case x < minExp:
		return 0
	}
	k := math.Floor(x/math.Ln2 + 0.5)
	r := x - float64(k*ln2High) - float64(k*ln2Low)
	return math.Ldexp(series(factorials[:], r), int(k))
}

// Exp2 returns 2 to the power of x; a whole power is exact.
func Exp2(x float64) float64 {
	if math.IsNaN(x) || math.Abs(x) > 1100 {
		return Exp(float64(x * math.Ln2))
	}
	k := math.Floor(x + 0.5)
	return math.Ldexp(series(factorials[:], float64((x-k)*math.Ln2)), int(k))
}

// Log returns the natural logarithm of x.
func Log(x float64) float64 {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 1):
		return x
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	near, k := splitPower(x)
	return float64(k*ln2High) + (logNear(near) + float64(k*ln2Low))
}

// Log2 returns the logarithm of x to the base of 2; that of a whole power is exact.
func Log2(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return Log(x)
	}
	near, k := splitPower(x)
	return k + float64(logNear(near)*(1/math.Ln2))
}

// splitPower returns x, which is positive, as near·2^k, with near from the root of 1/2 to that of
// 2.
func splitPower(x float64) (near, k float64) {
	near, exponent := math.Frexp(x)
	if near < math.Sqrt2/2 {
		return 2 * near, float64(exponent - 1)
	}
	return near, float64(exponent)
}

// logNear returns the logarithm of a number that splitPower gives: twice the inverse hyperbolic
// tangent of (x-1)/(x+1).
func logNear(x float64) float64 {
	s := (x - 1) / (x + 1)
	return float64(s * series(atanh[:], float64(s*s)))
}

// Pow returns x to the power of y, where x is not negative. It loses digits where the result is
// very large or small.
func Pow(x, y float64) float64 {
	if x == 1 || y == 0 {
		return 1
	}
	return Exp(float64(y * Log(x)))
}

// Hypot returns the root of x² + y².
func Hypot(x, y float64) float64 {
	x, y = math.Abs(x), math.Abs(y)
	most := max(x, y)
	if most == 0 || math.IsInf(most, 1) || math.IsNaN(most) {
		return most
	}
	x, y = x/most, y/most
	return float64(most * math.Sqrt(float64(x*x)+float64(y*y)))
}

// AddTimes adds each number of a list, times a weight, to the number in its place of another list,
// which may be longer.
func AddTimes(to, more []*float64, weight float64) {
	for i, x := range more {
		*to[i] += float64(weight * *x)
	}
}
