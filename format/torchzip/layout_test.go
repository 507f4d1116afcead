package torchzip_test

// This file tests what is laid out: shoal and two versions of torch read it.
import (
	"archive/zip"
	"encoding/json"
	"io"
	"io/fs"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/framework"
	"github.com/shoal-ml/shoal/tensor"
)

// values are of every kind that a file can hold.
var values = []format.Value{
	{Path: "betas", Data: []any{0.9, 0.95}},
	{Path: "big", Data: new(big.Int).Lsh(big.NewInt(-3), 100)},
	{Path: "bytes", Data: []byte{0, 200}},
	{Path: "complex", Data: "builtins.complex[1,-2]",
		Python: &pickle.Object{Class: pickle.Global{Module: "builtins", Name: "complex"},
			Args: []any{1.0, -2.0}}},
	{Path: "count", Data: int64(1 << 40)},
	{Path: "device", Data: "torch.device[cpu]",
		Python: &pickle.Object{Class: pickle.Global{Module: "torch", Name: "device"},
			Args: []any{"cpu"}}},
	{Path: "dict", Data: map[string]any{}},
	{Path: "dtype", Data: "torch.bfloat16",
		Python: pickle.Global{Module: "torch", Name: "bfloat16"}},
	{Path: "flag", Data: true}, {Path: "none", Data: nil},
	{Path: "set", Data: []any{int64(3)}, Python: &pickle.Set{Items: []any{int64(3)}}},
	{Path: "text", Data: "é"},
	{Path: "tuple", Data: []any{int64(1), []any{0.5}},
		Python: pickle.Tuple{int64(1), pickle.Tuple{0.5}}},
}

// load prints what torch finds in files, and checks their checksums. The first torch with
// weights_only cannot read floats so.
const load = `
import json, sys, zipfile, torch
show = lambda t: [str(t.dtype), list(t.shape), bytes(t.reshape(-1).view(torch.uint8).tolist() if t.numel() else []).hex()]
plain = lambda v: repr(v) if isinstance(v, (tuple, set, complex, torch.device, torch.dtype)) else str(v) if isinstance(v, int) and v is not True else v.hex() if isinstance(v, bytes) else v
for path in sys.argv[1:]:
    assert zipfile.ZipFile(path).testzip() is None
    found = torch.load(path, weights_only=not torch.__version__.startswith("1."))
    print(json.dumps({k: show(v) if isinstance(v, torch.Tensor) else plain(v) for k, v in found.items()}))
`

// TestLayout writes the tensors of torch's files anew; shoal and the torch that wrote them find
// what was there.
func TestLayout(t *testing.T) {
	for _, version := range []string{"torch1.13", "torch2.15"} {
		t.Run(version, func(t *testing.T) {
			dir := t.TempDir()
			args, wants := []string{"-c", load}, []formattest.What{}
			for _, name := range []string{"types", "views"} {
				file, want := rewriteFile(t, "testdata/"+version, name)
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, file, 0o600); err != nil {
					t.Fatal(err)
				}
				args, wants = append(args, path), append(wants, want)
			}
			out := askTorch(t, version, args, dir)
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			for i, want := range wants {
				compareText(t, lines[i], want)
			}
		})
	}
}

// askTorch has a version of torch, torch2.15 or torch1.13, run Python with arguments, and returns
// what it prints. It skips the test where 1.13 is not installed; for 2.15 framework.Ask decides,
// which is told of the folder dir. It stops the test if torch fails.
func askTorch(t *testing.T, version string, args []string, dir string) []byte {
	t.Helper()
	if version == "torch2.15" {
		return framework.Ask(t, "torch", args, dir)
	}
	python := framework.RepositoryPath(t, ".venv/bin/python")
	if err := exec.Command(python, "-c",
		"import torch; assert torch.__version__.startswith('1.13')").Run(); err != nil {
		t.Skip("no torch 1.13 to compare with; scripts/setup installs it")
	}
	out, err := exec.Command(python, args...).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	return out
}

// rewriteFile lays the tensors of a file and more values out, has shoal read them, and returns the
// new file and what is in it. It fails or stops the test where shoal reads something else.
func rewriteFile(t *testing.T, dir, name string) ([]byte, formattest.What) {
	files := format.NewFiles(os.DirFS(dir))
	defer files.Close()
	from, err := torchzip.Read(files, name+".pt")
	if err != nil {
		t.Fatal(err)
	}
	o, err := torchzip.Layout("out.pt", from.Tensors, values)
	if err != nil {
		t.Fatal(err)
	}
	want := formattest.What{}
	text, err := os.ReadFile(dir + "/" + name + ".json")
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	out := formattest.WriteOutput(t, o, from, files)
	written := format.NewFiles(out)
	got, err := torchzip.Read(written, "out.pt")
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, written, got, want)
	if diff := cmp.Diff(values, got.Values, cmp.Comparer(func(a, b *big.Int) bool {
		return a.Cmp(b) == 0
	})); diff != "" {
		t.Errorf("values -written +read:\n%s", diff)
	}
	return out["out.pt"].Data, want
}

