package cli

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/pattern"
)

// A Rate is how many bytes a second something carries, as a flag: 1.2GB/s, 400MiB/s, 10Gbit/s, with
// or without the /s. The goroutine of the command uses it.
type Rate float64

// rateText matches a rate: number, prefix, i, unit, /s.
var rateText = pattern.New(`^([0-9.]+) ?([kKMGT]?)(i?)(B|bit)(/s)?$`)

// Set implements pflag.Value: it sets the rate from the text of the flag.
func (r *Rate) Set(text string) error {
	m := rateText.FindStringSubmatch(text)
	if m == nil {
		return errors.New("a rate is such as 1.2GB/s, 400MiB/s or 10Gbit/s")
	}
	n, err := strconv.ParseFloat(m[1], 64)
	base := 1000.0
	if m[3] != "" {
		base = 1024
	}
	n *= math.Pow(base, float64(strings.Index(" kmgt", strings.ToLower(m[2]))))
	if m[4] == "bit" {
		n /= 8
	}
	if err != nil || n <= 0 {
		return errors.New("a rate is a number above 0, with a unit")
	}
	*r = Rate(n)
	return nil
}

// String implements pflag.Value: the rate as text; "" for 0, which is none.
func (r *Rate) String() string {
	if *r == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*r), 'g', -1, 64) + "B/s"
}

// Type implements pflag.Value: what the help calls the value.
func (r *Rate) Type() string { return "rate" }
