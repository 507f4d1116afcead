package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// rowsOverDP returns a spec that places the rows of every tensor over dp.
func rowsOverDP(mesh string) *layout.Spec {
	return &layout.Spec{Shoal: layout.Version, Mesh: mesh,
		Rules: []layout.Rule{{Match: "**", Place: "dp=shard(0)"}}}
}

// writeSealed writes a checkpoint of two ranks with a manifest into a folder of the test, and
// returns its path. If it cannot the test fails.
func writeSealed(t *testing.T) string {
	dir := t.TempDir()
	writeModel(t, filepath.Join(dir, "model.safetensors"), rand.New(rand.NewPCG(1, 2)), 3, 16)
	at := filepath.Join(dir, "sealed")
	convert(t, filepath.Join(dir, "model.safetensors"), at,
		TargetFormat{Format: "ranks", Spec: rowsOverDP("dp=2")}, Options{Workers: 2, Seal: true})
	return at
}

// changeFile replaces the content of a file by what f, which may change b, returns for it.
func changeFile(t *testing.T, path string, f func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, f(b), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDamage changes what was sealed: one element, shards that change places, a shard that is
// shifted by an element, a file that is cut off or gone. Verify names file and tensor, and nothing
// of it is moved on.
func TestDamage(t *testing.T) {
	const first, second = "rank-00000.safetensors", "rank-00001.safetensors"
	const size = 3 * 8 * 512 * 2 // of the elements of a file, at its end
	for _, c := range []struct {
		name    string
		damage  func(t *testing.T, dir string)
		want    []string // in what Verify says
		unmoved string   // in the error of a move
	}{
		{"one element", func(t *testing.T, dir string) {
			changeFile(t, filepath.Join(dir, second), func(b []byte) []byte {
				b[len(b)-1] ^= 1
				return b
			})
		}, []string{second + ", bytes 0 to ",
			" is due; in tensor layers.0.w, layers.1.w, layers.2.w",
			second + ", bytes 16664 to 24856: fingerprint ", "in tensor layers.2.w"},
			`tensor "layers.2.w" is not what was sealed`},
		{"swapped shards", func(t *testing.T, dir string) {
			var one []byte
			changeFile(t, filepath.Join(dir, first), func(b []byte) []byte { one = b; return b })
			changeFile(t, filepath.Join(dir, second), func(b []byte) []byte {
				x, y := one[len(one)-size:], bytes.Clone(b[len(b)-size:])
				copy(b[len(b)-size:], x)
				copy(x, y)
				return b
			})
			changeFile(t, filepath.Join(dir, first), func([]byte) []byte { return one })
		}, []string{first, second, "in tensor layers.0.w"}, "is not what was sealed"},
		{"swapped files", func(t *testing.T, dir string) {
			a, b := filepath.Join(dir, first), filepath.Join(dir, second)
			for _, step := range [][2]string{{a, a + ".x"}, {b, a}, {a + ".x", b}} {
				if err := os.Rename(step[0], step[1]); err != nil {
					t.Fatal(err)
				}
			}
		}, []string{first, second, "is the file of rank 1 of 2"},
			"is the file of rank 1 of 2, by its metadata, and not of rank 0"},
		{"shifted shard", func(t *testing.T, dir string) {
			changeFile(t, filepath.Join(dir, first), func(b []byte) []byte {
				copy(b[len(b)-size:], b[len(b)-size+2:])
				return b
			})
		}, []string{first, "in tensor layers.0.w"}, "is not what was sealed"},
		{"cut off", func(t *testing.T, dir string) {
			changeFile(t, filepath.Join(dir, second), func(b []byte) []byte { return b[:len(b)-5] })
		}, []string{second + ", bytes ", "and had ", "the checkpoint cannot be read"}, "cut off"},
		{"gone", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, second)); err != nil {
				t.Fatal(err)
			}
		}, []string{second, "cannot be read"}, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := writeSealed(t)
			c.damage(t, dir)
			damage, _, err := Verify(t.Context(), dir, 2)
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, d := range damage {
				said = append(said, d.String())
			}
			for _, want := range c.want {
				if !strings.Contains(strings.Join(said, "\n"), want) {
					t.Errorf("%q does not say %q", said, want)
				}
			}
			to := filepath.Join(t.TempDir(), "to")
			if err := moveToThreeRanks(t, dir, to); err == nil ||
				!strings.Contains(err.Error(), c.unmoved) {
				t.Errorf("moving it: %v, want %q", err, c.unmoved)
			}
			if left, _ := filepath.Glob(to + "*"); left != nil {
				t.Errorf("it left %q", left)
			}
		})
	}
}

