package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/tensor"
)

// floats are numbers that are hard to round, and what torch 2.15 rounds them to with .to(dtype), of
// f32 as of f64.
var floats = []struct {
	value     float64
	bf16, f16 uint16
}{
	{0, 0, 0}, {math.Copysign(0, -1), 0x8000, 0x8000}, {1, 0x3f80, 0x3c00},
	{1.00390625, 0x3f80, 0x3c04}, {1.01171875, 0x3f82, 0x3c0c}, {-1.00390625, 0xbf80, 0xbc04},
	{65504, 0x4780, 0x7bff}, {65519.99, 0x4780, 0x7bff}, {6.1e-5, 0x3880, 0x3ff},
	{5.96e-8, 0x3380, 1}, {2.98e-8, 0x3300, 0}, {2.9802322387695312e-08, 0x3300, 0},
	{2.98023223876953125e-08 * 1.0000001, 0x3300, 1}, {1e-40, 1, 0},
	{math.Inf(1), 0x7f80, 0x7c00}, {math.Inf(-1), 0xff80, 0xfc00}, {0.1, 0x3dcd, 0x2e66},
	{1.0 / 3, 0x3eab, 0x3555}, {-2.718281828459045, 0xc02e, 0xc170},
	{1.0000000001 * 1.00390625, 0x3f80, 0x3c04},
}

// elementsAs returns numbers as the bytes of elements of a type of floats.
func elementsAs(d tensor.DType, values []float64) (b []byte) {
	le := binary.LittleEndian
	for _, v := range values {
		switch d {
		case tensor.F64:
			b = le.AppendUint64(b, math.Float64bits(v))
		case tensor.F32:
			b = le.AppendUint32(b, math.Float32bits(float32(v)))
		case tensor.F16:
			b = le.AppendUint16(b, uint16(tensor.Float16From(float32(v))))
		default:
			b = le.AppendUint16(b, uint16(tensor.BFloat16From(float32(v))))
		}
	}
	return b
}

// writeElements writes a file of safetensors with tensors of one dimension and one type, by name.
// If it cannot the test fails.
func writeElements(t *testing.T, path string, d tensor.DType, tensors map[string][]float64) {
	t.Helper()
	var list []safetensors.Tensor
	for name, values := range tensors {
		list = append(list,
			safetensors.Tensor{Name: name, DType: d, Shape: tensor.Shape{len(values)}})
	}
	writeTensors(t, path, list, func(name string) []byte { return elementsAs(d, tensors[name]) })
}

