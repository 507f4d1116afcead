package checkpoint

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// writeTorchFile writes a file of torch.save into dir, of three tensors of about one and a half
// blocks, and returns its path. If it cannot the test fails.
func writeTorchFile(t *testing.T, dir, name string) string {
	t.Helper()
	model, at := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, name)
	writeModel(t, model, rand.New(rand.NewPCG(1, 2)), 3, 1501)
	convert(t, model, at, TargetFormat{Format: "pt", File: name}, Options{Workers: 2})
	return at
}

// tryMove converts a checkpoint to safetensors, and returns what Move does. What goes wrong before
// fails the test.
func tryMove(t *testing.T, c *Checkpoint, to string) (*Report, error) {
	t.Helper()
	out, _, err := c.Output(TargetFormat{Format: "hf"})
	if err != nil {
		t.Fatal(err)
	}
	return Move(t.Context(), c, out, to, Options{Workers: 2})
}

// TestBitFlips flips a bit of a storage, in its first block, its second, and its last byte: it is
// neither moved nor sealed, and what lies elsewhere is.
func TestBitFlips(t *testing.T) {
	dir := t.TempDir()
	pt := writeTorchFile(t, dir, "a.pt")
	p, whole := openCheckpoint(t, pt).Tensors[1].Pieces[0],
		openCheckpoint(t, filepath.Join(dir, "model.safetensors"))
	n := int64(p.Box.Elements() * 2)
	for _, at := range []int64{0, n - 1, n / 2, 1<<20 - 1, 1 << 20} {
		changeFile(t, pt, func(b []byte) []byte { b[p.Offset+at] ^= 1 << (at % 8); return b })
		want := fmt.Sprintf(
			`"layers.1.w", a.pt, byte %d: the record "archive/data/1", bytes %d to %d, is damaged: its checksum is `, p.Offset, p.Offset, p.Offset+n)
		c := openCheckpoint(t, pt)
		if r, err := c.Records(t.Context(), 3); err != nil || len(r.Faults) != 1 ||
			r.Compared != 6 || r.WithoutChecksum != 0 ||
			!strings.HasPrefix(r.Faults[0].String(), want) {
			t.Errorf("byte %d: %+v, %v", at, r, err)
		}
		to := filepath.Join(t.TempDir(), "to")
		if _, err := tryMove(t, c, to); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "another copy, or leave out with --only") {
			t.Errorf("byte %d: a move: %v", at, err)
		}
		if left, _ := filepath.Glob(to + "*"); left != nil {
			t.Errorf("byte %d: it left %q", at, left)
		}
		if _, err := Seal(t.Context(), c, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("byte %d: a seal: %v", at, err)
		}
		for _, pair := range [][2]*Checkpoint{{c, whole}, {whole, c}, {c, c}} {
			if found, _, err := Compare(t.Context(), pair[0], pair[1], 2); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("byte %d: compared: %v, %v", at, found, err)
			}
		}
		if err := c.Select(func(name string) bool { return name != "layers.1.w" }); err != nil {
			t.Fatal(err)
		}
		if _, err := tryMove(t, c, to); err != nil {
			t.Errorf("byte %d: a move of the others: %v", at, err)
		}
		if found, _, err := Compare(t.Context(), c, openCheckpoint(t, to), 2); err != nil ||
			len(found) > 0 {
			t.Errorf("byte %d: the others compared: %v, %v", at, found, err)
		}
		changeFile(t, pt, func(b []byte) []byte { b[p.Offset+at] ^= 1 << (at % 8); return b })
	}
	if _, err := Seal(t.Context(), openCheckpoint(t, pt), 2); err != nil {
		t.Error(err)
	}
}

// TestUnreadRecords has a file that cannot be read any more once its headers were: what it has is
// taken from replicas.
func TestUnreadRecords(t *testing.T) {
	dir := t.TempDir()
	b := writeTorchFile(t, dir, "b.pt")
	text, err := os.ReadFile(b)
	if err != nil || os.WriteFile(filepath.Join(dir, "a.pt"), text, 0o666) != nil {
		t.Fatal(err)
	}
	c := openCheckpoint(t, b)
	left := &atomic.Int64{}
	left.Store(1 << 20)
	c.Files = format.NewFiles(dying{os.DirFS(dir), "a.pt", left})
	if c.Checkpoint, err = torchzip.Read(c.Files, "a.pt"); err != nil {
		t.Fatal(err)
	}
	for i := range c.Tensors {
		for _, p := range c.Tensors[i].Pieces {
			p.File = "b.pt"
			c.Tensors[i].Replicas = append(c.Tensors[i].Replicas, p)
		}
	}
	if c.stamps["a.pt"], err = c.currentStamp("a.pt"); err != nil {
		t.Fatal(err)
	}
	left.Store(0)
	if _, err := c.Records(t.Context(), 2); err == nil ||
		!strings.Contains(err.Error(), "the disk is broken") {
		t.Errorf("what cannot be read passes: %v", err)
	}
	r, err := tryMove(t, c, filepath.Join(dir, "to"))
	if err != nil || !slices.Equal(r.Unreadable, []string{"a.pt"}) {
		t.Fatal(r, err)
	}
	want, _ := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if got, err := os.ReadFile(filepath.Join(dir, "to", "model.safetensors")); err != nil ||
		!bytes.Equal(got, want) {
		t.Fatalf("not what it was: %v", err)
	}
}

// TestNothingMoved has a file with an entry that cannot be found, so that its checksums cannot be
// compared, and nothing is moved: nothing of the attempt stays.
func TestNothingMoved(t *testing.T) {
	dir := t.TempDir()
	pt := writeTorchFile(t, dir, "a.pt")
	changeFile(t, pt, func(b []byte) []byte {
		copy(b[bytes.Index(b, []byte("archive/version"))-30:], "lost")
		return b
	})
	_, err := tryMove(t, openCheckpoint(t, pt), filepath.Join(dir, "to"))
	if err == nil || !strings.Contains(err.Error(), "has no header at byte") {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "to*")); left != nil {
		t.Errorf("it left %q", left)
	}
}
