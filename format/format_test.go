package format_test

// This file tests reading, the check of structure, and files, on tensors that are made here.
import (
	"bytes"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// TestRead cuts a tensor of bytes into boxes, writes each with strides of its own, and reads it
// back.
func TestRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := tensor.Shape(rapid.SliceOfN(rapid.IntRange(1, 6), 0, 4).Draw(t, "shape"))
		size := rapid.SampledFrom([]tensor.DType{tensor.U8, tensor.F16, tensor.C128}).Draw(t,
			"dtype")
		n, _ := shape.Elements()
		want := make([]byte, n*size.Size())
		for i := range want {
			want[i] = byte(i*7 + i>>8)
		}
		s := format.Tensor{Name: "w", DType: size, Shape: shape}
		dir := fstest.MapFS{}
		for i, box := range cutBox(t, shape.Box(), 3) {
			p := format.Piece{Box: box, File: string(rune('a' + i)),
				Offset: int64(rapid.IntRange(0, 9).Draw(t, "offset"))}
			p.Strides = drawStrides(t, box)
			file := make([]byte, int(p.Offset)+spanElements(p, box)*size.Size())
			for run := range tensor.Runs(box, p.View(), shape.View()) {
				copy(file[int(p.Offset)+run.A*size.Size():],
					want[run.B*size.Size():(run.B+run.N)*size.Size()])
			}
			dir[p.File] = &fstest.MapFile{Data: file}
			s.Pieces = append(s.Pieces, p)
		}
		files := format.NewFiles(dir)
		c := format.Checkpoint{Tensors: []format.Tensor{s}}
		if faults := c.Check(files); len(faults) > 0 {
			t.Fatal(faults)
		}
		got := make([]byte, len(want))
		if err := files.Read(&s, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v: read %x, want %x: %v", s, got, want, err)
		}
		drop := rapid.IntRange(0, len(s.Pieces)-1).Draw(t, "drop")
		c.Tensors[0].Pieces = slices.Delete(slices.Clone(s.Pieces), drop, drop+1)
		if faults := c.Check(files); len(faults) != 1 ||
			!strings.Contains(faults[0].What, "are in no file") {
			t.Fatalf("a piece less: %v", faults)
		}
	})
}

// cutBox cuts a box in two, up to depth times. The boxes come to b.
func cutBox(t *rapid.T, b tensor.Box, depth int) []tensor.Box {
	d := slices.IndexFunc(b, func(s tensor.Span) bool { return s.Len() > 1 })
	if d < 0 || depth == 0 {
		return []tensor.Box{b}
	}
	at := rapid.IntRange(b[d].From+1, b[d].To-1).Draw(t, "at")
	left, right := slices.Clone(b), slices.Clone(b)
	left[d].To, right[d].From = at, at
	return append(cutBox(t, left, depth-1), cutBox(t, right, depth-1)...)
}

// drawStrides draws a layout of a box in any order of its dimensions and with gaps; nil for packed.
func drawStrides(t *rapid.T, b tensor.Box) []int {
	if rapid.Bool().Draw(t, "packed") {
		return nil
	}
	s, step := make([]int, len(b)), 1
	order := make([]int, len(b))
	for d := range order {
		order[d] = d
	}
	for _, d := range rapid.Permutation(order).Draw(t, "order") {
		step *= rapid.IntRange(1, 3).Draw(t, "gap")
		s[d] = step
		step *= b[d].Len()
	}
	return s
}

// spanElements returns the number of elements from the first to the last. b is the box of p, which
// has elements.
func spanElements(p format.Piece, b tensor.Box) int {
	n, v := 1, p.View()
	for d, x := range b {
		n += (x.Len() - 1) * v.Strides[d]
	}
	return n
}