// writeTensors writes a file of safetensors with some tensors, whose bytes data returns by name. If
// it cannot the test fails.
func writeTensors(t *testing.T, path string, list []safetensors.Tensor,
	data func(name string) []byte) {
	t.Helper()
	h, err := safetensors.Layout(list, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range h.Tensors {
		b = append(b, data(x.Name)...)
	}
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestCast rounds as torch does, between all types, and reads the result from any byte on.
func TestCast(t *testing.T) {
	var values []float64
	for _, f := range floats {
		values = append(values, f.value)
	}
	for _, from := range []tensor.DType{tensor.F64, tensor.F32, tensor.F16, tensor.BF16} {
		values := slices.Clone(values)
		for i, v := range values {
			if from.Size() < 4 && v > 60000 && !math.IsInf(v, 1) {
				values[i] = 1 // 65504 is 65536 as bf16, which is beyond f16
			}
		}
		path := filepath.Join(t.TempDir(), "w.safetensors")
		writeElements(t, path, from, map[string][]float64{"w": values, "optimizer.exp_avg": values})
		for _, to := range CastDTypes() {
			c := openCheckpoint(t, path)
			r, err := c.Cast([]Cast{{To: to}})
			want := CastReport{Optimizer: 1}
			if to == tensor.F32 && from.Size() < 4 {
				want.Widened = 1
			} else if from != to {
				want.Rounded = 1
			}
			if err != nil || r != want {
				t.Fatalf("%v to %v: %+v, %v", from, to, r, err)
			}
			w := &c.Tensors[1]
			got := make([]byte, w.Bytes())
			if err := c.Files.Read(w, got); err != nil {
				t.Fatal(err)
			}
			for i, f := range floats {
				want := elementsAs(to, values[i:i+1])
				if to != tensor.F32 && from.Size() >= 4 {
					want = binary.LittleEndian.AppendUint16(nil,
						map[tensor.DType]uint16{tensor.BF16: f.bf16, tensor.F16: f.f16}[to])
				} else if from.Size() < 4 {
					break // what these have is not the number any more
				}
				if has := got[i*to.Size():][:to.Size()]; !slices.Equal(has, want) {
					t.Errorf("%v %v to %v: %x, torch has %x", from, f.value, to, has, want)
				}
			}
			if from == to {
				continue
			}
			for range 50 {
				readAnywhere(t, c, w.Pieces[0].File, got)
			}
		}
	}
}

// TestCastOfReplica loses a file with floats that are rounded, which another file has too, or not.
func TestCastOfReplica(t *testing.T) {
	dir := t.TempDir()
	values := make([]float64, 5000)
	for i := range values {
		values[i] = float64(i)
	}
	for _, name := range []string{"a.safetensors", "b.safetensors"} {
		writeElements(t, filepath.Join(dir, name), tensor.F32, map[string][]float64{"w": values})
	}
	for _, replica := range []bool{true, false} {
		c, _ := openDying(t, dir, 10, replica)
		if _, err := c.Cast([]Cast{{To: tensor.BF16}}); err != nil {
			t.Fatal(err)
		}
		out, _, err := c.Output(TargetFormat{Format: "hf"})
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, fmt.Sprint(replica))
		r, err := Move(t.Context(), c, out, to, Options{Workers: 2, blockBytes: 512})
		if !replica {
			if err == nil || !strings.Contains(err.Error(), "get a.safetensors whole") {
				t.Fatal(err)
			}
			continue
		}
		if err != nil || !slices.Equal(r.Unreadable, []string{"a.safetensors"}) {
			t.Fatal(r, err)
		}
		w, got := openCheckpoint(t, to), make([]byte, 2*len(values))
		if err := w.Files.Read(&w.Tensors[0], got); err != nil ||
			!slices.Equal(got, elementsAs(tensor.BF16, values)) {
			t.Errorf("not what it was: %v", err)
		}
	}
}

// readAnywhere reads a random range of a file of c, whose content is want, and reports by Errorf
// where it is not as it should be. It does not close the file, which c does.
func readAnywhere(t *testing.T, c *Checkpoint, name string, want []byte) {
	t.Helper()
	f, err := c.Files.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	at := rand.IntN(len(want) + 1)
	b := make([]byte, rand.IntN(len(want)+4-at))
	n, err := f.ReadAt(b, int64(at))
	if end := min(at+len(b), len(want)); !slices.Equal(b[:n], want[at:end]) ||
		(err == io.EOF) != (at+len(b) > len(want)) {
		t.Errorf("%d bytes from byte %d on are %x, %v; want %x", len(b), at, b[:n], err,
			want[at:end])
	}
}

// TestCastWiden demands that what is widened, and rounded again, is what it was.
func TestCastWiden(t *testing.T) {
	for _, from := range []tensor.DType{tensor.F16, tensor.BF16} {
		var all []byte
		for i := range 1 << 16 {
			all = binary.LittleEndian.AppendUint16(all, uint16(i))
		}
		wide, back := make([]byte, 2*len(all)), make([]byte, len(all))
		if i := roundTo(tensor.F32, wide, from, all); i >= 0 {
			t.Errorf("%v: element %d is called too large", from, i)
		}
		roundTo(from, back, tensor.F32, wide)
		for i := range 1 << 16 {
			a, b := binary.LittleEndian.Uint16(all[2*i:]), binary.LittleEndian.Uint16(back[2*i:])
			f := math.Float32frombits(binary.LittleEndian.Uint32(wide[4*i:]))
			if a != b && f == f {
				t.Fatalf("%v %04x is %v, and again %04x", from, a, f, b)
			}
		}
	}
}

// TestCastRefuses has numbers for which the type has no place, and damage of what is rounded.
func TestCastRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	writeElements(t, path, tensor.F64, map[string][]float64{"w": {1, 2, 65520}, "v": {1, 2, 3}})
	converted := func(to tensor.DType) error {
		c := openCheckpoint(t, path)
		if _, err := c.Cast([]Cast{{To: to}}); err != nil {
			t.Fatal(err)
		}
		out, _, err := c.Output(TargetFormat{Format: "pt", File: "out.pt"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Move(t.Context(), c, out, filepath.Join(t.TempDir(), "out.pt"),
			Options{Workers: 1})
		return err
	}
	const want = `tensor "w": element [2] is beyond what f16 can say; choose another type for ` +
		`it, such as --dtype 'w=f32'`
	if err := converted(tensor.F16); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := converted(tensor.BF16); err != nil {
		t.Error(err)
	}
	c := openCheckpoint(t, path)
	if _, err := Seal(t.Context(), c, 1); err != nil {
		t.Fatal(err)
	}
	if err := converted(tensor.BF16); err != nil {
		t.Errorf("sealed: %v", err)
	}
	changeFile(t, path, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if err := converted(tensor.BF16); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("damaged after it was sealed: %v", err)
	}

	// A file of torch.save has checksums, which are compared.
	b, err := os.ReadFile("../format/torchzip/testdata/torch2.15/lightning.pt")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "w.pt")
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	c = openCheckpoint(t, path)
	at := int(c.Tensors[len(c.Tensors)-1].Pieces[0].Offset)
	changeFile(t, path, func(b []byte) []byte { b[at] ^= 1; return b })
	if err := converted(tensor.BF16); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("damaged: %v", err)
	}
}

