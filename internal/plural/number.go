package plural

import (
	"math"
	"strconv"
)

// Number returns a number with so many digits, or with all those before the point if these are
// more: with four digits "0.1235", "12.35" and "123457". A whole number below 10^15 has all its
// digits; larger ones have an exponent, and very small ones too. It is pure.
func Number(x float64, digits int) string {
	size := math.Abs(x)
	if size < 1e15 && (x == math.Trunc(x) || size >= math.Pow10(digits)-0.5) {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', digits, 64)
}
