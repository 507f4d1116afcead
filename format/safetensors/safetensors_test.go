package safetensors_test

// This file tests headers, made here and drawn.
import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/tensor"
)

// makeFile puts a JSON header and data bytes together. data is their number.
func makeFile(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

// readHeader reads the header of a file in memory.
func readHeader(b []byte) (*safetensors.Header, error) {
	return safetensors.ReadHeader("model.safetensors", bytes.NewReader(b), int64(len(b)))
}

// TestReadHeader reads a header with tensors and metadata.
func TestReadHeader(t *testing.T) {
	b := makeFile(
		`{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},`+
			`"a":{"shape":[],"data_offsets":[0,2],"dtype":"BF16"},"none":{"dtype":"I64","shape":[0,4],"data_offsets":[26,26]}}   `, 26)
	h, err := readHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	want := &safetensors.Header{
		Metadata: map[string]string{"format": "pt"},
		Tensors: []safetensors.Tensor{
			{Name: "a", DType: tensor.BF16, End: 2},
			{Name: "b", DType: tensor.F32, Shape: tensor.Shape{2, 3}, Begin: 2, End: 26},
			{Name: "none", DType: tensor.I64, Shape: tensor.Shape{0, 4}, Begin: 26, End: 26},
		},
		Data: int64(len(b)) - 26,
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if h.Size() != int64(len(b)) {
		t.Errorf("Size() = %d of %d", h.Size(), len(b))
	}
}

// TestEmptyMetadata reads metadata without texts. The reference implementation reads null as if
// there was no metadata at all.
func TestEmptyMetadata(t *testing.T) {
	tensors := `"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`
	for _, header := range []string{
		`{"__metadata__":null,` + tensors + `}`, `{` + tensors + `,"__metadata__" : null }`,
		`{"__metadata__":{},` + tensors + `}`,
	} {
		h, err := readHeader(makeFile(header, 2))
		if err != nil || len(h.Metadata) > 0 || len(h.Tensors) != 1 {
			t.Errorf("%s: %+v, %v", header, h, err)
		}
	}
}

// TestBadHeaders says of broken headers what is wrong, and where.
func TestBadHeaders(t *testing.T) {
	one := func(fields string) string { return `{"w":{` + fields + `}}` }
	for _, c := range []struct {
		header string
		data   int
		err    string
	}{
		{``, 0, `byte 8: the header does not start with {`},
		{` {}`, 0, `byte 8: the header does not start with {`},
		{`[]`, 0, `byte 8: the header does not start with {`},
		{`{`, 0, `broken JSON`},
		{`{"a"`, 0, `broken JSON`},
		{`{} x`, 0, `byte 11: "x" after the JSON`},
		{`{}{}`, 0, `after the JSON`},
		{"{}\n", 0, `after the JSON`},
		{"{\"\xff\":{}}", 0, `not UTF-8`},
		{`{"w":3}`, 0, `tensor "w": byte 14: 3 where { is due`},
		{`{"w":null}`, 0, `tensor "w"`},
		{`{"__metadata__":{"a":1}}`, 0, `__metadata__.a is 1, which is no string`},
		{`{"__metadata__":{"a":null}}`, 0, `__metadata__.a is null, which is no string`},
		{`{"__metadata__":{"a":true}}`, 0, `__metadata__.a is true, which is no string`},
		{`{"__metadata__":{"a":nil}}`, 0, `broken JSON: "ni" where null is due`},
		{`{"__metadata__":[]}`, 0, `[ where { is due`},
		{`{"__metadata__":nil}`, 0, `broken JSON`},
		{`{"__metadata__":null,"__metadata__":null}`, 0, `the key "__metadata__" stands twice`},
		{`{"__metadata__":{"a":"1","a":"2"}}`, 0, `the key "a" stands twice`},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[0,4]`), 3, `the file is cut off`},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[0,4]`), 5,
			`1 bytes after the last tensor belong to none`},
		{one(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), 4,
			`hold 4 bytes, f32 elements of shape [2] have 8`},
		{one(`"dtype":"U8","shape":[` + strings.Repeat("1,", 64) + `1],"data_offsets":[0,1]`), 1,
			`tensor "w": byte 165: shape has more than 64 dimensions`},
		{one(`"dtype":"F33","shape":[1],"data_offsets":[0,4]`), 4,
			`tensor "w": byte 27: an unknown dtype "F33"`},
		{one(`"dtype":"f32","shape":[1],"data_offsets":[0,4]`), 4, `an unknown dtype "f32"`},
		{one(`"dtype":"F32","shape":[-1],"data_offsets":[0,4]`), 4, `has -1`},
		{one(`"dtype":"F32","shape":[1.0],"data_offsets":[0,4]`), 4, `has 1.0`},
		{one(`"dtype":"F32","shape":[1e0],"data_offsets":[0,4]`), 4, `has 1e0`},
		{one(`"dtype":"F32","shape":["1"],"data_offsets":[0,4]`), 4, `is no number`},
		{one(`"dtype":"F32","shape":[[1]],"data_offsets":[0,4]`), 4, `is no number`},
		{one(`"dtype":"F32","shape":[18446744073709551617],"data_offsets":[0,4]`), 4,
			`whole numbers from 0`},
		{one(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]`), 4,
			`more elements than an int can count`},
		{one(`"dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,0]`), 4,
			`more bits than an int64 can count`},
		{one(`"dtype":"F4","shape":[3],"data_offsets":[0,1]`), 1, `do not fill whole bytes`},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[0,4,8]`), 4, `more than two numbers`},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[0]`), 4, `data_offsets has 1 numbers`},
		{one(`"dtype":"F32","shape":[1]`), 4, `takes the fields dtype, shape and data_offsets`},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1`), 4, `unknown field "x"`},
		{one(`"x` + strings.Repeat("ä", 150) + `":1`), 0, `ä…"`}, // no half of a letter
		{one(`"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]`), 4,
			`the key "dtype" stands twice`},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[4,0]`), 4, `hold -4 bytes`},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[4,8]`), 8, `leave a hole after 0`},
		{
			`{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, 4, `the key "w" stands twice`},
		{
			`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3, `tensor "w": data_offsets [1,3] overlap`},
		{
			`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2, `tensor "w": data_offsets [0,2] overlap`},
		{
			`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 5, `tensor "w": data_offsets [3,5] leave a hole`},
	} {
		_, err := readHeader(makeFile(c.header, c.data))
		if err == nil || !strings.Contains(err.Error(), c.err) ||
			!strings.HasPrefix(err.Error(), "safetensors: model.safetensors: ") {
			t.Errorf("header %s with %d bytes: %v; want %q", c.header, c.data, err, c.err)
		}
	}
}

