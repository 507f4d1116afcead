package cluster

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
)

// A Curve says how long a message takes. It has one of three forms: a latency and a rate, a
// parabola of the rate in the logarithm of the size, or points that were measured.
type Curve struct {
	Latency float64 `json:"latency,omitempty"` // seconds until the first byte is there
	Rate    float64 `json:"rate,omitempty"`    // bytes a second
	// Log2 has c2, c1 and c0 of the rate of a message of m bytes, in 10^9 bytes a second:
	// c2·x² + c1·x + c0 with x = log2(m / 10^6). Cap is the highest rate, in bytes a second.
	Log2 []float64 `json:"log2,omitempty"`
	Cap  float64   `json:"cap,omitempty"`
	// Points are pairs of bytes and seconds, with ascending bytes. Between two of them seconds grow
	// evenly. A smaller message takes as long as the first; beyond the last, the rate stays.
	Points [][2]float64 `json:"points,omitempty"`
}

const (
	// maxPoints bounds the points of a curve.
	maxPoints = 1 << 12
	// largest is log2 of the megabytes of a message that is larger than any.
	largest = 44
)

// Seconds returns how long so many bytes take.
func (c Curve) Seconds(bytes int64) float64 { return c.SecondsOf(float64(bytes)) }

// SecondsOf is Seconds of a number of bytes that need not be whole, as a part of a message.
func (c Curve) SecondsOf(bytes float64) float64 {
	switch {
	case c.Log2 != nil:
		low, high := c.trusted()
		x := min(max(portable.Log2(max(bytes, 1)/1e6), low), high)
		rate := min(1e9*c.parabola(x), c.Cap)
		// A small message takes as long as the smallest whose time the parabola tells.
		return max(bytes, 1e6*portable.Exp2(low)) / rate
	case c.Points != nil:
		return c.interpolate(bytes)
	}
	return c.Latency + bytes/c.Rate
}

// parabola returns the rate in 10^9 bytes a second of a message of 10^6·2^x bytes.
func (c Curve) parabola(x float64) float64 {
	return float64((float64(c.Log2[0]*x)+c.Log2[1])*x) + c.Log2[2]
}

// trusted returns between which x the parabola is followed: where a larger message has no lower
// rate, and takes no less time. Beyond them the rate, or the time, stays as it is there.
func (c Curve) trusted() (low, high float64) {
	const smallest = -20 // a byte
	c2, c1, c0 := c.Log2[0], c.Log2[1], c.Log2[2]
	low, high = smallest, largest
	switch {
	case c2 < 0:
		high = min(high, -c1/(2*c2))
	case c2 > 0:
		low = max(low, -c1/(2*c2))
	}
	// The time m / rate falls as m grows where the rate is below its slope by ln m, which is
	// (2·c2·x + c1) / ln 2. It is equal at the roots of a·x² + b·x + d.
	a, b, d := c2, c1-2*c2/math.Ln2, c0-c1/math.Ln2
	switch root := float64(b*b) - float64(4*a*d); {
	case math.Abs(a) < 1e-12 && b > 0:
		low = max(low, -d/b)
	case math.Abs(a) >= 1e-12 && root >= 0:
		// Of a parabola that opens downwards the time falls below the first root; of one that
		// opens upwards, between both.
		low = max(low, (-b+math.Sqrt(root))/(2*a))
	}
	return low, max(low, high)
}

// interpolate returns the seconds of so many bytes by the points.
func (c Curve) interpolate(bytes float64) float64 {
	i, _ := slices.BinarySearchFunc(c.Points, bytes, func(p [2]float64, b float64) int {
		switch {
		case p[0] < b:
			return -1
		case p[0] > b:
			return 1
		}
		return 0
	})
	switch n := len(c.Points); {
	case i == 0:
		return c.Points[0][1]
	case i < n:
		from, to := c.Points[i-1], c.Points[i]
		part := (bytes - from[0]) / (to[0] - from[0])
		return from[1] + float64(part*(to[1]-from[1]))
	default:
		last := c.Points[n-1]
		return bytes / last[0] * last[1]
	}
}

// validate returns what is wrong with a curve; nil = nothing.
func (c Curve) validate() error {
	forms := 0
	for _, has := range []bool{c.Rate != 0 || c.Latency != 0, c.Log2 != nil || c.Cap != 0,
		c.Points != nil} {
		if has {
			forms++
		}
	}
	switch {
	case forms > 1:
		return fmt.Errorf("it has several of latency and rate, log2 and cap, and points: one " +
			"form says how long bytes take")
	case c.Log2 != nil || c.Cap != 0:
		return c.validateLog2()
	case c.Points != nil:
		return c.validatePoints()
	case !(c.Latency >= 0 && c.Latency <= 1e6):
		return fmt.Errorf("a latency of %v seconds", c.Latency)
	case !(c.Rate >= 1e-6 && c.Rate <= 1e18):
		return fmt.Errorf("a rate of %v bytes a second", c.Rate)
	}
	return nil
}

// validateLog2 returns what is wrong with a parabola; nil = nothing.
func (c Curve) validateLog2() error {
	if len(c.Log2) != 3 {
		return fmt.Errorf("log2 has %d numbers; they are c2, c1 and c0", len(c.Log2))
	}
	for _, x := range c.Log2 {
		if !(math.Abs(x) <= 1e6) {
			return fmt.Errorf("log2 has %v; its numbers are at most 10^6", x)
		}
	}
	if !(c.Cap >= 1 && c.Cap <= 1e18) {
		return fmt.Errorf("a cap of %v bytes a second", c.Cap)
	}
	low, high := c.trusted()
	// Between them the rate ascends.
	for _, x := range []float64{min(low, largest), min(high, largest)} {
		if rate := c.parabola(x); !(rate >= 1e-9) || low > largest {
			return fmt.Errorf("the rate falls to %.3g bytes a second for messages of %.3g bytes: "+
				"the curve is no rate of a link", 1e9*rate, 1e6*portable.Exp2(x))
		}
	}
	return nil
}

// validatePoints returns what is wrong with points; nil = nothing.
func (c Curve) validatePoints() error {
	if len(c.Points) == 0 || len(c.Points) > maxPoints {
		return fmt.Errorf("%d points; a curve has from 1 to %d", len(c.Points), maxPoints)
	}
	for i, p := range c.Points {
		switch {
		case !(p[0] >= 1 && p[0] <= 1e18 && p[1] > 0 && p[1] <= 1e9):
			return fmt.Errorf("point %d: %v bytes in %v seconds", i, p[0], p[1])
		case i > 0 && !(p[0] > c.Points[i-1][0] && p[1] >= c.Points[i-1][1]):
			return fmt.Errorf("point %d: %v bytes in %v seconds come after %v in %v: bytes "+
				"ascend, and more of them do not take less time", i, p[0], p[1], c.Points[i-1][0],
				c.Points[i-1][1])
		}
	}
	return nil
}
