package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Texts of sizes and times, and the sizes that they say. Any goroutine may call the functions.

// byteUnits are the units of sizes. FormatBytes uses the first three, ParseBytes all of them, the
// longer names first.
var byteUnits = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
	{"B", 1}, {"", 1}}

// ParseBytes returns the number of bytes of a size such as 4096, 4KiB or 256MB.
func ParseBytes(text string) (int64, error) {
	digits := strings.TrimRight(text, "BGKMik")
	for _, unit := range byteUnits {
		if text != digits+unit.name {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if errors.Is(err, strconv.ErrRange) || err == nil && n > math.MaxInt64/uint64(unit.bytes) {
			return 0, fmt.Errorf("%s is more than any machine has", text)
		}
		if err == nil {
			return int64(n) * unit.bytes, nil
		}
	}
	return 0, fmt.Errorf(
		"%q is no size: write a whole number and B, KiB, MiB, GiB, kB, MB or GB, such as 64KiB",
		text)
}

// FormatBytes returns the shortest exact way to write a size.
func FormatBytes(n int64) string {
	for _, i := range []int{2, 1, 0} {
		if unit := byteUnits[i]; n > 0 && n%unit.bytes == 0 {
			return fmt.Sprintf("%d %s", n/unit.bytes, unit.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Milliseconds returns a duration as a number for people and JSON.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// ParseSizes returns the sizes of --bytes, which are separated by commas. Each must be a multiple
// of element, the size of an element of type dtype, and not 0.
func ParseSizes(list, dtype string, element int64) (sizes []int64, err error) {
	for _, text := range strings.Split(list, ",") {
		bytes, err := ParseBytes(strings.TrimSpace(text))
		if err != nil {
			return nil, Usagef("--bytes: %v", err)
		}
		if bytes == 0 || bytes%element != 0 {
			return nil, Usagef(
				"--bytes: %s is not a whole number of %s elements: use a multiple of %d bytes",
				text, dtype, element)
		}
		sizes = append(sizes, bytes)
	}
	return sizes, nil
}
