package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// decoderTensors returns the tensors of a decoder of the shape of Qwen 3 0.6B with Adam, 14 bytes a
// parameter, with so many of its 28 layers.
func decoderTensors(layers int) (list []safetensors.Tensor) {
	add := func(name string, shape ...int) {
		list = append(list, safetensors.Tensor{Name: name, DType: tensor.BF16, Shape: shape})
		for _, kind := range []string{"master", "exp_avg", "exp_avg_sq"} {
			list = append(list,
				safetensors.Tensor{Name: "optimizer." + kind + "." + name, DType: tensor.F32,
					Shape: shape})
		}
	}
	add("model.embed_tokens.weight", 151936, 1024)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"self_attn.q_proj.weight", 2048, 1024)
		add(p+"self_attn.k_proj.weight", 1024, 1024)
		add(p+"self_attn.v_proj.weight", 1024, 1024)
		add(p+"self_attn.o_proj.weight", 1024, 2048)
		add(p+"mlp.gate_proj.weight", 3072, 1024)
		add(p+"mlp.up_proj.weight", 3072, 1024)
		add(p+"mlp.down_proj.weight", 1024, 3072)
		add(p+"input_layernorm.weight", 1024)
		add(p+"post_attention_layernorm.weight", 1024)
	}
	add("model.norm.weight", 1024)
	return list
}

// What a decoder has in its embedding, and in each layer, in bytes.
const embedding, layer = 14 * 151936 * 1024, 14 * (15360*1024 + 2*1024)

// BenchmarkReshard reshards a decoder with Adam from pp=2,tp=2 to dp=4 by FSDP 2, as shoal's rank
// files, and compares with a plain copy of the same files by as many workers, before and after.
// SHOAL_BENCH_DIR is where (a tmpfs, a disk), SHOAL_BENCH_LAYERS how many layers: 28 are 8.4 GB,
// which lie there twice at a time.
func BenchmarkReshard(b *testing.B) {
	layers, workers := 2, runtime.NumCPU()
	if text := os.Getenv("SHOAL_BENCH_LAYERS"); text != "" {
		var err error
		if layers, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(os.Getenv("SHOAL_BENCH_DIR"), "shoal")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	model, from := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "from")
	bytes := writeRandom(b, model, 0, decoderTensors(layers))
	reshard := func(src, dst, mesh, preset string) {
		c, err := Open(src)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		m, err := layout.ParseMesh(mesh)
		if err != nil {
			b.Fatal(err)
		}
		spec, err := layout.Preset(preset, m, Catalogue(c.Checkpoint), 8)
		if err != nil {
			b.Fatal(err)
		}
		out, _, err := c.Output(TargetFormat{Format: "ranks", Spec: spec})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Move(b.Context(), c, out, dst, Options{Workers: workers}); err != nil {
			b.Fatal(err)
		}
	}
	reshard(model, from, "pp=2,tp=2", "megatron-core")
	if err := os.Remove(model); err != nil {
		b.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	timed := func(f func()) (c cost) {
		before, started := processorTime(b), time.Now()
		f()
		c = cost{time.Since(started), processorTime(b) - before}
		if err := os.RemoveAll(to); err != nil {
			b.Fatal(err)
		}
		return c
	}
	var all, plain cost
	for b.Loop() {
		plain.add(timed(func() { copyAll(b, from, to, workers) }))
		all.add(timed(func() { reshard(from, to, "dp=4", "fsdp2") }))
		plain.add(timed(func() { copyAll(b, from, to, workers) }))
	}
	gb := float64(bytes) / 1e9 * float64(b.N)
	b.ReportMetric(gb/all.wall.Seconds(), "GB/s")
	b.ReportMetric(2*gb/plain.wall.Seconds(), "copy-GB/s")
	b.ReportMetric(50*plain.wall.Seconds()/all.wall.Seconds(), "%-of-copy")
	b.ReportMetric(gb/all.cpu.Seconds(), "GB/cpu-s")
	b.ReportMetric(2*gb/plain.cpu.Seconds(), "copy-GB/cpu-s")
	b.ReportMetric(50*plain.cpu.Seconds()/all.cpu.Seconds(), "%-of-copy-cpu")
	b.ReportMetric(peakMiB(b), "peak-MiB")
}

// cost is what something took: on the clock, and of the processors, which counts on a machine that
// is shared. One goroutine uses it.
type cost struct{ wall, cpu time.Duration }

// add adds d.
func (c *cost) add(d cost) { c.wall, c.cpu = c.wall+d.wall, c.cpu+d.cpu }

// processorTime returns the processor time that this process has used so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// writeRandom writes a safetensors file whose elements are random bytes, which follow from the
// seed, part by part, and returns how many bytes the elements have. If it cannot the test fails.
func writeRandom(b testing.TB, path string, seed uint64, tensors []safetensors.Tensor) int64 {
	h, err := safetensors.Layout(tensors, map[string]string{"format": "pt"})
	if err != nil {
		b.Fatal(err)
	}
	start, err := h.AppendBinary(nil)
	if err != nil {
		b.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	r, part := rand.NewChaCha8(key), make([]byte, 1<<20)
	if _, err := f.Write(start); err != nil {
		b.Fatal(err)
	}
	for left := h.Size() - h.Data; left > 0; {
		n := min(left, int64(len(part)))
		r.Read(part[:n])
		if _, err := f.Write(part[:n]); err != nil {
			b.Fatal(err)
		}
		left -= n
	}
	return h.Size() - h.Data
}

// copyAll copies the files of a folder into a new one, in blocks that are dealt out to so many
// goroutines, syncs them, and waits for that. If it cannot the benchmark fails.
func copyAll(b *testing.B, from, to string, workers int) {
	const block = 1 << 20
	type item struct {
		file int
		at   int64
	}
	if err := os.Mkdir(to, 0o777); err != nil {
		b.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		b.Fatal(err)
	}
	var items []item
	var in, out []*os.File
	for i, e := range entries {
		f, err := os.Open(filepath.Join(from, e.Name()))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		g, err := os.Create(filepath.Join(to, e.Name()))
		if err != nil {
			b.Fatal(err)
		}
		defer g.Close()
		info, err := f.Stat()
		if err != nil {
			b.Fatal(err)
		}
		for at := int64(0); at < info.Size(); at += block {
			items = append(items, item{i, at})
		}
		in, out = append(in, f), append(out, g)
	}
	err = group.Share(b.Context(), "checkpoint", workers, len(items), func() func(int) error {
		buffer := make([]byte, block)
		return func(i int) error {
			n, _ := in[items[i].file].ReadAt(buffer, items[i].at)
			_, err := out[items[i].file].WriteAt(buffer[:n], items[i].at)
			return err
		}
	})
	for _, f := range out {
		if err == nil {
			err = f.Sync()
		}
	}
	if err != nil {
		b.Fatal(err)
	}
}

// highWater matches the most memory that a process had resident, in /proc/PID/status.
var highWater = regexp.MustCompile(`VmHWM:\s*(\d+) kB`)

// peakMiB returns the most memory that this process had resident, in MiB; where the system does not
// tell, the benchmark is skipped.
func peakMiB(b *testing.B) float64 {
	n, err := residentKiB("self")
	if err != nil {
		b.Skip(err)
	}
	return n / 1024
}

// residentKiB returns the most memory that a process, given by its number or "self", had resident,
// in KiB; its rusage counts what the one had that has started it, and this does not.
func residentKiB(process string) (float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", process, "status"))
	if err != nil {
		return 0, err
	}
	found := highWater.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("process %s has ended", process)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}
