package tensor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// MaxDims is how many dimensions a tensor has at most, as in NumPy; more are in files that want to
// fill the memory.
const MaxDims = 64

// Shape is the extent of a tensor in each dimension, outermost first. The empty shape is that of a
// scalar.
type Shape []int

// Elements returns the product of the dimensions: 1 for a scalar. It fails on a negative dimension,
// on more than MaxDims, and when the product exceeds an int.
func (s Shape) Elements() (int, error) {
	if len(s) > MaxDims {
		return 0, fmt.Errorf("tensor: %d dimensions; there are at most %d", len(s), MaxDims)
	}
	if i := slices.IndexFunc(s, func(d int) bool { return d < 0 }); i >= 0 {
		return 0, fmt.Errorf("tensor: shape %v: dimension %d is negative", s, i)
	}
	if slices.Contains(s, 0) {
		return 0, nil
	}
	n := 1
	for _, d := range s {
		if n > math.MaxInt/d {
			return 0, fmt.Errorf("tensor: shape %v: more elements than an int can count", s)
		}
		n *= d
	}
	return n, nil
}

// Equal reports whether both shapes have the same dimensions.
func (s Shape) Equal(t Shape) bool { return slices.Equal(s, t) }

// String returns the shape as "[4,3]".
func (s Shape) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(d))
	}
	b.WriteByte(']')
	return b.String()
}
