package digits

import (
	"slices"
	"testing"
)

// TestAuditFindsWhatIsWrong checks what is counted of samples that are lost or repeated.
func TestAuditFindsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		times          []int32
		should         int
		lost, repeated int64
	}{
		{[]int32{1, 1, 1}, 3, 0, 0},
		{[]int32{1, 0, 1}, 3, 1, 0},
		{[]int32{1, 3, 0}, 3, 1, 2},
		{[]int32{1, 0, 0}, 1, 0, 0},
		{[]int32{2, 0, 0}, 2, 1, 1},
	} {
		a := &Audit{times: c.times}
		if lost, repeated := a.countErrors(c.should); lost != c.lost || repeated != c.repeated {
			t.Errorf("of %v %d should have counted: %d lost, %d repeated", c.times, c.should, lost,
				repeated)
		}
	}
	weights := []float32{1, 2, 3}
	for i := range weights {
		other := slices.Clone(weights)
		other[i]++
		if digest(other) == digest(weights) {
			t.Errorf("%v and %v have one digest", other, weights)
		}
	}
}