// TestBadLengths refuses files whose header is cut off or too long.
func TestBadLengths(t *testing.T) {
	for _, c := range []struct {
		b   []byte
		err string
	}{
		{nil, "0 bytes are too few"},
		{make([]byte, 7), "7 bytes are too few"},
		{binary.LittleEndian.AppendUint64(nil, 1),
			"a header of 1 bytes in a file of 8; the file is cut off"},
		{binary.LittleEndian.AppendUint64(nil, safetensors.MaxHeader+1), "the file is cut off"},
		{binary.LittleEndian.AppendUint64(nil, 4*safetensors.MaxHeader+1), "of another format"},
		{bytes.Repeat([]byte{0xff}, 16), "of another format"},
	} {
		if _, err := readHeader(c.b); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %v; want %q", c.b, err, c.err)
		}
	}
	b := makeFile(`{}`, 0)
	if _, err := safetensors.ReadHeader("short", bytes.NewReader(b[:9]),
		int64(len(b))); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("a file that shrinks under the reader: %v", err)
	}
}

// drawTensors draws what a file can hold.
func drawTensors(t *rapid.T) (list []safetensors.Tensor) {
	types := slices.DeleteFunc(tensor.StoredDTypes(), func(d tensor.DType) bool {
		return d == tensor.C128 || d == tensor.C32
	})
	name := rapid.OneOf(rapid.String(),
		rapid.StringMatching(`layers\.[0-9]\.w`)).Filter(func(s string) bool {
		return s != "__metadata__"
	})
	for _, name := range rapid.SliceOfNDistinct(name, 0, 6, rapid.ID).Draw(t, "names") {
		s := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 4).Draw(t, "shape")
		d := rapid.SampledFrom(types).Draw(t, "dtype")
		if d.Bits()%8 != 0 {
			s = append(s, 4)
		}
		list = append(list, safetensors.Tensor{Name: name, DType: d, Shape: s})
	}
	return list
}

