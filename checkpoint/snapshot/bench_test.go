package snapshot_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/tensor"
)

// BenchmarkWrite writes 1 GiB as two parts; TMPDIR says where. Beside the rate it has the processor
// time, which a busy machine does not change much.
func BenchmarkWrite(b *testing.B) {
	s := &snapshot.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"),
		Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{1 << 28}}}}
	memory := [][]byte{make([]byte, 1<<30)}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range memory[0] {
		memory[0][i] = byte(r.Uint32())
	}
	b.SetBytes(1 << 30)
	f := snapshot.Folder{Root: b.TempDir(), Keep: 1, Log: func(line string) { b.Log(line) }}
	parts := []*snapshot.Part{snapshottest.Part(b, f, s, memory, 1, 0),
		snapshottest.Part(b, f, s, memory, 1, 1)}
	var before, after syscall.Rusage
	used := func(r *syscall.Rusage) {
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, r); err != nil {
			b.Fatal(err)
		}
	}
	used(&before)
	for b.Loop() {
		if err := os.RemoveAll(f.Path(5)); err != nil {
			b.Fatal(err)
		}
		if err := group.Share(context.Background(), "part", 2, 2, func() func(int) error {
			return func(i int) error { parts[i].Write(); return nil }
		}); err != nil {
			b.Fatal(err)
		}
	}
	used(&after)
	b.ReportMetric((seconds(after.Utime)-seconds(before.Utime))/float64(b.N), "user-s/op")
	b.ReportMetric((seconds(after.Stime)-seconds(before.Stime))/float64(b.N), "sys-s/op")
}

// seconds returns a time of the kernel in seconds.
func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