// TestCheck finds each kind of defect in pieces and values.
func TestCheck(t *testing.T) {
	files := format.NewFiles(fstest.MapFS{"f": {Data: make([]byte, 16)}, "d": {Mode: fs.ModeDir}})
	box := func(from, to int) tensor.Box { return tensor.Box{{From: from, To: to}} }
	for _, c := range []struct {
		dtype  tensor.DType
		shape  tensor.Shape
		pieces []format.Piece
		err    string
	}{
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 4), File: "f"}}, ""},
		{tensor.F32, tensor.Shape{0}, nil, ""},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 4), File: "f", Offset: 1}},
			"box [0:4] has 16 bytes, the file ends at 16"},
		{tensor.F32, tensor.Shape{4},
			[]format.Piece{{Box: box(0, 4), File: "f", Strides: []int{2}}}, "has 28 bytes"},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 4), File: "f", Offset: -1}},
			"the file ends"},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 5), File: "f"}},
			"lies outside shape [4]"},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(-1, 3), File: "f"}}, "lies outside"},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: tensor.Box{}, File: "f"}},
			"lies outside"},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 3), File: "f"}},
			"1 of 4 elements of shape [4] are in no file"},
		{tensor.F32, tensor.Shape{4},
			[]format.Piece{{Box: box(0, 3), File: "f"}, {Box: box(2, 4), File: "f"}},
			"box [2:4] overlaps box [0:3]"},
		{tensor.F32, tensor.Shape{4},
			[]format.Piece{{Box: box(0, 2), File: "f"}, {Box: box(2, 4), File: "f", Offset: 8}},
			""},
		{tensor.F32, tensor.Shape{4},
			[]format.Piece{{Box: box(0, 2), File: "f"}, {Box: box(2, 4), File: "f"}},
			"f, byte 0: box [2:4] lies in the same bytes as box [0:2]"},
		{tensor.F32, tensor.Shape{4},
			[]format.Piece{{Box: box(0, 2), File: "f", Offset: 4}, {Box: box(2, 4), File: "f"}},
			"f, byte 4: box [0:2] lies in the same bytes as box [2:4]"},
		{tensor.F32, tensor.Shape{4},
			[]format.Piece{{Box: box(0, 2), File: "f", Strides: []int{2}},
				{Box: box(2, 4), File: "f", Offset: 4, Strides: []int{2}}}, ""},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 4), File: "missing"}}, "missing"},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 4), File: "../f"}}, "../f"},
		{tensor.F32, tensor.Shape{4}, []format.Piece{{Box: box(0, 4), File: "d"}},
			"no regular file"},
		{tensor.DType(0), tensor.Shape{4}, nil, "none that a file can hold"},
		{tensor.F32, tensor.Shape{1 << 40, 1 << 40}, nil, "none that a file can hold"},
	} {
		faults := (&format.Checkpoint{
			Tensors: []format.Tensor{
				{Name: "w", DType: c.dtype, Shape: c.shape, Pieces: c.pieces}}}).Check(files)
		if c.err == "" && len(faults) > 0 ||
			c.err != "" && (len(faults) == 0 || !strings.Contains(faults[0].String(), c.err)) {
			t.Errorf("%v %v: %v, want %q", c.shape, c.pieces, faults, c.err)
		}
	}
}

// TestFinish puts tensors and values in order, and refuses what stands twice or fits in no file.
func TestFinish(t *testing.T) {
	at := func(i int) format.Coords { return format.Coords{{Axis: "tp", Index: i, Of: 2}} }
	c := format.Checkpoint{
		Format: "x",
		Tensors: []format.Tensor{{Name: "w", DType: tensor.U8, Coords: at(1)},
			{Name: "w", DType: tensor.U8, Coords: at(0)}, {Name: "a", DType: tensor.U8}},
		Values: []format.Value{{Path: "step", Data: 1}, {Path: "lr", Data: 2}},
	}
	if err := c.Finish(); err != nil || c.Tensors[0].Name != "a" ||
		c.Tensors[1].Coords.String() != "tp=0/2" {
		t.Errorf("%v: %v", c, err)
	}
	if v, ok := c.Value("step"); !ok || v != 1 {
		t.Errorf("step = %v", v)
	}
	if _, ok := c.Value("a"); ok {
		t.Error("a is a value")
	}
	for _, twice := range []format.Checkpoint{
		{Tensors: []format.Tensor{{Name: "w", DType: tensor.U8, Coords: at(1)},
			{Name: "w", DType: tensor.U8, Coords: at(1)}}},
		{Tensors: []format.Tensor{{Name: "w"}}},
		{Tensors: []format.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{1 << 60}}}},
		{Values: []format.Value{{Path: "step", Data: 1}, {Path: "step", Data: 1}}},
	} {
		if err := twice.Finish(); err == nil {
			t.Errorf("%v passes", twice)
		}
	}
}

// TestManyFiles reads a tensor from more files than are kept open: all bytes are there.
func TestManyFiles(t *testing.T) {
	dir := fstest.MapFS{}
	var s format.Tensor
	s.DType, s.Shape = tensor.U8, tensor.Shape{500}
	for i := range 500 {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		dir[name] = &fstest.MapFile{Data: []byte{byte(i)}}
		s.Pieces = append(s.Pieces, format.Piece{Box: tensor.Box{{From: i, To: i + 1}}, File: name})
	}
	files := format.NewFiles(dir)
	got := make([]byte, 500)
	if err := files.Read(&s, got); err != nil {
		t.Fatal(err)
	}
	for i, b := range got {
		if b != byte(i) {
			t.Fatalf("element %d is %d", i, b)
		}
	}
	if err := files.Close(); err != nil {
		t.Error(err)
	}
	if err := files.Read(&s, got[1:]); err == nil {
		t.Error("a memory that is too small passes")
	}
}