// writeFile lays the tensors out, fills their bytes in turn, and returns the header and the file.
// It stops the test if they cannot be laid out.
func writeFile(t interface{ Fatal(...any) }, list []safetensors.Tensor,
	metadata map[string]string) (*safetensors.Header, []byte) {
	h, err := safetensors.Layout(list, metadata)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for next := byte(1); int64(len(b)) < h.Size(); next++ {
		b = append(b, next)
	}
	return h, b
}

// TestRoundTrip writes random tensors and reads them again.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawTensors(t)
		metadata := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		h, b := writeFile(t, list, metadata)
		got, err := readHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		byName := func(a, b safetensors.Tensor) int { return strings.Compare(a.Name, b.Name) }
		want := slices.SortedFunc(slices.Values(h.Tensors), byName)
		slices.SortFunc(got.Tensors, byName) // tensors without elements share their place
		for i := range want {
			if !want[i].Shape.Equal(got.Tensors[i].Shape) {
				t.Fatalf("%v became %v", want[i], got.Tensors[i])
			}
			want[i].Shape, got.Tensors[i].Shape = nil, nil
		}
		if diff := cmp.Diff(want, got.Tensors); len(want) > 0 && diff != "" ||
			!cmp.Equal(metadata, got.Metadata) || h.Size() != int64(len(b)) || h.Data%8 != 0 {
			t.Fatalf("size %d of %d, data at %d, metadata %q of %q, tensors -want +got:\n%s",
				h.Size(), len(b), h.Data, got.Metadata, metadata, diff)
		}
		slices.Reverse(list)
		if _, again := writeFile(t, list, metadata); !bytes.Equal(b, again) {
			t.Fatal("another order of the tensors gives another file")
		}
	})
}

