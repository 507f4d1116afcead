package portable

import "math"

// The normal distribution, for pure rooms: the same bits on every processor, as all of this
// package. The functions are pure.

// polynomial returns c[0]·x^n + c[1]·x^(n-1) + … + c[n].
func polynomial(c []float64, x float64) (sum float64) {
	for _, a := range c {
		sum = float64(sum*x) + a
	}
	return sum
}

// The numerator and the denominator of NormalBelow (Hart, "Computer Approximations", 1968, no.
// 5666, as West has it, "Better Approximations to Cumulative Normal Functions", 2005).
var (
	belowUp = []float64{3.52624965998911e-02, 0.700383064443688, 6.37396220353165,
		33.912866078383, 112.079291497871, 221.213596169931, 220.206867912376}
	belowDown = []float64{8.83883476483184e-02, 1.75566716318264, 16.064177579207,
		86.7807322029461, 296.564248779674, 637.333633378831, 793.826512519948, 440.413735824752}
)

// NormalBelow returns which part of a standard normal distribution lies below x, with an error of
// 3e-15 at most.
func NormalBelow(x float64) float64 {
	z := math.Abs(x)
	if math.IsNaN(x) {
		return x
	}
	below := 0.0
	switch {
	case z > 37:
	case z < 5*math.Sqrt2:
		below = Exp(float64(-z*z)/2) * polynomial(belowUp, z) / polynomial(belowDown, z)
	default:
		fraction := z + 0.65
		for i := 4.0; i >= 1; i-- {
			fraction = z + i/fraction
		}
		below = Exp(float64(-z*z)/2) / fraction / 2.506628274631
	}
	if x > 0 {
		return 1 - float64(below)
	}
	return below
}

// The numerators and denominators of NormalQuantile: in the middle, and for two parts of the ends
// (Wichura, "Algorithm AS 241", 1988).
var (
	middleUp = []float64{2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
		45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
		133.14166789178437745, 3.387132872796366608}
	middleDown = []float64{5226.495278852854561, 28729.085735721942674, 39307.89580009271061,
		21213.794301586595867, 5394.1960214247511077, 687.1870074920579083,
		42.313330701600911252, 1}
	outerUp = []float64{7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177,
		1.27045825245236838258, 3.64784832476320460504, 5.7694972214606914055,
		4.6303378461565452959, 1.42343711074968357734}
	outerDown = []float64{1.05075007164441684324e-9, 5.475938084995344946e-4,
		0.0151986665636164571966, 0.14810397642748007459, 0.68976733498510000455,
		1.6763848301838038494, 2.05319162663775882187, 1}
	farUp = []float64{2.01033439929228813265e-7, 2.71155556874348757815e-5,
		0.0012426609473880784386, 0.026532189526576123093, 0.29656057182850489123,
		1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772}
	farDown = []float64{2.04426310338993978564e-15, 1.4215117583164458887e-7,
		1.8463183175100546818e-5, 7.868691311456132591e-4, 0.0148753612908506148525,
		0.13692988092273580531, 0.59983220655588793769, 1}
)

// NormalQuantile returns below which number a part p of a standard normal distribution lies; NaN
// where p is no part.
func NormalQuantile(p float64) float64 {
	q := p - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		return float64(q * polynomial(middleUp, r) / polynomial(middleDown, r))
	}
	r := math.Sqrt(-Log(min(p, 1-p)))
	switch {
	case math.IsInf(r, 1):
	case r <= 5:
		r -= 1.6
		r = polynomial(outerUp, r) / polynomial(outerDown, r)
	default:
		r -= 5
		r = polynomial(farUp, r) / polynomial(farDown, r)
	}
	return math.Copysign(r, q)
}
