package checkpoint

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// TestSealOfParts moves and compares what was sealed by a program that did not join the parts of a
// tensor: the seal has the fingerprints of the parts, so the files tell whether it is whole.
func TestSealOfParts(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	writeRandom(t, path, 1,
		[]safetensors.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{2, 4}}})
	c := openCheckpoint(t, path)
	m, err := Seal(t.Context(), c, 1)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	key, data := digest.NewKey(m.Seed), text[len(text)-32:]
	part := manifest.Tensor{Name: "w", Place: "tp=0/2", DType: tensor.F32,
		Shape: tensor.Shape{1, 4}, Sum: key.RunSum(0, data[:16])}
	m.Tensors = []manifest.Tensor{part, part}
	m.Tensors[1].Place, m.Tensors[1].Sum = "tp=1/2", key.RunSum(0, data[16:])
	if err := writeManifest(c.manifestPath(), m); err != nil {
		t.Fatal(err)
	}
	if found, _, err := Compare(t.Context(), openCheckpoint(t, path), c, 1); err != nil ||
		len(found) > 0 {
		t.Error(found, err)
	}
	if _, err := tryConvert(path, filepath.Join(dir, "to"), TargetFormat{Format: "dcp"},
		Options{Workers: 1}); err != nil {
		t.Error(err)
	}
	changeFile(t, path, func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	})
	if _, err := tryConvert(path, filepath.Join(dir, "other"), TargetFormat{Format: "dcp"},
		Options{Workers: 1}); err == nil ||
		!strings.Contains(err.Error(), "shoal state verify shows where the damage is") {
		t.Error(err)
	}
}

// TestDiffOfSealed compares copies of a sealed checkpoint, of which one is damaged: it says which,
// and where they differ.
func TestDiffOfSealed(t *testing.T) {
	good, bad := writeSealed(t), writeSealed(t)
	compare := func(a, b string) ([]Difference, error) {
		found, _, err := Compare(t.Context(), openCheckpoint(t, a), openCheckpoint(t, b), 2)
		return found, err
	}
	if found, err := compare(good, bad); err != nil || len(found) > 0 {
		t.Fatal(found, err)
	}
	changeFile(t, filepath.Join(bad, "rank-00001.safetensors"), func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	})
	want := bad + `: tensor "layers.2.w" is not what was sealed`
	for pair, differ := range map[[2]string]int{{good, bad}: 1, {bad, good}: 1, {bad, bad}: 0} {
		found, err := compare(pair[0], pair[1])
		if damage := (*SealError)(nil); !errors.As(err, &damage) || len(found) != differ ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want %q", found, err, want)
		}
	}
}