// moveToThreeRanks moves a checkpoint to three ranks, in the format dcp, and returns why it could
// not.
func moveToThreeRanks(t *testing.T, from, to string) error {
	c, err := Open(from)
	if err != nil {
		return err
	}
	defer c.Close()
	out, _, err := c.Output(
		TargetFormat{Format: "dcp",
			Spec: &layout.Spec{Shoal: layout.Version, Mesh: "dp=3",
				Rules: []layout.Rule{{Match: "**", Place: "dp=shard(0,ceil)"}}}})
	if err != nil {
		return err
	}
	_, err = Move(t.Context(), c, out, to, Options{Workers: 2})
	return err
}

// TestSourceChanges touches a file of the source while it is moved, or puts another of the same
// size in its place.
func TestSourceChanges(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"touched": func(path string) error {
			return os.Chtimes(path, time.Time{}, time.Unix(1, 0))
		},
		"replaced": func(path string) error {
			info, err := os.Stat(path)
			if err == nil {
				err = os.WriteFile(path+".new", make([]byte, info.Size()), 0o666)
			}
			if err == nil {
				err = os.Chtimes(path+".new", time.Time{}, info.ModTime().Add(time.Second))
			}
			return errors.Join(err, os.Rename(path+".new", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "to")
			writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
			c := openCheckpoint(t, from)
			out, _, err := c.Output(TargetFormat{Format: "hf"})
			if err != nil {
				t.Fatal(err)
			}
			done := false
			ctx := whileMoving(t.Context(), func(int64, int64) {
				if !done {
					done = true
					if err := change(from); err != nil {
						t.Error(err)
					}
				}
			})
			_, err = Move(ctx, c, out, to, Options{Workers: 1})
			if err == nil || !strings.Contains(err.Error(),
				"model.safetensors was changed while it was read") {
				t.Fatal(err)
			}
			if left, _ := filepath.Glob(to + "*"); left != nil {
				t.Errorf("it left %q", left)
			}
		})
	}
}

