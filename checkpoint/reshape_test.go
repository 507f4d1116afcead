package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/tensor"
)

// rankFiles returns, by name, the files of a layout, with what a gather and scatter of whole arrays
// puts into the memory of each rank. Of what package ranks lays out it uses the headers only.
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
	for rank, arrays := range layouttest.ExpectedArrays(spec, tensors) {
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

// writeFiles writes files, by name, into a folder, and makes the folders in it. If it cannot the
// test fails.
func writeFiles(t rapid.TB, dir string, files map[string][]byte) {
	for name, b := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, filepath.FromSlash(name))),
			0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// convert moves the tensors of a checkpoint, which must succeed. They have the order of a
// catalogue, if there is one: buffers have it too.
func convert(t rapid.TB, from, to string, f TargetFormat, o Options,
	order ...layout.Tensor) *Report {
	r, err := tryConvert(from, to, f, o, order...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// tryConvert is convert for a move that may fail: it returns why.
func tryConvert(from, to string, f TargetFormat, o Options, order ...layout.Tensor) (*Report,
	error) {
	c, err := Open(from)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.Values = nil // formats add some
	place := func(x format.Tensor) int {
		return slices.IndexFunc(order, func(y layout.Tensor) bool { return x.Name == y.Name })
	}
	slices.SortStableFunc(c.Tensors, func(a, b format.Tensor) int { return place(a) - place(b) })
	f.File = filepath.Base(to)
	out, _, err := c.Output(f)
	if err != nil {
		return nil, err
	}
	return Move(context.Background(), c, out, to, o)
}

// wholeBytes returns the bytes of the tensors of a model, each packed row-major.
func wholeBytes(tensors []layout.Tensor) map[string][]byte {
	all := map[string][]byte{}
	for i, x := range tensors {
		b := []byte{}
		for k := range x.Shape.Box().Elements() {
			b = append(b, layouttest.Element{Tensor: i, Index: k}.Bytes(x.DType.Size())...)
		}
		all[x.Name] = b
	}
	return all
}

// wholeFile returns the content of the safetensors file of a model, with the elements of
// wholeBytes.
func wholeFile(t *rapid.T, tensors []layout.Tensor) []byte {
	var entries []safetensors.Tensor
	for _, x := range tensors {
		entries = append(entries, safetensors.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	h, err := safetensors.Layout(entries, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	all := wholeBytes(tensors)
	for _, x := range h.Tensors {
		file = append(file, all[x.Name]...)
	}
	return file
}

// scatterFiles returns the files of an output, with the elements of a model put to their places one
// by one. Of the package that has laid it out this uses the headers, and what it says of places,
// which whoever reads the files finds in the headers.
func scatterFiles(o *format.Output, tensors []layout.Tensor) map[string][]byte {
	files, all := map[string][]byte{}, wholeBytes(tensors)
	for _, f := range o.Files {
		files[f.Name] = make([]byte, f.Size)
	}
	for _, f := range o.Frames {
		copy(files[f.File][f.Offset:], f.Bytes)
	}
	for i := range o.Tensors {
		x := &o.Tensors[i]
		size := int64(x.DType.Size())
		for _, p := range slices.Concat(x.Pieces, x.Replicas) {
			for n := range p.Box.Elements() {
				from, to, rest := int64(0), int64(0), n
				index := make([]int, len(p.Box))
				for d := len(p.Box) - 1; d >= 0; d-- {
					index[d] = rest % p.Box[d].Len()
					rest /= p.Box[d].Len()
				}
				for d, k := range index {
					from = from*int64(x.Shape[d]) + int64(p.Box[d].From+k)
					if p.Strides == nil {
						to = to*int64(p.Box[d].Len()) + int64(k)
					} else {
						to += int64(k * p.Strides[d])
					}
				}
				copy(files[p.File][p.Offset+to*size:][:size], all[x.Name][from*size:])
			}
		}
	}
	for _, x := range o.Sums {
		for _, at := range x.At {
			binary.LittleEndian.PutUint32(files[x.File][at:],
				crc32.ChecksumIEEE(files[x.File][x.From:x.To]))
		}
	}
	return files
}

// runRandomCases runs f on random cases, one after the other: so many, or CASES of the environment.
// SEED repeats them. SLICES says that this run tries one of so many parts of them. at returns the
// path of a name in the case's own folder, which is removed after the case.
func runRandomCases(t *testing.T, cases int, f func(r *rapid.T, at func(name string) string)) {
	count := envtest.Number(t, "CASES", uint64(cases)/envtest.Slices(t))
	for name, to := range map[string]uint64{"rapid.checks": count, "rapid.seed": envtest.Seed(t)} {
		if err := flag.Set(name, strconv.FormatUint(to, 10)); err != nil {
			t.Fatal(err)
		}
	}
	root, n := memoryFolder(t), 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		dir := filepath.Join(root, strconv.Itoa(n))
		if err := os.Mkdir(dir, 0o777); err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		f(r, func(name string) string { return filepath.Join(dir, name) })
	})
}

// memoryFolder returns a folder, in memory where the system has one, until the test ends: what is
// durable is not the matter here, and costs most of the time on a disk.
func memoryFolder(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "shoal-reshape-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// drawOptions draws how a move is made, with blocks of a few elements.
func drawOptions(r *rapid.T) Options {
	return Options{Workers: 2, Seal: rapid.Bool().Draw(r, "seal"),
		blockBytes: int64(16 * rapid.IntRange(1, 40).Draw(r, "block"))}
}

// TestReshape moves state between random layouts through real files: from files of any format, by
// way of any, to what lies in the memory of each rank. It compares with a gather and scatter of
// whole arrays, bit by bit, and the fingerprints with sums of these. What is sealed is then
// damaged.
func TestReshape(t *testing.T) {
	runRandomCases(t, 150, func(r *rapid.T, at func(string) string) {
		model := layouttest.DrawModel(r)
		for i := range model.Tensors { // safetensors has fewer element types
			if d := &model.Tensors[i].DType; *d == tensor.C128 || *d == tensor.C32 {
				*d = tensor.C64
			}
		}
		from, to := layouttest.DrawSpec(r, model), layouttest.DrawSpec(r, model)
		o := drawOptions(r)
		forms := []TargetFormat{{Format: "hf"}, {Format: "hf", MaxFileBytes: 100}, {Format: "pt"},
			{Format: "dcp"},
			{Format: "dcp", Spec: from}, {Format: "dcp", Spec: to},
			{Format: "shards"}, {Format: "shards", Spec: from}, {Format: "shards", Spec: to},
			{Format: "ranks", Spec: from}}
		first := rapid.SampledFrom(forms).Draw(r, "first")
		source := at("from")
		if first.Format == "ranks" {
			writeFiles(r, source, rankFiles(r, from, model.Tensors))
		} else {
			writeFiles(r, source, drawFiles(r, at("whole.safetensors"), first, model.Tensors))
		}
		if first.Format == "pt" {
			source = at("from/" + onlyFile)
		}
		by := rapid.SampledFrom(forms).Draw(r, "by")
		one := convert(r, source, at("by"), by, o)
		two := convert(r, at("by"), at("to"), TargetFormat{Format: "ranks", Spec: to}, o,
			model.Tensors...)
		if one.State.Bytes != two.State.Bytes || o.Seal && one.State != two.State {
			r.Fatalf("fingerprints %v and %v", one.State, two.State)
		}
		want := rankFiles(r, to, model.Tensors)
		checkFiles(r, at("to"), want,
			fmt.Sprintf("from %v %+v\nby %v to %+v", first, *from, by, *to))
		if o.Seal {
			checkSeal(r, at("to"), model.Tensors)
			drawDamage(r, at("to"), slices.Sorted(maps.Keys(want)))
			if damage, _, err := Verify(t.Context(), at("to"), 2); err != nil || len(damage) == 0 {
				r.Fatalf("damage is not seen: %v", err)
			}
			if _, err := tryConvert(at("to"), at("again"), TargetFormat{Format: "ranks", Spec: to},
				o,
				model.Tensors...); err == nil {
				// where no tensor lies
				checkFiles(r, at("again"), want, "moved on from what was damaged")
			}
		}
	})
}

// onlyFile is what the file of a format of one file is called.
const onlyFile = "model.pt"

// drawFiles returns, by name, the files of a model in a format, of which no code under test has
// moved an element. It writes the model to the file whole, which it reads for that.
func drawFiles(r *rapid.T, whole string, f TargetFormat,
	tensors []layout.Tensor) map[string][]byte {
	if err := os.WriteFile(whole, wholeFile(r, tensors), 0o666); err != nil {
		r.Fatal(err)
	}
	c, err := Open(whole)
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	f.File = onlyFile
	o, _, err := c.Output(f)
	if err != nil {
		r.Fatal(err)
	}
	return scatterFiles(o, tensors)
}

// checkFiles fails the test unless a folder has these files, by name, bit by bit; others may be
// there. about is what the error says before.
func checkFiles(r *rapid.T, dir string, want map[string][]byte, about string) {
	for name, b := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, b) {
			r.Fatalf("%s\n%s differs: %v\n%.2000x\n%.2000x", about, name, err, got, b)
		}
	}
}

// checkSeal fails the test unless the manifest of the checkpoint at path fits the arrays of the
// model and the files.
func checkSeal(r *rapid.T, path string, tensors []layout.Tensor) {
	c, err := Open(path)
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	key, all := digest.NewKey(c.sealed.Seed), wholeBytes(tensors)
	for _, x := range c.sealed.Tensors {
		if sum := key.RunSum(0, all[x.Name]); sum != x.Sum {
			r.Fatalf("%s has the fingerprint %v, and the array %v", x.Name, x.Sum, sum)
		}
	}
	if len(c.sealed.Tensors) != len(tensors) {
		r.Fatalf("%d tensors are sealed", len(c.sealed.Tensors))
	}
	if damage, _, err := Verify(r.Context(), path, 2); err != nil || len(damage) > 0 {
		r.Fatal(damage, err)
	}
}

// drawDamage changes one or two of the files of a sealed checkpoint in dir: a bit flips, or bytes
// of two places change places, or bytes are shifted by some.
func drawDamage(r *rapid.T, dir string, files []string) {
	read := func(what string) (string, []byte) {
		path := filepath.Join(dir, rapid.SampledFrom(files).Draw(r, what))
		b, err := os.ReadFile(path)
		if err != nil {
			r.Fatal(err)
		}
		return path, b
	}
	path, b := read("damaged file")
	before := bytes.Clone(b)
	at := rapid.IntRange(0, len(b)-1).Draw(r, "damaged byte")
	switch rapid.IntRange(0, 2).Draw(r, "damage") {
	case 1:
		path2, b2 := read("other file")
		if path2 == path {
			b2 = b
		}
		from := rapid.IntRange(0, len(b2)-1).Draw(r, "other byte")
		n := rapid.IntRange(1, min(len(b)-at, len(b2)-from)).Draw(r, "bytes")
		x, y := bytes.Clone(b[at:at+n]), bytes.Clone(b2[from:from+n])
		copy(b2[from:], x)
		copy(b[at:], y)
		if path2 != path {
			if err := os.WriteFile(path2, b2, 0o666); err != nil {
				r.Fatal(err)
			}
		}
	case 2:
		copy(b[at:], bytes.Clone(b[min(at+rapid.IntRange(1, 16).Draw(r, "shift"), len(b)):]))
	}
	if bytes.Equal(b, before) { // it was alike
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(r, "bit")
	}
	if err := os.WriteFile(path, b, 0o666); err != nil {
		r.Fatal(err)
	}
}

// drawTraining draws a small model of one of the families that have formats of their own, and those
// formats: Megatron's names, and DeepSpeed's with an optimizer.
func drawTraining(r *rapid.T) (tensors []layout.Tensor, forms []TargetFormat) {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
	d := rapid.SampledFrom([]tensor.DType{tensor.F32, tensor.BF16, tensor.F16}).Draw(r, "dtype")
	add := func(d tensor.DType, name string, shape ...int) {
		tensors = append(tensors, layout.Tensor{Name: name, DType: d, Shape: shape})
	}
	if rapid.Bool().Draw(r, "DeepSpeed") {
		for i := range n("parameters", 1, 4) {
			shape := []int{n("rows", 1, 9), n("columns", 1, 9)}[:n("dimensions", 1, 2)]
			name := fmt.Sprintf("layers.%d.w", i)
			add(d, "module."+name, shape...)
			for _, kind := range []string{"fp32", "exp_avg", "exp_avg_sq"} {
				add(tensor.F32, "optimizer."+kind+"."+name, shape...)
			}
		}
		return tensors, []TargetFormat{{Format: "universal"}}
	}
	groups, head, layers := 4*n("groups", 1, 2), n("head", 1, 2), 4*n("layers", 1, 2)
	heads, inner, width := groups*n("heads in a group", 1, 2), 4*n("inner", 1, 2), n("width", 1, 6)
	add(d, "model.embedding.word_embeddings.weight", 12*n("vocabulary", 1, 2), width)
	for l := range layers {
		p := fmt.Sprintf("model.decoder.layers.%d.", l)
		add(d, p+"self_attention.linear_qkv.layer_norm_weight", width)
		add(d, p+"self_attention.linear_qkv.weight", (heads+2*groups)*head, width)
		add(d, p+"self_attention.linear_proj.weight", width, heads*head)
		add(d, p+"mlp.linear_fc1.layer_norm_weight", width)
		add(d, p+"mlp.linear_fc1.weight", 2*inner, width)
		add(d, p+"mlp.linear_fc2.weight", width, inner)
	}
	add(d, "model.decoder.final_layernorm.weight", width)
	add(d, "model.output_layer.weight", tensors[0].Shape...)
	forms = []TargetFormat{{Format: "torch_dist"}}
	for range 3 {
		m := layout.Mesh{{Name: "pp", Size: 1 << n("pp", 0, 2)},
			{Name: "tp", Size: 1 << n("tp", 0, 2)}}
		spec, err := layout.Preset("megatron-core", m, tensors, groups)
		if err != nil {
			r.Fatal(err)
		}
		forms = append(forms, TargetFormat{Format: "megatron", Spec: spec},
			TargetFormat{Format: "ranks", Spec: spec}, TargetFormat{Format: "dcp", Spec: spec})
	}
	return tensors, forms
}

// TestReshapeFormats moves the state of small models through several formats, those of frameworks
// among them that know no other names than theirs, and compares with whole arrays.
func TestReshapeFormats(t *testing.T) {
	runRandomCases(t, 100, func(r *rapid.T, at func(string) string) {
		tensors, forms := drawTraining(r)
		o := drawOptions(r)
		var fsdp []TargetFormat
		for _, format := range []string{"dcp", "shards", "ranks"} {
			spec, err := layout.Preset("fsdp2",
				layout.Mesh{{Name: "dp", Size: rapid.IntRange(1, 5).Draw(r, "dp")}}, tensors, 0)
			if err != nil {
				r.Fatal(err)
			}
			fsdp = append(fsdp, TargetFormat{Format: format, Spec: spec})
		}
		forms = slices.Concat(forms, fsdp,
			[]TargetFormat{{Format: "hf"}, {Format: "hf", MaxFileBytes: 300}, {Format: "pt"}})
		last := at("whole.safetensors")
		if err := os.WriteFile(last, wholeFile(r, tensors), 0o666); err != nil {
			r.Fatal(err)
		}
		way := ""
		for i := range rapid.IntRange(1, 4).Draw(r, "moves") {
			form, next := rapid.SampledFrom(forms).Draw(r, "form"), at(strconv.Itoa(i))
			way += fmt.Sprintf(", %v", form)
			convert(r, last, next, form, o)
			last = next
		}
		convert(r, last, at("end.safetensors"), TargetFormat{Format: "hf"}, o)
		checkFiles(r, at(""), map[string][]byte{"end.safetensors": wholeFile(r, tensors)}, way)
		if o.Seal {
			checkSeal(r, at("end.safetensors"), tensors)
		}
	})
}