// TestSealByIndex seals a checkpoint that is given by its index: the files that the index names are
// sealed with it, so that damage outside of tensors is found too.
func TestSealByIndex(t *testing.T) {
	dir := t.TempDir()
	index := &safetensors.Index{Files: map[string]string{}}
	for i, name := range []string{"a", "b"} {
		file := safetensors.ShardName(i, 2)
		writeRandom(t, filepath.Join(dir, file), uint64(i),
			[]safetensors.Tensor{{Name: name, DType: tensor.F32, Shape: tensor.Shape{3}}})
		index.Files[name] = file
	}
	path := filepath.Join(dir, safetensors.IndexName)
	if err := os.WriteFile(path, index.AppendJSON(nil, 24), 0o666); err != nil {
		t.Fatal(err)
	}
	m, err := Seal(t.Context(), openCheckpoint(t, path), 1)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	want := []string{safetensors.ShardName(0, 2), safetensors.ShardName(1, 2),
		safetensors.IndexName}
	if !slices.Equal(names, want) {
		t.Errorf("sealed are %q, want %q", names, want)
	}
	if damage, _, err := Verify(t.Context(), path, 1); err != nil || len(damage) > 0 {
		t.Errorf("as it was sealed: %v, %v", damage, err)
	}
	changeFile(t, filepath.Join(dir, want[1]), func(b []byte) []byte {
		return bytes.Replace(b, []byte(`"format":"pt"`), []byte(`"format":"tf"`), 1)
	})
	if damage, _, err := Verify(t.Context(), path, 1); err != nil || len(damage) != 1 ||
		damage[0].File != want[1] {
		t.Errorf("with another header of %s: %v, %v", want[1], damage, err)
	}
	c := openCheckpoint(t, path)
	if _, err := c.Cast([]Cast{{To: tensor.BF16}}); err != nil {
		t.Fatal(err)
	}
	out, _, err := c.Output(TargetFormat{Format: "hf"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Move(t.Context(), c, out, filepath.Join(dir, "rounded"),
		Options{Workers: 1}); err == nil ||
		!strings.Contains(err.Error(), "shoal state verify shows where the damage is") {
		t.Errorf("rounded though it is not as it was sealed: %v", err)
	}
}

// TestFileOfASealedFolder moves, compares and seals single files of a sealed folder: they are
// compared with what its seal says of them, and of nothing else.
func TestFileOfASealedFolder(t *testing.T) {
	dir := t.TempDir()
	index := &safetensors.Index{Files: map[string]string{}}
	bad, good := safetensors.ShardName(0, 2), safetensors.ShardName(1, 2)
	other := "other.safetensors"
	for i, file := range []string{bad, good} {
		name := string(rune('a' + i))
		writeRandom(t, filepath.Join(dir, file), uint64(i),
			[]safetensors.Tensor{{Name: name, DType: tensor.F32, Shape: tensor.Shape{3}}})
		index.Files[name] = file
	}
	if err := os.WriteFile(filepath.Join(dir, safetensors.IndexName), index.AppendJSON(nil, 24),
		0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Seal(t.Context(), openCheckpoint(t, dir), 1); err != nil {
		t.Fatal(err)
	}
	changeFile(t, filepath.Join(dir, bad), func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	})
	writeRandom(t, filepath.Join(dir, other), 0,
		[]safetensors.Tensor{{Name: "a", DType: tensor.F32, Shape: tensor.Shape{3}}})
	for name, damaged := range map[string]bool{
		bad: true, good: false, other: false, safetensors.IndexName: true,
	} {
		path := filepath.Join(dir, name)
		check := func(what string, err error) {
			if damaged != (err != nil && strings.Contains(err.Error(), "not what was sealed")) ||
				!damaged && err != nil {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if _, _, err := Verify(t.Context(), path, 1); err == nil ||
			strings.Contains(err.Error(), "shoal state verify "+dir) != (name != other) {
			t.Errorf("%s, verified: %v", name, err)
		}
		_, err := tryConvert(path, filepath.Join(t.TempDir(), "to"), TargetFormat{Format: "dcp"},
			Options{Workers: 1})
		check("moved", err)
		_, _, err = Compare(t.Context(), openCheckpoint(t, path), openCheckpoint(t, path), 1)
		check("compared", err)
		_, err = Seal(t.Context(), openCheckpoint(t, path), 1)
		check("sealed", err)
	}
}

// TestBelowASealedFolder compares a file in a subfolder of a sealed folder, and the subfolder, with
// the seal of the folder above, as Megatron's and DeepSpeed's checkpoints have subfolders.
func TestBelowASealedFolder(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(sub, 0o777); err != nil {
		t.Fatal(err)
	}
	w := []safetensors.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{3}}}
	part := filepath.Join(sub, "model.safetensors")
	writeRandom(t, filepath.Join(dir, "model.safetensors"), 1, w)
	writeRandom(t, part, 2, w)
	if _, err := Seal(t.Context(), openCheckpoint(t, dir), 1); err != nil {
		t.Fatal(err)
	}
	t.Chdir(sub)
	paths := []string{part, sub, "model.safetensors", "."}
	move := func(path string) error {
		_, err := tryConvert(path, filepath.Join(t.TempDir(), "to"), TargetFormat{Format: "dcp"},
			Options{Workers: 1})
		return err
	}
	for _, path := range paths {
		if err := move(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, _, err := Verify(t.Context(), path, 1); err == nil ||
			!strings.Contains(err.Error(), "is sealed with its folder: shoal state verify ") {
			t.Errorf("%s, verified: %v", path, err)
		}
	}
	other := filepath.Join(dir, "a", "other.safetensors")
	writeRandom(t, other, 3, w)
	if err := move(other); err != nil {
		t.Errorf("what was not sealed: %v", err)
	}
	changeFile(t, part, func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	})
	for _, path := range paths {
		if err := move(path); err == nil || !strings.Contains(err.Error(), "not what was sealed") {
			t.Errorf("%s, damaged: %v", path, err)
		}
	}
	if _, _, err := Verify(t.Context(), "../..", 1); err != nil {
		t.Error(err)
	}
}
