package snapshot_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// drawState draws a state of a checkpoint of a step by so many workers, and returns it with the
// bytes of its tensors.
func drawState(r *rand.Rand, step uint64, workers int) (*snapshot.State, [][]byte) {
	s := &snapshot.State{Step: step, Cursor: []byte{1, 2, 3}, Workers: workers,
		Notes: json.RawMessage(`{"rate":0.1}`)}
	var memory [][]byte
	for i := range r.IntN(6) {
		t := snapshot.Tensor{Name: fmt.Sprintf("t/%d", i),
			DType: []tensor.DType{tensor.F32, tensor.BF16, tensor.U8, tensor.Bool}[r.IntN(4)],
			Shape: tensor.Shape{}}
		for range r.IntN(4) {
			t.Shape = append(t.Shape, []int{0, 1, 1, 2, 7, 100, 3000}[r.IntN(7)])
		}
		if t.Bytes() > 40<<20 {
			t.Shape = tensor.Shape{5, 3}
		}
		if n := t.Bytes(); n > 0 && r.IntN(3) == 0 {
			t.Cuts = []int{0, n}
			for range workers - 1 {
				t.Cuts = append(t.Cuts, r.IntN(n+1)/rowBytes(t)*rowBytes(t))
			}
			slices.Sort(t.Cuts)
		}
		b := make([]byte, t.Bytes())
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		s.Tensors, memory = append(s.Tensors, t), append(memory, b)
	}
	return s, memory
}

// rowBytes returns the bytes of a row, which no cut goes through: of the elements that have one
// index in the first dimension longer than 1.
func rowBytes(t snapshot.Tensor) int {
	for _, n := range t.Shape {
		if n > 1 {
			return t.Bytes() / n
		}
	}
	return t.Bytes()
}

// writeParts writes the parts of the workers with these ranks at once, with a seed that follows
// from the step, and waits for them. What becomes of them f logs.
func writeParts(t testing.TB, f snapshot.Folder, s *snapshot.State, memory [][]byte, ranks ...int) {
	t.Helper()
	snapshottest.Write(t, f, s, memory, s.Step*77, ranks...)
}

// ranksBelow returns the ranks from 0 to n-1.
func ranksBelow(n int) (ranks []int) {
	for r := range n {
		ranks = append(ranks, r)
	}
	return ranks
}

// readNewest reads the newest checkpoint as so many workers do together, each of which compares
// other blocks, and returns what the last of them got, or why it cannot be read. Without a
// checkpoint the test fails.
func readNewest(t testing.TB, f snapshot.Folder, turns int) (*snapshot.Sealed, [][]byte, error) {
	t.Helper()
	steps, err := f.Sealed()
	if err != nil || len(steps) == 0 {
		t.Fatalf("sealed: %v, %v", steps, err)
	}
	s, err := f.Open(steps[0].Step)
	if err != nil {
		return nil, nil, err
	}
	var memory [][]byte
	compared := 0
	for turn := range turns {
		memory = nil
		for _, x := range s.State.Tensors {
			memory = append(memory, make([]byte, x.Bytes()))
		}
		n, err := s.Read(t.Context(), memory, turn, turns)
		if err != nil {
			return nil, nil, err
		}
		compared += n
	}
	if compared != s.Blocks {
		t.Errorf("%d workers compared %d of %d blocks", turns, compared, s.Blocks)
	}
	return s, memory, nil
}

// TestWhatIsWrittenIsRead writes random states with random workers; SEED repeats the choices.
func TestWhatIsWrittenIsRead(t *testing.T) {
	seed := envtest.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for step := range uint64(40) {
		var l snapshottest.Lines
		f := snapshot.Folder{Root: filepath.Join(t.TempDir(), "c"), Keep: 2, Log: l.Say}
		s, memory := drawState(r, step+1, 1+r.IntN(5))
		writeParts(t, f, s, memory, ranksBelow(s.Workers)...)
		if strings.Count(l.String(), "is sealed") != 1 {
			t.Fatalf("step %d: %s", step, &l)
		}
		got, found, err := readNewest(t, f, 1+r.IntN(4))
		if err != nil {
			t.Fatal(err)
		}
		if got.State.Step != s.Step || string(got.State.Notes) != string(s.Notes) ||
			!bytes.Equal(got.State.Cursor, s.Cursor) || len(got.Own) != s.Workers {
			t.Errorf("got %+v, own %v", got.State, got.Own)
		}
		for i := range memory {
			if !bytes.Equal(memory[i], found[i]) {
				t.Errorf("tensor %d of %v differs", i, s.Tensors)
			}
		}
		damage, _, err := checkpoint.Verify(t.Context(), filepath.Join(f.Root, "latest"), 2)
		if len(s.Tensors) > 0 && (err != nil || len(damage) > 0) {
			t.Errorf("%v: %v, %v", s.Tensors, damage, err)
		}
	}
}