// TestDiffOfChanges compares a checkpoint of which a file is written anew, with the same bytes,
// after it was opened.
func TestDiffOfChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	writeModel(t, path, rand.New(rand.NewPCG(1, 2)), 3, 16)
	a, b := openCheckpoint(t, path), openCheckpoint(t, path)
	if found, _, err := Compare(t.Context(), a, b, 2); err != nil || len(found) > 0 {
		t.Fatal(found, err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Compare(t.Context(), a, b, 2); err == nil ||
		!strings.Contains(err.Error(), "model.safetensors was changed while it was read") {
		t.Error(err)
	}
}

// dying is a folder of which one file cannot be read any more after so many reads. Any goroutine
// may use it.
type dying struct {
	fs.FS
	name string        // name of that file
	left *atomic.Int64 // reads that still succeed
}

// Open implements fs.FS: the reads of one file are counted.
func (d dying) Open(name string) (fs.File, error) {
	f, err := d.FS.Open(name)
	if err == nil && name == d.name {
		return dyingFile{f, d.left}, nil
	}
	return f, err
}

// dyingFile is the file of a dying.
type dyingFile struct {
	fs.File
	left *atomic.Int64
}

// ReadAt implements io.ReaderAt, until there are no reads left.
func (f dyingFile) ReadAt(b []byte, at int64) (int, error) {
	if f.left.Add(-1) < 0 {
		return 0, errors.New("the disk is broken")
	}
	return f.File.(io.ReaderAt).ReadAt(b, at)
}

// openDying opens a.safetensors of a folder, which cannot be read any more after so many reads,
// with b.safetensors beside it as its replica, if replica says so; and returns it, which the caller
// closes, with what it is moved to. If it cannot the test fails.
func openDying(t *testing.T, dir string, reads int64, replica bool) (*Checkpoint, *format.Output) {
	t.Helper()
	c, err := Open(filepath.Join(dir, "a.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	left := &atomic.Int64{}
	left.Store(reads)
	c.Files = format.NewFiles(dying{os.DirFS(dir), "a.safetensors", left})
	if c.stamps["b.safetensors"], err = c.currentStamp("b.safetensors"); err != nil {
		t.Fatal(err)
	}
	for i := range c.Tensors {
		for _, p := range c.Tensors[i].Pieces {
			p.File = "b.safetensors"
			if replica {
				c.Tensors[i].Replicas = append(c.Tensors[i].Replicas, p)
			}
		}
	}
	out, _, err := c.Output(TargetFormat{Format: "hf"})
	if err != nil {
		t.Fatal(err)
	}
	return c, out
}

// TestReplica loses a file whose tensors another file has too, and then one that nobody else has.
func TestReplica(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.safetensors", "b.safetensors"} {
		writeModel(t, filepath.Join(dir, name), rand.New(rand.NewPCG(1, 2)), 3, 16)
	}
	for _, replicas := range []bool{true, false} {
		c, out := openDying(t, dir, 40, replicas)
		r, err := Move(t.Context(), c, out, filepath.Join(dir, fmt.Sprint(replicas)),
			Options{Workers: 2, blockBytes: 512})
		if !replicas {
			if err == nil || !strings.Contains(err.Error(), "the disk is broken") ||
				strings.Contains(err.Error(), "ranks") ||
				!strings.Contains(err.Error(), "get a.safetensors whole") {
				t.Fatal(err)
			}
			continue
		}
		if err != nil || !slices.Equal(r.Unreadable, []string{"a.safetensors"}) || r.Reused == 0 ||
			r.Moved == 0 {
			t.Fatal(r, err)
		}
		want, _ := os.ReadFile(filepath.Join(dir, "a.safetensors"))
		if got, err := os.ReadFile(filepath.Join(dir, "true", "model.safetensors")); err != nil ||
			!bytes.Equal(got, want) {
			t.Fatalf("not what it was: %v", err)
		}
	}
}

// TestReplicasDiffer has two copies of which nobody says which is right.
func TestReplicasDiffer(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.safetensors", "b.safetensors"} {
		writeModel(t, filepath.Join(dir, name), rand.New(rand.NewPCG(1, 2)), 3, 16)
	}
	changeFile(t, filepath.Join(dir, "b.safetensors"), func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	})
	c, err := Open(filepath.Join(dir, "a.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := c.Tensors[2].Pieces[0]
	p.File = "b.safetensors"
	c.Tensors[2].Replicas = []format.Piece{p}
	out, _, err := c.Output(TargetFormat{Format: "hf"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Move(t.Context(), c, out, filepath.Join(dir, "to"), Options{})
	if err == nil || !strings.Contains(err.Error(),
		`tensor "layers.2.w": b.safetensors has another box [0:16,0:512] than a.safetensors`) {
		t.Fatal(err)
	}
	p = c.Tensors[1].Pieces[0] // of the same file
	p.Box = c.Tensors[2].Pieces[0].Box
	c.Tensors[2].Replicas = []format.Piece{p}
	if out, _, err = c.Output(TargetFormat{Format: "hf"}); err != nil {
		t.Fatal(err)
	}
	_, err = Move(t.Context(), c, out, filepath.Join(dir, "to"), Options{})
	if want := fmt.Sprintf(`a.safetensors at byte %d has another box [0:16,0:512] than at byte %d;`,
		p.Offset, c.Tensors[2].Pieces[0].Offset); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Fatalf("%v; want %s", err, want)
	}
}

// TestRefused asks for moves that cannot be made, and checks what is said.
func TestRefused(t *testing.T) {
	dir := writeSealed(t)
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := Seal(t.Context(), c, 1); err == nil ||
		!strings.Contains(err.Error(), "is there already") {
		t.Errorf("sealed twice: %v", err)
	}
	if err := c.Rename("nothing.", ""); err == nil {
		t.Error("renamed nothing")
	}
	if err := c.Rename("layers.0.", "layers.1."); err == nil ||
		!strings.Contains(err.Error(), "stands twice") {
		t.Errorf("two of one name: %v", err)
	}
	if err := c.Select(func(string) bool { return false }); err == nil {
		t.Error("nothing selected")
	}
	f4 := &Checkpoint{
		Checkpoint: &format.Checkpoint{
			Tensors: []format.Tensor{{Name: "w", DType: tensor.F4, Shape: tensor.Shape{8},
				Pieces: []format.Piece{{Box: tensor.Shape{8}.Box(), File: manifest.Name}}}}},
		Files: c.Files}
	if _, err := f4.Layout(); err == nil || !strings.Contains(err.Error(), "share bytes") {
		t.Errorf("f4: %v", err)
	}
	if _, _, err := f4.Output(TargetFormat{Format: "zip"}); err == nil ||
		!strings.Contains(err.Error(), "no format") {
		t.Errorf("no such format: %v", err)
	}
}

// TestDiff compares what differs in every way.
func TestDiff(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b")
	writeModel(t, a, rand.New(rand.NewPCG(1, 2)), 3, 16)
	convert(t, a, b, TargetFormat{Format: "ranks", Spec: rowsOverDP("dp=2")}, Options{})
	compare := func(want ...string) {
		t.Helper()
		x, err := Open(a)
		if err != nil {
			t.Fatal(err)
		}
		y, err := Open(b)
		if err != nil {
			t.Fatal(err)
		}
		found, _, err := Compare(t.Context(), x, y, 2)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, d := range found {
			got = append(got, d.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	compare()
	changeFile(t, filepath.Join(b, "rank-00001.safetensors"), func(b []byte) []byte {
		b[len(b)-1] ^= 1
		b[len(b)-2] ^= 1
		b[len(b)-1024] ^= 4
		return b
	})
	compare(`"layers.2.w": 2 elements differ, the first at [15,0]`)
	writeModel(t, a, rand.New(rand.NewPCG(1, 2)), 4, 16)
	compare(`"layers.2.w": 2 elements differ, the first at [15,0]`, `"layers.3.w": only in A`)
	writeModel(t, a, rand.New(rand.NewPCG(1, 2)), 2, 8)
	compare(`"layers.0.w": bf16 [8,512] against bf16 [16,512]`,
		`"layers.1.w": bf16 [8,512] against bf16 [16,512]`, `"layers.2.w": only in B`)
}

// TestLinkToNothing opens folders as those of Hugging Face's cache, in which a link leads to a file
// that was not copied, and such a link by its own name. The error says that it is a link.
func TestLinkToNothing(t *testing.T) {
	dir := t.TempDir()
	const file = "model.safetensors"
	if err := os.Symlink("../../blobs/0123", filepath.Join(dir, file)); err != nil {
		t.Fatal(err)
	}
	want := file + " is a link, and the file to which it leads is missing"
	index := &safetensors.Index{Files: map[string]string{"w": file}}
	for _, indexed := range []bool{false, true} {
		if indexed {
			if err := os.WriteFile(filepath.Join(dir, safetensors.IndexName),
				index.AppendJSON(nil, 4), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{dir, filepath.Join(dir, file)} {
			if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, with an index %v: %v; want %q", path, indexed, err, want)
			}
		}
	}
}
