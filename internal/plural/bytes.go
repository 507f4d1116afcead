package plural

import "fmt"

// Bytes returns a size with three digits and a unit, such as "1.5 GiB". It is pure.
func Bytes(n int64) string {
	x, unit := float64(n), 0
	for x >= 999.5 && unit < 5 { // what is below has three digits at most
		x, unit = x/1024, unit+1
	}
	return fmt.Sprintf("%.3g %s", x, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}[unit])
}
