package digits

import (
	"testing"

	"github.com/shoal-ml/shoal/data/cursor"
)

// TestSheetHasRoomForEveryPart compares the room of a rank in the sheet with the largest part of a
// step, for every number of samples and workers up to a bound.
func TestSheetHasRoomForEveryPart(t *testing.T) {
	for size := 1; size <= 12; size++ {
		for dealt := 1; dealt <= 40; dealt++ {
			c, err := cursor.New(uint64(dealt), 40, 1, false)
			if err != nil {
				t.Fatal(err)
			}
			for rank, part := range c.Parts(size) {
				n := 0
				for _, s := range part {
					n += int(s.Len())
				}
				if n > mostSamples(dealt, size) {
					t.Errorf("rank %d of %d takes %d of %d samples, and has room for %d",
						rank, size, n, dealt, mostSamples(dealt, size))
				}
			}
		}
	}
}
