package sched

import (
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Point is the speed of a job with a number of slots.
type Point struct {
	Slots int     // at least 1
	Rate  float64 // units of work a second, above 0
}

// Curve is the speed of a job by its number of slots, smaller numbers first. Between two points the
// rate is interpolated in the logarithm of the number. Outside of all points nothing is known:
// below the first a job does not run, and above the last it is as fast as there. A nil curve is
// that of a job of which nothing is known: n slots do n units a second, so that a unit of work is
// what one slot does in a second.
type Curve []Point

// Check returns an error that says what is wrong with a curve, or nil.
func (c Curve) Check() error {
	for i, p := range c {
		switch {
		case p.Slots < 1:
			return fmt.Errorf("a curve has a point with %d slots: it takes at least 1", p.Slots)
		case i > 0 && p.Slots <= c[i-1].Slots:
			return fmt.Errorf("a curve has %d slots after %d: write its points in order",
				p.Slots, c[i-1].Slots)
		case !(p.Rate > 0) || math.IsInf(p.Rate, 1):
			return fmt.Errorf("a curve has the rate %v with %d slots: leave out what was not "+
				"measured", p.Rate, p.Slots)
		}
	}
	return nil
}

// Rate returns the units of work that n slots do in a second; 0 = the job does not run with n.
func (c Curve) Rate(n int) float64 {
	switch {
	case n < 1:
		return 0
	case c == nil:
		return float64(n)
	case len(c) == 0 || n < c[0].Slots:
		return 0
	}
	for i, p := range c {
		if p.Slots == n {
			return p.Rate
		}
		if p.Slots > n {
			low := c[i-1]
			part := portable.Log(float64(n)/float64(low.Slots)) /
				portable.Log(float64(p.Slots)/float64(low.Slots))
			return low.Rate + float64(part*(p.Rate-low.Rate))
		}
	}
	return c[len(c)-1].Rate
}
