package plural_test

import (
	"math"
	"testing"

	"github.com/shoal-ml/shoal/internal/plural"
)

// TestPlural checks the forms for 0, 1 and 2.
func TestPlural(t *testing.T) {
	for n, want := range map[int]string{0: "0 values stay", 1: "1 value stays",
		2: "2 values stay"} {
		if got := plural.Of(n, "value") + " " + plural.Verb(n, "stays", "stay"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestBytes checks which unit a size gets, and that it never has more than three digits.
func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1023: "0.999 KiB",
		1536: "1.5 KiB", 3 << 20: "3 MiB", 24 << 30: "24 GiB", 1000 << 30: "0.977 TiB",
		1 << 50: "1 PiB"} {
		if got := plural.Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestNumber checks that no digit before the point is lost, and where there are exponents.
func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 12.3456: "12.35", 9999.4: "9999",
		9999.9: "10000", 12345.67: "12346", -1234567.8: "-1234568", 1234567: "1234567",
		2e15: "2e+15", 0.123456: "0.1235", 1.23456e-5: "1.235e-05", math.Inf(1): "+Inf"} {
		if got := plural.Number(x, 4); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
}

// TestSeconds checks the digits and the unit of a time.
func TestSeconds(t *testing.T) {
	for s, want := range map[float64]string{0: "0", 2e-7: "0.20 µs", 9.99e-6: "9.99 µs",
		12.34e-6: "12.3 µs", 999.4e-6: "999 µs", 999.6e-6: "1.00 ms", 0.163267: "163 ms",
		2.5: "2.50 s", 86400: "86400 s"} {
		if got := plural.Seconds(s); got != want {
			t.Errorf("%v: %q, want %q", s, got, want)
		}
	}
}
