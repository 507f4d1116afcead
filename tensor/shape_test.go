package tensor_test

import (
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/tensor"
)

// Shapes are written, compared and multiplied out, and those that cannot be are refused.
func TestShape(t *testing.T) {
	for _, c := range []struct {
		shape tensor.Shape
		text  string
		n     int
		err   string
	}{
		{nil, "[]", 1, ""},
		{tensor.Shape{5}, "[5]", 5, ""},
		{tensor.Shape{4, 3}, "[4,3]", 12, ""},
		{tensor.Shape{0, 3}, "[0,3]", 0, ""},
		{tensor.Shape{math.MaxInt, 2, 0}, "[9223372036854775807,2,0]", 0, ""},
		{tensor.Shape{math.MaxInt}, "[9223372036854775807]", math.MaxInt, ""},
		{tensor.Shape{1 << 31, 1 << 31, 2}, "[2147483648,2147483648,2]", 0, "more elements"},
		{make(tensor.Shape, 65), "[" + strings.Repeat("0,", 64) + "0]", 0,
			"65 dimensions; there are at most 64"},
		{tensor.Shape{4, -1}, "[4,-1]", 0, "dimension 1 is negative"},
		{tensor.Shape{0, -1}, "[0,-1]", 0, "dimension 1 is negative"},
	} {
		if got := c.shape.String(); got != c.text {
			t.Errorf("String() = %q, want %q", got, c.text)
		}
		n, err := c.shape.Elements()
		if n != c.n || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v.Elements() = %d, %v; want %d, error %q", c.shape, n, err, c.n, c.err)
		}
	}
	if !(tensor.Shape{4, 3}).Equal(tensor.Shape{4, 3}) ||
		(tensor.Shape{4, 3}).Equal(tensor.Shape{3, 4}) ||
		!(tensor.Shape{}).Equal(nil) {
		t.Error("Equal is wrong")
	}
}

// Every element type has bits, and a name that ParseDType reads.
func TestDTypeNames(t *testing.T) {
	for _, d := range tensor.StoredDTypes() {
		if d.Bits() == 0 || d.Size() != d.Bits()/8 {
			t.Errorf("%v: %d bits, %d bytes", d, d.Bits(), d.Size())
		}
		if got, err := tensor.ParseDType(d.String()); got != d || err != nil {
			t.Errorf("ParseDType(%q) = %v, %v", d.String(), got, err)
		}
	}
	if _, err := tensor.ParseDType("f8"); err == nil {
		t.Error("ParseDType accepts f8")
	}
	if beyond := tensor.F4 + 1; beyond.Bits() != 0 || tensor.DType(0).Bits() != 0 ||
		tensor.I16.Valid() {
		t.Error("what is no element type has bits, or what no call carries is valid")
	}
}
