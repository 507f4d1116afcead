package ranks_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// spreadLayout returns a layout over four ranks, two of which hold each half of some tensors, and
// all of which hold the others. It stops the test if that is none.
func spreadLayout(t *testing.T) (*layout.Spec, *layout.Layout) {
	t.Helper()
	spec, err := layout.Parse([]byte(`{shoal: layout/1, mesh: "dp=2,tp=2",
		rules: [{match: "cut.*", place: "tp=shard(0)"}, {match: "**"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	l, err := spec.Resolve([]layout.Tensor{{Name: "z", DType: tensor.F16, Shape: tensor.Shape{9}},
		{Name: "a", DType: tensor.U8, Shape: tensor.Shape{5}},
		{Name: "b", DType: tensor.F32, Shape: tensor.Shape{2, 2}},
		{Name: "c", DType: tensor.F64, Shape: tensor.Shape{2}},
		{Name: "cut.x", DType: tensor.F32, Shape: tensor.Shape{4, 3}},
		{Name: "cut.y", DType: tensor.F16, Shape: tensor.Shape{2, 5}},
		{Name: "cut.z", DType: tensor.F64, Shape: tensor.Shape{2, 2}},
		{Name: "bare", DType: tensor.F32, Shape: tensor.Shape{0}}})
	if err != nil {
		t.Fatal(err)
	}
	return spec, l
}

// memoryOf returns what lies in the memory of a rank, by name: element i of tensor k is in each of
// its bytes 10·k + i.
func memoryOf(l *layout.Layout, rank int) map[string][]byte {
	memory := map[string][]byte{}
	for _, x := range l.RankLocals(rank) {
		size := x.DType.Size()
		b := make([]byte, x.Shape.Box().Elements()*size)
		for _, p := range x.Pieces {
			for r := range tensor.Runs(p.Box, l.Tensors[p.Tensor].Shape.View(), p.View) {
				for i := range r.N * size {
					b[r.B*size+i] = byte(10*p.Tensor + r.A + i/size)
				}
			}
		}
		memory[x.Name] = b
	}
	return memory
}

// TestSpread writes the shares of all ranks and reads them again: every tensor is there, written
// once, and whoever loads a rank finds its parts. Who writes what is part of the format, since no
// file says it: tensors go by name to the rank that has least to write, and lie in its file with
// wide elements first.
func TestSpread(t *testing.T) {
	spec, l := spreadLayout(t)
	text, err := ranks.DescribeSpread(spec, l)
	if err != nil {
		t.Fatal(err)
	}
	dir, written := fstest.MapFS{ranks.LayoutName: {Data: text}}, map[string][]byte{}
	var shares []string
	elements := make([]int, len(l.Tensors)) // in the pieces of all shares
	for rank := range l.Ranks {
		memory := memoryOf(l, rank)
		s, err := ranks.ShareOf(l, rank)
		if err != nil {
			t.Fatal(err)
		}
		file, mine, names := slices.Clone(s.Head), map[string]bool{}, ""
		for _, x := range s.Tensors {
			if x.At != len(file)-len(s.Head) || x.At%x.DType.Size() != 0 {
				t.Errorf("rank %d: %s of %v lies at %d of the share, after %d bytes", rank, x.Name,
					x.DType, x.At, len(file)-len(s.Head))
			}
			for _, p := range x.Pieces {
				elements[p.Tensor] += p.Box.Elements()
			}
			file, names = append(file, memory[x.Name]...), names+" "+x.Name
			written[s.Name+" "+x.Name], mine[x.Name] = memory[x.Name], true
		}
		dir[s.Name] = &fstest.MapFile{Data: file}
		shares = append(shares, fmt.Sprint(s.Bytes, names))
		checkMarks(t, ranks.ShareMarks(l, rank), memory, mine)
	}
	if diff := cmp.Diff([]string{"29 cut.x a", "44 b cut.y z", "42 c cut.z bare cut.y",
		"40 cut.z cut.x"}, shares); diff != "" {
		t.Errorf("who writes how many bytes of what (-want +got):\n%s", diff)
	}
	for i, x := range l.Tensors {
		if n, _ := x.Shape.Elements(); elements[i] != n {
			t.Errorf("%d elements of %s are in shares, and it has %d", elements[i], x.Name, n)
		}
	}
	files := format.NewFiles(dir)
	c, err := ranks.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	if faults := c.Check(files); len(faults) > 0 {
		t.Error(faults)
	}
	for i := range c.Tensors {
		x := &c.Tensors[i]
		k := slices.IndexFunc(l.Tensors, func(y layout.Tensor) bool { return y.Name == x.Name })
		for at, got := range formattest.ReadTensor(t, files, x) {
			if want := byte(10*k + at/x.DType.Size()); got != want {
				t.Fatalf("byte %d of %s is %d, want %d", at, x.Name, got, want)
			}
		}
	}
	checkParts(t, text, l, written)
}

// checkMarks fails the test unless the marks of a rank say which of the tensors in its memory are
// in its share.
func checkMarks(t *testing.T, marks []byte, memory map[string][]byte, mine map[string]bool) {
	t.Helper()
	var names []string
	for name, b := range memory {
		if len(b) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(marks) != (len(names)+7)/8 {
		t.Fatalf("%d bytes of marks for %d tensors", len(marks), len(names))
	}
	for i, name := range names {
		if is := marks[i/8]>>(i%8)&1 == 1; is != mine[name] {
			t.Errorf("%s is marked: %v, and in the share: %v", name, is, mine[name])
		}
	}
}

// checkParts fails the test unless each rank finds what lies in its memory in the files that its
// parts name; written has the tensors by the name of their file and their own.
func checkParts(t *testing.T, text []byte, l *layout.Layout, written map[string][]byte) {
	t.Helper()
	d, err := ranks.Parse(text)
	if err != nil || !d.Spread || d.Values {
		t.Fatal(err, d)
	}
	for rank := range l.Ranks {
		memory, parts := memoryOf(l, rank), d.Parts(rank)
		if len(parts) != len(memory) {
			t.Errorf("rank %d has %d parts, and %d tensors", rank, len(parts), len(memory))
		}
		for _, p := range parts {
			if got, is := written[p.File+" "+p.Name]; !is || !bytes.Equal(got, memory[p.Name]) {
				t.Errorf("rank %d finds %v of %s in %s, and has %v", rank, got, p.Name, p.File,
					memory[p.Name])
			}
		}
	}
}

// TestOtherFiles reads files that are not those of the layout, and layouts that are none.
func TestOtherFiles(t *testing.T) {
	for text, with := range map[string]string{`"w":`: `"v":`, `"F32"`: `"I32"`,
		`"shape":[2]`: `"shape":[]`, `\"ranks\":2`: `\"ranks\":4`} {
		_, _, dir := halvedTensor(t)
		data := dir[second].Data
		changed := bytes.Replace(data, []byte(text), []byte(with), 1)
		if bytes.Equal(changed, data) {
			t.Fatalf("%q does not have %s", data, text)
		}
		dir[second].Data = changed
		_, err := ranks.Read(format.NewFiles(dir))
		if err == nil || !strings.Contains(err.Error(), second) {
			t.Errorf("with %s for %s: %v", with, text, err)
		}
	}
	for text, want := range map[string]string{
		`{"shoal": "ranks/2", "spec": {}, "tensors": [], "values": false}`: `not "ranks/1"`,
		`{"shoal": "ranks/1", "tensors": [], "values": false}`:             "spec"} {
		if _, err := ranks.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
