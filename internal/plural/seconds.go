package plural

import "strconv"

// Seconds returns a time with three digits and a unit, such as "15.8 s"; "0" for none. It is pure.
func Seconds(s float64) string {
	if s == 0 {
		return "0"
	}
	value, unit := 1e6*s, "µs"
	if value >= 999.5e3 {
		value, unit = value/1e6, "s"
	} else if value >= 999.5 {
		value, unit = value/1e3, "ms"
	}
	digits := 0
	for limit := 99.95; value < limit && digits < 2; limit /= 10 {
		digits++
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " " + unit
}
