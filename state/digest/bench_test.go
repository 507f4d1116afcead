package digest

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkRunSum says how many bytes a second are fingerprinted.
func BenchmarkRunSum(b *testing.B) {
	k := NewKey(1)
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name string
		run  int
	}{{"64MiB", 64 << 20}, {"1MiB", 1 << 20}, {"4KiB", 4096}, {"256B", 256}, {"64B", 64}} {
		data := make([]byte, max(c.run, 1<<20))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for range b.N {
				for at := 0; at < len(data); at += c.run {
					k.RunSum(at*7, data[at:at+c.run])
				}
			}
		})
	}
}
