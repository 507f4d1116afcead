package checkpoint

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/ranks"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/tensor/safetensors"
)

// rankFiles are the files of a layout, with what a gather and scatter of whole arrays puts into the memory of each rank.
// Of what package ranks lays out it uses the headers only.
func rankFiles(t *rapid.T, spec *layout.Spec, tensors []layout.Tensor) map[string][]byte {
	var list []format.Tensor
	for _, x := range tensors {
		list = append(list, format.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	o, err := ranks.Layout(spec, list, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range o.Files {
		files[f.Name] = make([]byte, f.Size)
	}
	for _, f := range o.Frames {
		copy(files[f.File][f.Offset:], f.Bytes)
	}
	for rank, arrays := range layouttest.Expect(spec, tensors) {
		file, there := files[fmt.Sprintf("rank-%05d.safetensors", rank)]
		if !there {
			continue
		}
		h, err := safetensors.ReadHeader("file", bytes.NewReader(file), int64(len(file)))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range h.Tensors {
			a, ok := arrays[x.Name]
			if !ok || int64(len(a.Data)*x.DType.Size()) != x.End-x.Begin {
				t.Fatalf("rank %d holds no %s of %d bytes", rank, x.Name, x.End-x.Begin)
			}
			for i, e := range a.Data {
				copy(file[h.Data+x.Begin+int64(i*x.DType.Size()):], e.Bytes(x.DType.Size()))
			}
		}
	}
	return files
}

func writeFiles(t testing.TB, dir string, files map[string][]byte) {
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// convert moves a checkpoint. The tensors have the order of a catalogue, if there is one: buffers have it too.
func convert(t testing.TB, from, to string, f Form, o Options, order ...layout.Tensor) *Report {
	c, err := Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	place := func(x format.Tensor) int {
		return slices.IndexFunc(order, func(y layout.Tensor) bool { return x.Name == y.Name })
	}
	slices.SortStableFunc(c.Tensors, func(a, b format.Tensor) int { return place(a) - place(b) })
	f.File = filepath.Base(to)
	out, _, err := c.Lay(f)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Move(t.Context(), c, out, to, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReshape moves state between random layouts, by way of each format, through real files, and compares with a gather
// and scatter of whole arrays.
func TestReshape(t *testing.T) {
	checks := "40"
	if many := os.Getenv("SHOAL_RESHAPES"); many != "" {
		checks = many
	}
	if err := flag.Set("rapid.checks", checks); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		model := layouttest.DrawModel(r)
		for i := range model.Tensors { // safetensors has fewer element types
			if d := &model.Tensors[i].DType; *d == tensor.C128 || *d == tensor.C32 {
				*d = tensor.C64
			}
		}
		from, to := layouttest.DrawSpec(r, model), layouttest.DrawSpec(r, model)
		o := Options{Workers: 2, Seal: rapid.Bool().Draw(r, "seal"), block: int64(16 * rapid.IntRange(1, 40).Draw(r, "block"))}
		at := func(name string) string { return filepath.Join(dir, name) }
		writeFiles(t, at("from"), rankFiles(r, from, model.Tensors))
		by := rapid.SampledFrom([]Form{{Format: "hf"}, {Format: "hf", Most: 100}, {Format: "pt"}, {Format: "dcp"}, {Format: "dcp", Spec: to}, {Format: "ranks", Spec: from}}).Draw(r, "by")
		first := convert(t, at("from"), at("by"), by, o)
		second := convert(t, at("by"), at("to"), Form{Format: "ranks", Spec: to}, o, model.Tensors...)
		if first.State.Bytes != second.State.Bytes || o.Seal && first.State != second.State {
			r.Fatalf("fingerprints %v and %v", first.State, second.State)
		}
		for name, want := range rankFiles(r, to, model.Tensors) {
			got, err := os.ReadFile(at("to/" + name))
			if err != nil || !bytes.Equal(got, want) {
				r.Fatalf("from %+v\nby %v to %+v\n%s differs: %v\n%x\n%x", *from, by, *to, name, err, got, want)
			}
		}
		if o.Seal {
			if damage, _, err := Verify(t.Context(), at("to"), 2); err != nil || len(damage) > 0 {
				r.Fatal(damage, err)
			}
		}
	})
}
