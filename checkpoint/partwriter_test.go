package checkpoint

import (
	"context"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/group"
)

// TestPartsAreSummedAtOnce has two goroutines add the parts of a file to the same checksums. The
// race detector watches what they read without the lock.
func TestPartsAreSummedAtOnce(t *testing.T) {
	const unit, size = 64, 128
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	sums := []format.Sum{{From: 0, To: 96, At: []int64{0}}, {From: 32, To: size, At: []int64{64}}}
	for range 100 {
		p := &partWriter{}
		f := newUploadingFile(format.OutputFile{Name: "model.pt", Size: size}, unit)
		for _, s := range sums {
			f.addSum(s)
		}
		g := group.New(t.Context())
		var ready [2][]*part
		for i := range ready {
			g.Go("sum", func(context.Context) error {
				from := i * unit
				ready[i] = p.addToSums(f, &part{number: int64(i), from: int64(from),
					bytes: content[from : from+unit]})
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if n := len(ready[0]) + len(ready[1]); n != 2 {
			t.Fatalf("%d of 2 parts wait for no checksum", n)
		}
		for i, s := range sums {
			if want := crc32.ChecksumIEEE(content[s.From:s.To]); f.sums[i].value != want {
				t.Fatalf("the checksum of bytes %d to %d is %#x, want %#x", s.From, s.To,
					f.sums[i].value, want)
			}
		}
	}
}