// TestIsOptimizer tells the state of optimizers by its names in checkpoints of many programs.
func TestIsOptimizer(t *testing.T) {
	c := openCheckpoint(t, "testdata/before/mesh/step-000000000004")
	for name, want := range map[string]bool{
		"optimizer.state.0.exp_avg": true, "optimizer_states.0.state.0.step": true,
		"optimizer/state/0/momentum_buffer": true, "optim.w": true, "a.exp_avg_sq.w": true,
		"model.0.weight": false, "state.0.w": false, "module.optimum.weight": false,
	} {
		if c.isOptimizer(name) != want {
			t.Errorf("%s is an optimizer's: %v", name, !want)
		}
	}
}

// TestCastOfAnotherTensor stops a move of a tensor that is rounded, and then moves another one of
// the same file, shape and new name to the same place: nothing of the first is taken for it.
func TestCastOfAnotherTensor(t *testing.T) {
	dir := t.TempDir()
	path, to := filepath.Join(dir, "w.safetensors"), filepath.Join(dir, "to")
	writeElements(t, path, tensor.F32,
		map[string][]float64{"ema": make([]float64, 5000),
			"model": slices.Repeat([]float64{1}, 5000)})
	// move moves one of the tensors, and calls it x.
	move := func(ctx context.Context, name string) error {
		c := openCheckpoint(t, path)
		if err := c.Select(func(x string) bool { return x == name }); err != nil {
			t.Fatal(err)
		}
		if err := c.Rename(name, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Cast([]Cast{{To: tensor.BF16}}); err != nil {
			t.Fatal(err)
		}
		out, _, err := c.Output(TargetFormat{Format: "hf"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Move(ctx, c, out, to, Options{Workers: 1, blockBytes: 4096})
		return err
	}
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	ctx = whileMoving(ctx, func(int64, int64) { stop(stopped) })
	if err := move(ctx, "ema"); !errors.Is(err, stopped) {
		t.Fatal(err)
	}
	if err := move(t.Context(), "model"); err == nil ||
		!strings.Contains(err.Error(), "is what is left of another move") {
		t.Error(err)
	}
	if err := move(t.Context(), "ema"); err != nil {
		t.Error(err)
	}
}