// TestLayoutOrder lays tensors out by element type, widest first, then by name.
func TestLayoutOrder(t *testing.T) {
	h, _ := writeFile(t, []safetensors.Tensor{{Name: "b", DType: tensor.U8},
		{Name: "y", DType: tensor.F32}, {Name: "x", DType: tensor.F32},
		{Name: "c", DType: tensor.I64}}, nil)
	var got []string
	for _, s := range h.Tensors {
		got = append(got, fmt.Sprint(s.Name, s.Begin))
	}
	if want := []string{"c0", "x8", "y12", "b16"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestLayoutRefuses says what a file cannot hold.
func TestLayoutRefuses(t *testing.T) {
	for _, c := range []struct {
		list []safetensors.Tensor
		err  string
	}{
		{[]safetensors.Tensor{{Name: "w", DType: tensor.C128}},
			`tensor "w": the format has no element type c128; save it as another type with what ` +
				`wrote it, or leave it out with --only`},
		{[]safetensors.Tensor{{Name: "w"}}, `the format has no element type dtype(0)`},
		{[]safetensors.Tensor{{Name: "w", DType: tensor.U8}, {Name: "w", DType: tensor.I8}},
			`the name is taken`},
		{[]safetensors.Tensor{{Name: "__metadata__", DType: tensor.U8}}, `the name is taken`},
		{[]safetensors.Tensor{{Name: "\xff", DType: tensor.U8}}, `not UTF-8`},
		{[]safetensors.Tensor{{Name: "w", DType: tensor.F4, Shape: tensor.Shape{1}}},
			`do not fill whole bytes`},
		{[]safetensors.Tensor{{Name: "w", DType: tensor.U8, Shape: tensor.Shape{-1}}}, `negative`},
		{[]safetensors.Tensor{{Name: "w", DType: tensor.U8, Shape: tensor.Shape{1 << 60}}},
			`more bits than an int64 can count`},
		{largeTensors(7), ``},
		{largeTensors(8), `more bytes than an int64 can count`},
		{slices.Repeat([]safetensors.Tensor{
			{Name: strings.Repeat("x", safetensors.MaxHeader), DType: tensor.U8}}, 1),
			`the limit is 100000000`},
	} {
		_, err := safetensors.Layout(c.list, nil)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.60v: %.200v; want %q", c.list, err, c.err)
		}
	}
	if _, err := safetensors.Layout(nil, map[string]string{"a": "\xff"}); err == nil {
		t.Error("metadata that is not UTF-8 passes")
	}
	h := &safetensors.Header{Tensors: []safetensors.Tensor{{Name: "\xff", DType: tensor.U8}}}
	if _, err := h.AppendBinary(nil); err == nil {
		t.Error("a header of which Layout did not see the names has one that is not UTF-8")
	}
}

// largeTensors returns n tensors of 2^60-1 bytes each.
func largeTensors(n int) (list []safetensors.Tensor) {
	for i := range n {
		list = append(list,
			safetensors.Tensor{Name: fmt.Sprint(i), DType: tensor.U8,
				Shape: tensor.Shape{1<<60 - 1}})
	}
	return list
}

// checkAgainstJSON compares a header that was read with what Go's package for JSON finds in its
// text. It stops the test where they differ.
func checkAgainstJSON(t *testing.T, text []byte, h *safetensors.Header) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatalf("what was read is no JSON: %v", err)
	}
	if m, ok := all["__metadata__"]; ok {
		var want map[string]string
		if err := json.Unmarshal(m, &want); err != nil ||
			len(want)+len(h.Metadata) > 0 && !cmp.Equal(want, h.Metadata) {
			t.Fatalf("metadata %q, and in JSON %q, %v", h.Metadata, want, err)
		}
		delete(all, "__metadata__")
	}
	if len(all) != len(h.Tensors) {
		t.Fatalf("%d tensors, and in JSON %d", len(h.Tensors), len(all))
	}
	for _, x := range h.Tensors {
		var want struct {
			Shape []int    `json:"shape"`
			At    [2]int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(all[x.Name], &want); err != nil ||
			!slices.Equal(x.Shape, want.Shape) || want.At != [2]int64{x.Begin, x.End} {
			t.Fatalf("%v, and in JSON %s, %v", x, all[x.Name], err)
		}
	}
}

// FuzzReadHeader has any text as a header: it is refused, or read as Go's package for JSON reads
// it.
func FuzzReadHeader(f *testing.F) {
	f.Add([]byte(
		`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"v":{"dtype":"F4","shape":[2],"data_offsets":[8,9]}} `), 9)
	f.Add([]byte(`{"__metadata__":{"format":"pt"}}`), 0)
	f.Add([]byte(`{"__metadata__":null}`), 0)
	f.Add([]byte(
		`{"__metadata__":{"\u00e9\ud83d\ude00\ud800x\udc00\ud800\u0041\ud800\ud800\n\/":"\"\\"} , "é" : { "shape":[ ] , "data_offsets":[0,1] , "dtype":"\u0055\u0038"}}`), 1)
	f.Fuzz(func(t *testing.T, header []byte, data int) {
		b := makeFile(string(header), data&0xfff)
		h, err := readHeader(b)
		if err != nil {
			return
		}
		checkAgainstJSON(t, header, h)
		var sum int64
		for _, s := range h.Tensors {
			if n, err := s.Shape.Elements(); err != nil ||
				int64(n)*int64(s.DType.Bits()) != 8*(s.End-s.Begin) {
				t.Fatalf("%v: %d bytes for %d elements", s, s.End-s.Begin, n)
			}
			sum += s.End - s.Begin
		}
		if sum != int64(data&0xfff) || h.Size() != int64(len(b)) {
			t.Fatalf("%d of %d bytes belong to tensors", sum, data&0xfff)
		}
		again, err := safetensors.Layout(h.Tensors, h.Metadata)
		if err != nil || len(again.Tensors) != len(h.Tensors) {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		start, err := again.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readHeader(append(start, make([]byte, sum)...)); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}
