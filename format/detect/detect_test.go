package detect_test

// This file tests that the format of a checkpoint is found, in samples of all formats.
import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	gopath "path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format/detect"
	"github.com/shoal-ml/shoal/format/formattest"
)

// TestOpen opens a checkpoint of each format, and finds which it is of.
func TestOpen(t *testing.T) {
	for path, want := range map[string]string{
		"hf/testdata/sharded.zip": "safetensors", "dcp/testdata/dcp.zip": "torch DCP",
		"megatron/testdata/tp2pp2.zip":      "Megatron",
		"deepspeed/testdata/zero2.zip":      "DeepSpeed",
		"deepspeed/testdata/universal1.zip": "DeepSpeed universal",
	} {
		dir, _ := formattest.Load(t, "../"+path)
		c, files, err := detect.Open(dir, "")
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if c.Format != want || len(c.Tensors) == 0 {
			t.Errorf("%s is %s with %d tensors, want %s", path, c.Format, len(c.Tensors), want)
		}
		if faults := c.Check(files); len(faults) > 0 {
			t.Errorf("%s: %v", path, faults)
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An unlistedFS is a folder that nobody may list.
type unlistedFS struct{ fs.FS }

// ReadDir implements fs.ReadDirFS: it fails.
func (unlistedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

// TestUnlisted does not say of a folder that it may not list that no checkpoint is in it.
func TestUnlisted(t *testing.T) {
	_, _, err := detect.Open(unlistedFS{fstest.MapFS{"model.safetensors": {}}}, "")
	if !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}

// A countedFS counts the files that were opened in it and not closed.
type countedFS struct {
	fs.FS
	left *int
}

// Open opens a file, which counts until it is closed.
func (c countedFS) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	if err == nil {
		*c.left++
	}
	return countedFile{f, c.left}, err
}

// A countedFile is a file or folder of a countedFS.
type countedFile struct {
	fs.File
	left *int
}

// Close closes the file, which counts no more.
func (c countedFile) Close() error {
	*c.left--
	return c.File.Close()
}

// ReadAt implements io.ReaderAt.
func (c countedFile) ReadAt(b []byte, at int64) (int, error) {
	return c.File.(io.ReaderAt).ReadAt(b, at)
}

// ReadDir implements fs.ReadDirFile.
func (c countedFile) ReadDir(n int) ([]fs.DirEntry, error) {
	return c.File.(fs.ReadDirFile).ReadDir(n)
}

// TestNothingStaysOpen opens a Megatron folder, whose newest iteration another file names, and
// closes what it was given: no file is open then.
func TestNothingStaysOpen(t *testing.T) {
	dir, _ := formattest.Load(t, "../megatron/testdata/tp2pp2.zip")
	if dir["latest_checkpointed_iteration.txt"] == nil {
		t.Fatal("the sample does not name its newest iteration")
	}
	left := 0
	_, files, err := detect.Open(countedFS{dir, &left}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Close(); err != nil || left != 0 {
		t.Errorf("%d files are left open: %v", left, err)
	}
}

// TestTorchDist reads a Megatron folder whose newest iteration is of torch's distributed format,
// and what Megatron-Core keeps beside: all tensors and values are found.
func TestTorchDist(t *testing.T) {
	inner, want := formattest.Load(t, "../dcp/testdata/dcp.zip")
	dir := fstest.MapFS{"latest_checkpointed_iteration.txt": {Data: []byte("7")}}
	for name, f := range inner {
		dir["iter_0000007/"+name] = f
	}
	c, files, err := detect.Open(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c, want)

	// What Megatron-Core keeps beside.
	common, _ := formattest.Load(t, "../megatron/testdata/beside.zip")
	dir["iter_0000007/common.pt"] = common["common.pt"]
	if c, files, err = detect.Open(dir, ""); err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c, want)
	for path, want := range map[string]any{"args.num_layers": int64(4), "iteration": int64(7),
		"optimizer.param_groups.0.lr": 1e-4, "state": []byte("bytes"), "step": int64(12)} {
		if v, _ := c.Value(path); !cmp.Equal(v, want) {
			t.Errorf("%s is %v, want %v", path, v, want)
		}
	}
	dir["iter_0000007/metadata.json"] = &fstest.MapFile{
		Data: []byte(`{"sharded_backend": "torch_dist"}`)}
	if c, files, err = detect.Open(dir, ""); err != nil || c.Format != "Megatron torch_dist" ||
		!strings.HasPrefix(c.Tensors[0].Name, "model.") {
		t.Errorf("%v, %v", c, err)
	}
	delete(dir, "iter_0000007/metadata.json")
	dir["iter_0000007/common.pt"] = common["unknown.pt"]
	if c, files, err = detect.Open(dir, ""); err != nil {
		t.Fatal(err)
	}
	if faults := c.Check(files); len(faults) != 1 ||
		!strings.Contains(faults[0].String(),
			`"common.pt": torch: common.pt: pickle: common.pt, byte `) {
		t.Errorf("%v", faults)
	}
	dir["iter_0000007/common.pt"] = &fstest.MapFile{Data: []byte("PK")}
	if _, _, err = detect.Open(dir, ""); err == nil || !strings.Contains(err.Error(), "common.pt") {
		t.Errorf("%v", err)
	}
}

// TestFile opens checkpoints by the name of a file in them. Their format is found, and a file that
// is none is refused with the reason.
func TestFile(t *testing.T) {
	sharded, _ := formattest.Load(t, "../hf/testdata/sharded.zip")
	if c, _, err := detect.Open(sharded,
		"shard-00001-model-00001-of-00001.safetensors"); err != nil || c.Format != "safetensors" {
		t.Errorf("%v, %v", c, err)
	}
	if c, _, err := detect.Open(os.DirFS("../torchzip/testdata/torch2.15"),
		"views.pt"); err != nil || c.Format != "torch" {
		t.Errorf("%v, %v", c, err)
	}
	other := fstest.MapFS{"a": {Data: []byte("more bytes")}, "b": {},
		"c.safetensors": {Data: []byte("x")}}
	for name, want := range map[string]string{"a": "neither a safetensors file", "b": "b is empty",
		"c.safetensors": "too few", "d": "d", "": "too few"} {
		if _, _, err := detect.Open(other, name); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", name, err, want)
		}
	}
	if _, _, err := detect.Open(fstest.MapFS{"a": {}}, ""); err == nil ||
		!strings.Contains(err.Error(), "no checkpoint that shoal knows") {
		t.Errorf("%v", err)
	}
}

// TestFolderOfCheckpoints gives a folder in which a trainer has left several: the error names the
// one with the highest number that is a checkpoint.
func TestFolderOfCheckpoints(t *testing.T) {
	trainer := fstest.MapFS{
		"checkpoint-500/model.safetensors":  {},
		"checkpoint-1000/model.safetensors": {},
		"checkpoint-1500/optimizer.pt":      {},
		"checkpoint-2000":                   {},
		".staging-3000/model.safetensors":   {},
		"runs/events":                       {},
	}
	want := "the folder has checkpoints, and is none itself; give one of them, such as " +
		"checkpoint-1000 in it"
	if _, _, err := detect.Open(trainer, ""); err == nil || err.Error() != want {
		t.Errorf("%v; want %q", err, want)
	}
	steps := fstest.MapFS{"900/model.safetensors": {}, "1000/model.safetensors": {},
		"2000/model.safetensors": {}}
	want = strings.Replace(want, "checkpoint-1000", "2000", 1)
	if _, _, err := detect.Open(steps, ""); err == nil || err.Error() != want {
		t.Errorf("%v; want %q", err, want)
	}
	for i := range 9 { // which are newer, and none
		trainer[fmt.Sprintf("run-%d/log", 5000+i)] = &fstest.MapFile{}
	}
	if _, _, err := detect.Open(trainer, ""); err == nil ||
		!strings.Contains(err.Error(), "no checkpoint that shoal knows") {
		t.Errorf("%v; it looks at all folders", err)
	}
}

// TestUnrecognizedFiles has files that are none of a checkpoint where some of one are due. The
// error says what they are.
func TestUnrecognizedFiles(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
	dcp, _ := formattest.Load(t, "../dcp/testdata/dcp.zip")
	for name := range dcp {
		if strings.HasSuffix(name, ".distcp") {
			dcp[name] = &fstest.MapFile{Data: []byte(pointer)}
		}
	}
	one := func(name, text string) fstest.MapFS { return fstest.MapFS{name: {Data: []byte(text)}} }
	for _, c := range []struct {
		dir       fstest.MapFS
		name, err string
	}{
		{one("w.safetensors", pointer), "w.safetensors",
			"w.safetensors is a Git LFS pointer, not the file: run git lfs pull"},
		{one("w.safetensors", pointer), "", "w.safetensors is a Git LFS pointer"},
		{one("w.pt", pointer), "w.pt", "w.pt is a Git LFS pointer"},
		{dcp, "", ".distcp is a Git LFS pointer"},
		{one("w.pt", ""), "w.pt", "w.pt is empty"},
		{one("w.safetensors", ""), "", "w.safetensors is empty"},
		{one("w.safetensors", string(make([]byte, 1000))), "",
			"w.safetensors begins with zeros: it was not written to its end"},
		{one("w.pt", string(make([]byte, 8))), "w.pt", "w.pt begins with zeros"},
		{one("w.safetensors", "\ufeff\n<!DOCTYPE html><html>"), "",
			"w.safetensors is a page of a server"},
		{one("w.pt", "<HTML>"), "w.pt", "w.pt is a page of a server"},
		{one("w.pt", "<?xml version='1.0'?><Error>"), "w.pt", "w.pt is a page of a server"},
		{one("w.bin", "something else"), "w.bin",
			"w.bin is neither a safetensors file nor one of torch.save"},
		{one("w.safetensors", "something else"), "", "the file is probably of another format"},
		{one("last.ckpt", "PK"), "", "is given by its own name, such as last.ckpt"},
		{fstest.MapFS{"epoch=0-step=90.ckpt": {}, "epoch=1-step=180.ckpt": {}, "last.ckpt": {}}, "",
			"is given by its own name, such as epoch=1-step=180.ckpt"},
		{one("w.gguf", "GGUF\x03\x00"), "w.gguf", "w.gguf is a file of GGUF"},
		{one("w.safetensors", "\x1f\x8b\x08"), "", "w.safetensors is compressed with gzip"},
		{one("w.h5", "\x89HDF\r\n\x1a\n"), "w.h5", "w.h5 is a file of HDF5"},
		{one("._w.pt", "\x00\x05\x16\x07\x00\x02"), "._w.pt", "._w.pt is what macOS keeps"},
		{one("w.pt", "\x80\x04K\x01."), "w.pt", "torch.save did not write it"},
	} {
		if _, _, err := detect.Open(c.dir, c.name); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%v; want %q", err, c.err)
		}
	}
}

// TestBytes reads files whose names say that they are of another format: their bytes decide.
func TestBytes(t *testing.T) {
	torch, err := os.ReadFile("../torchzip/testdata/torch2.15/views.pt")
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile("../torchzip/testdata/torch2.15/legacy-views.pt")
	if err != nil {
		t.Fatal(err)
	}
	sharded, _ := formattest.Load(t, "../hf/testdata/sharded.zip")
	plain := sharded["shard-00001-model-00001-of-00001.safetensors"].Data
	dir := fstest.MapFS{"torch.safetensors": {Data: torch}, "old.safetensors": {Data: old},
		"plain.pt": {Data: plain}}
	for name, want := range map[string]string{"torch.safetensors": "torch",
		"old.safetensors": "torch", "plain.pt": "safetensors"} {
		if c, _, err := detect.Open(dir, name); err != nil || c.Format != want {
			t.Errorf("%s: %v, %v; want %s", name, c, err, want)
		}
	}
}

// TestAppleDouble has the files beside each file of a checkpoint that macOS leaves on disks and in
// archives of others. All of them are passed over.
func TestAppleDouble(t *testing.T) {
	for _, path := range []string{"hf/testdata/sharded.zip", "dcp/testdata/dcp.zip",
		"megatron/testdata/tp2pp2.zip", "deepspeed/testdata/zero2.zip"} {
		dir, want := formattest.Load(t, "../"+path)
		for name := range maps.Clone(dir) {
			folder, file := gopath.Split(name)
			dir[folder+"._"+file] = &fstest.MapFile{Data: []byte("\x00\x05\x16\x07\x00\x02")}
		}
		dir["._.DS_Store"], dir["._x.safetensors"] = &fstest.MapFile{}, &fstest.MapFile{}
		c, files, err := detect.Open(dir, "")
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if len(c.Tensors) == 0 || len(c.Extras) > 0 || len(c.Check(files)) > 0 {
			t.Errorf("%s: %d tensors of %d, %q beside", path, len(c.Tensors), len(want), c.Extras)
		}
	}
}