// compareText compares what torch says with what was written. It fails the test where they differ.
func compareText(t *testing.T, text string, want formattest.What) {
	var got map[string]any
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{
		"betas": []any{0.9, 0.95}, "big": "-3802951800684688204490109616128", "bytes": "00c8",
		"complex": "(1-2j)", "count": "1099511627776",
		"device": "device(type='cpu')", "dict": map[string]any{}, "dtype": "torch.bfloat16",
		"flag": true, "none": nil, "set": "{3}", "text": "é", "tuple": "(1, (0.5,))",
	}
	for name, what := range want {
		all[name] = what[:]
	}
	if diff := cmp.Diff(all, got); diff != "" {
		t.Errorf("-written +torch:\n%s", diff)
	}
}

// TestLarge lays out tensors beyond 4 GiB, and reads the directory with another reader of zip
// archives.
func TestLarge(t *testing.T) {
	const size = 5 << 30
	list := []format.Tensor{{Name: "a", DType: tensor.U8, Shape: tensor.Shape{size}},
		{Name: "b", DType: tensor.F32, Shape: tensor.Shape{3}}}
	o, err := torchzip.Layout("out.pt", list, nil)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(&frames{o}, o.Files[0].Size)
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]int64{}
	for _, e := range z.File {
		if places[e.Name], err = e.DataOffset(); err != nil {
			t.Fatal(err)
		}
		if e.Name == "archive/data/0" && e.UncompressedSize64 != size {
			t.Errorf("%s has %d bytes", e.Name, e.UncompressedSize64)
		}
	}
	for i, name := range []string{"archive/data/0", "archive/data/1"} {
		if at := o.Tensors[i].Pieces[0].Offset; places[name] != at || at%64 != 0 {
			t.Errorf("%s lies at %d, and the tensor goes to %d", name, places[name], at)
		}
	}
	c, err := torchzip.Read(format.NewFiles(largeFolder{&vast{size: o.Files[0].Size}, &frames{o}}),
		"out.pt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(o.Tensors, c.Tensors); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
	for _, bad := range []format.Tensor{{Name: "w", DType: tensor.F4, Shape: tensor.Shape{2}},
		{Name: "w", DType: tensor.F32, Shape: tensor.Shape{-1}}} {
		if _, err := torchzip.Layout("out.pt", []format.Tensor{bad}, nil); err == nil ||
			!strings.Contains(err.Error(), `tensor "w"`) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// frames reads an output of which no element is written.
type frames struct{ *format.Output }

// ReadAt fills b with the frames of the output, and zeros between.
func (f *frames) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	for _, x := range f.Frames {
		if from, to := max(at, x.Offset),
			min(at+int64(len(b)), x.Offset+int64(len(x.Bytes))); from < to {
			copy(b[from-at:], x.Bytes[from-x.Offset:to-x.Offset])
		}
	}
	if at+int64(len(b)) > f.Files[0].Size {
		return int(f.Files[0].Size - at), io.EOF
	}
	return len(b), nil
}

// largeFolder is a folder with one file, an output of which no element is written.
type largeFolder struct {
	*vast
	out *frames
}

// Open returns the file, whatever its name is.
func (l largeFolder) Open(string) (fs.File, error) {
	return largeFile{&vastFile{l.vast}, l.out}, nil
}

// largeFile is that file, open.
type largeFile struct {
	*vastFile
	out *frames
}

// ReadAt fills b with the frames of the output, and zeros between.
func (l largeFile) ReadAt(b []byte, at int64) (int, error) { return l.out.ReadAt(b, at) }

// TestNamesTwice lays out a value that has the name of a tensor. It is refused.
func TestNamesTwice(t *testing.T) {
	w := format.Tensor{Name: "w", DType: tensor.F32, Shape: tensor.Shape{2}}
	if _, err := torchzip.Layout("out.pt", []format.Tensor{w},
		[]format.Value{{Path: "w", Data: true}}); err == nil ||
		!strings.Contains(err.Error(), `"w" stands twice among tensors and values`) {
		t.Error(err)
	}
}

// TestFrames demands that what holds no elements is in as few frames as can be, as a checkpoint of
// torch's distributed format is an archive for each piece.
func TestFrames(t *testing.T) {
	o := &format.Output{}
	if _, _, err := torchzip.LayoutTensor(o, "x", 64,
		format.Tensor{Name: "w", DType: tensor.F32, Shape: tensor.Shape{3}}); err != nil {
		t.Fatal(err)
	}
	if len(o.Frames) != 4 || len(o.Sums) != 1 || len(o.Sums[0].At) != 2 {
		t.Errorf("%d frames and %d checksums to be put in later; the only ones are that of the "+
			"elements, in two headers", len(o.Frames), len(o.Sums))
	}
}