// writeSmall writes a checkpoint of step 5, of one tensor by two workers.
func writeSmall(t *testing.T) snapshot.Folder {
	t.Helper()
	f := snapshot.Folder{Root: t.TempDir(), Keep: 1, Log: new(snapshottest.Lines).Say}
	s := &snapshot.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"),
		Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	writeParts(t, f, s, [][]byte{make([]byte, 8000)}, 0, 1)
	return f
}

// TestDamageIsNoticed damages each file of a checkpoint: it cannot be read, and the error says that
// it is damaged.
func TestDamageIsNoticed(t *testing.T) {
	r := rand.New(rand.NewPCG(envtest.Seed(t), 3))
	f := writeSmall(t)
	files, err := filepath.Glob(filepath.Join(f.Path(5), "*"))
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for range 30 {
			broken := slices.Clone(whole)
			if r.IntN(3) == 0 {
				broken = broken[:r.IntN(len(broken))]
			} else {
				broken[r.IntN(len(broken))] ^= byte(1 + r.IntN(255))
			}
			if err := os.WriteFile(name, broken, 0o666); err != nil {
				t.Fatal(err)
			}
			if _, _, err := readNewest(t, f, 1); !errors.Is(err, snapshot.ErrDamaged) &&
				!(strings.HasSuffix(name, "manifest.json") && json.Valid(broken)) {
				t.Errorf("%s with other bytes: %v", name, err)
			}
		}
		if strings.HasSuffix(name, ".safetensors") {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			if _, _, err := readNewest(t, f, 1); !errors.Is(err, snapshot.ErrDamaged) {
				t.Errorf("without %s: %v", name, err)
			}
		}
		if err := os.WriteFile(name, whole, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhatIsNoDamage has checkpoints that cannot be read, though nothing says that their bytes are
// wrong.
func TestWhatIsNoDamage(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"a file out of reach": func(dir string) error {
			shard := filepath.Join(dir, "shard-00002-of-00002.safetensors")
			return errors.Join(os.Remove(shard), os.Symlink(shard, shard))
		},
		"no manifest for this reader": func(dir string) error {
			return os.Remove(filepath.Join(dir, manifest.Name))
		},
		"a manifest of another version": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, manifest.Name),
				[]byte(`{"shoal":"manifest/2","what":"is new"}`), 0o666)
		},
		"a state of another version": func(dir string) error {
			return replaceSealed(dir, snapshot.StateName,
				[]byte(`{"shoal":"job/2","what":"is new"}`))
		},
	} {
		f := writeSmall(t)
		if err := spoil(f.Path(5)); err != nil {
			t.Fatal(err)
		}
		s, err := f.Open(5)
		if err == nil {
			_, err = s.Read(t.Context(), [][]byte{make([]byte, 8000)}, 0, 1)
		}
		if err == nil || errors.Is(err, snapshot.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// replaceSealed writes another file into a checkpoint, as if it had been sealed with it.
func replaceSealed(dir, name string, text []byte) error {
	path := filepath.Join(dir, manifest.Name)
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	m, err := manifest.Parse(old)
	if err != nil {
		return err
	}
	for i := range m.Files {
		if m.Files[i].Name == name {
			m.Files[i].Size = int64(len(text))
			m.Files[i].Blocks = []manifest.Hash{sha256.Sum256(text)}
		}
	}
	seal, err := m.Append(nil)
	return errors.Join(err, os.WriteFile(path, seal, 0o666),
		os.WriteFile(filepath.Join(dir, name), text, 0o666))
}

// TestWrongParts checks that parts that do not fit the state are refused.
func TestWrongParts(t *testing.T) {
	s := &snapshot.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"),
		Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	good := func() *snapshot.Part {
		return snapshottest.Part(t, snapshot.Folder{Root: "/c", Keep: 1}, s,
			[][]byte{make([]byte, 8000)}, 1, 0)
	}
	for want, change := range map[string]func(p *snapshot.Part){
		"no absolute path":        func(p *snapshot.Part) { p.Folder.Root = "c" },
		"shortest form":           func(p *snapshot.Part) { p.Folder.Root = "/c/../d" },
		"checkpoints to keep":     func(p *snapshot.Part) { p.Folder.Keep = 0 },
		"rank 2 in a checkpoint":  func(p *snapshot.Part) { p.Rank = 2 },
		"rank -1 in a checkpoint": func(p *snapshot.Part) { p.Rank = -1 },
		"no JSON object":          func(p *snapshot.Part) { p.Own = json.RawMessage("[]") },
		"has 4000":                func(p *snapshot.Part) { p.Body = p.Body[1:] },
		"description":             func(p *snapshot.Part) { p.State = []byte("{") },
	} {
		p := good()
		change(p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
