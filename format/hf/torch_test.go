package hf_test

// This file tests folders of files of torch.save. Helpers stop the test on an error.
import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// torchFile is a file that torch 2.15 wrote, and what is in it.
func torchFile(t testing.TB, name string) (*fstest.MapFile, formattest.What) {
	t.Helper()
	const dir = "../torchzip/testdata/torch2.15/"
	b, err := os.ReadFile(dir + name + ".pt")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dir + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var what formattest.What
	if err := json.Unmarshal(text, &what); err != nil {
		t.Fatal(err)
	}
	return &fstest.MapFile{Data: b}, what
}

// shardedBin is a model in two files of torch.save with an index, one of the form before torch 1.6.
func shardedBin(t testing.TB) (fstest.MapFS, formattest.What) {
	const one, two = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
	training, what := torchFile(t, "training")
	views, more := torchFile(t, "legacy-views")
	index := safetensors.Index{Files: map[string]string{}}
	for name := range what {
		index.Files[name] = one
	}
	for name := range more {
		index.Files[name] = two
	}
	maps.Copy(what, more)
	return fstest.MapFS{one: training, two: views,
		"pytorch_model.bin.index.json": {Data: index.AppendJSON(nil, 1)}}, what
}

// TestTorchFolders reads folders of files of torch.save as libraries write them.
func TestTorchFolders(t *testing.T) {
	dir, want := shardedBin(t)
	training, what := torchFile(t, "training")
	read := func(dir fstest.MapFS, kind string, want formattest.What, extras ...string) {
		t.Helper()
		files := format.NewFiles(dir)
		c, err := hf.Read(files)
		if err != nil {
			t.Error(err)
			return
		}
		formattest.Compare(t, files, c, want)
		if c.Format != kind || !slices.Equal(c.Extras, extras) || !c.Nested {
			t.Errorf("%s, %q beside; want %s, %q", c.Format, c.Extras, kind, extras)
		}
	}
	dir["training_args.bin"] = &fstest.MapFile{}
	read(dir, "torch with index", want, "training_args.bin")

	delete(dir, "pytorch_model.bin.index.json")
	read(dir, "torch", want, "training_args.bin")
	delete(dir, "pytorch_model-00002-of-00002.bin")
	if _, err := hf.Read(format.NewFiles(dir)); err == nil ||
		!strings.Contains(err.Error(), "pytorch_model-00002-of-00002.bin is missing") {
		t.Errorf("without the second file: %v", err)
	}
	for _, name := range []string{"pytorch_model.bin", "adapter_model.bin",
		"diffusion_pytorch_model.bin"} {
		read(fstest.MapFS{name: training, "optimizer.bin": {}}, "torch", what, "optimizer.bin")
	}
	// Files of safetensors count where both are there.
	both := fstest.MapFS{"pytorch_model.bin": training,
		"model.safetensors": makeFile(t, nil, tensorOf("a", 2))}
	c, err := hf.Read(format.NewFiles(both))
	if err != nil || c.Format != "safetensors" ||
		!slices.Equal(c.Extras, []string{"pytorch_model.bin"}) {
		t.Errorf("%v, %v", c, err)
	}
}

// TestBytesDecide reads files whose names say that they are of the other format. Their bytes
// decide.
func TestBytesDecide(t *testing.T) {
	training, want := torchFile(t, "training")
	for _, dir := range []fstest.MapFS{{"model.safetensors": training},
		{"model.safetensors": training,
			safetensors.IndexName: indexOf(want, "model.safetensors")}} {
		files := format.NewFiles(dir)
		c, err := hf.Read(files)
		if err != nil {
			t.Fatal(err)
		}
		formattest.Compare(t, files, c, want)
	}
	c, err := hf.Read(
		format.NewFiles(fstest.MapFS{"pytorch_model.bin": makeFile(t, nil, tensorOf("a", 2))}))
	if err != nil || c.Format != "safetensors" || len(c.Tensors) != 1 {
		t.Errorf("%v, %v", c, err)
	}
}

// indexOf returns an index by which all tensors are in one file.
func indexOf(what formattest.What, file string) *fstest.MapFile {
	index := safetensors.Index{Files: map[string]string{}}
	for name := range what {
		index.Files[name] = file
	}
	return &fstest.MapFile{Data: index.AppendJSON(nil, 1)}
}

// TestIndexes has folders whose index has another name, or that have several. The usual one counts,
// or the only one; else the error asks for one.
func TestIndexes(t *testing.T) {
	training, what := torchFile(t, "training")
	index := indexOf(what, "w.bin")
	for names, want := range map[string]string{
		"diffusion_pytorch_model.bin.index.json": "",
		"a.bin.index.json b.bin.index.json":      "give the path of one of them",
		"a.safetensors.index.json b.safetensors.index.json": "the indexes " +
			"a.safetensors.index.json, b.safetensors.index.json; give the path of one of them",
		"a.bin.index.json pytorch_model.bin.index.json":  "",
		"diffusion_pytorch_model.safetensors.index.json": "",
	} {
		dir := fstest.MapFS{"w.bin": training}
		for _, name := range strings.Fields(names) {
			dir[name] = index
		}
		if _, err := hf.Read(format.NewFiles(dir)); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", names, err, want)
		}
		if !hf.IsModelFolder(dir) {
			t.Errorf("%s: the folder counts as none with a model", names)
		}
	}
	for name, want := range map[string]bool{"model.safetensors.index.json": true,
		"model.safetensors.index.fp16.json": true, "config.json": false, "x.index.bin": false} {
		if hf.IsIndex(name) != want {
			t.Errorf("%s is an index: %v", name, !want)
		}
	}
}

// TestValuesOfTorch demands the values of a file of torch.save in a folder.
func TestValuesOfTorch(t *testing.T) {
	training, _ := torchFile(t, "training")
	dir := fstest.MapFS{"pytorch_model.bin": training}
	c, err := hf.Read(format.NewFiles(dir))
	if err != nil {
		t.Fatal(err)
	}
	alone, err := torchzip.Read(format.NewFiles(dir), "pytorch_model.bin")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(alone.Values, c.Values); diff != "" || len(c.Values) == 0 {
		t.Errorf("-alone +folder:\n%s", diff)
	}
}
