package kernel_test

import (
	"bytes"
	"testing"

	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/tensor"
)

// FuzzImplsAgree lets the fuzzer choose the call, the type, the alignment, the length and every bit
// of the numbers.
func FuzzImplsAgree(f *testing.F) {
	list, types := allCalls(), tensor.DTypes()
	for i := range list {
		f.Add(uint8(i), uint8(i), uint8(3*i), 0.5,
			bytes.Repeat([]byte{0x7f, 0x80, 0x01, 0xff, 0x00, 0x3c}, 20*i))
	}
	f.Fuzz(func(t *testing.T, which, dtype, offset uint8, a float64, data []byte) {
		c, d := list[int(which)%len(list)], types[int(dtype)%len(types)]
		if c.floats && !d.Float() {
			return
		}
		od, xd := c.operandTypes(d)
		n := len(data) / (od.Size() + 2*xd.Size())
		off := int(offset) % 64 * max(od.Size(), xd.Size())
		x, y := newAligned(n*xd.Size(), off), newAligned(n*xd.Size(), 0)
		before := data[len(data)-n*od.Size():]
		copy(x, data)
		copy(y, data[len(x):])
		var want []byte
		for i, k := range kernel.Impls() {
			out := newAligned(len(before), off)
			copy(out, before)
			c.run(k, d, out, x, y, a)
			if i == 0 {
				want = out
			} else if s := diff(od, out, want); s != "" {
				t.Errorf("%s %s %v: %s", k.Name, c.name, d, s)
			}
		}
	})
}
