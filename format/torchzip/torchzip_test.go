package torchzip_test

// This file tests the reader on files of torch, and on archives that are made here.
import (
	"archive/zip"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/tensor"
)

// names are torch's names of element types.
var names = map[tensor.DType]string{
	tensor.F64: "float64", tensor.F32: "float32", tensor.F16: "float16", tensor.BF16: "bfloat16",
	tensor.I64: "int64", tensor.I32: "int32",
	tensor.I16: "int16", tensor.I8: "int8", tensor.U8: "uint8", tensor.Bool: "bool",
	tensor.C128: "complex128", tensor.C64: "complex64",
	tensor.U16: "uint16", tensor.U32: "uint32", tensor.U64: "uint64", tensor.F8E5M2: "float8_e5m2",
	tensor.F8E4M3: "float8_e4m3fn",
	tensor.F8E8M0: "float8_e8m0fnu", tensor.F8E5M2FNUZ: "float8_e5m2fnuz",
	tensor.F8E4M3FNUZ: "float8_e4m3fnuz",
}

// TestTorch compares with what torch itself says is in the files it wrote.
func TestTorch(t *testing.T) {
	paths, err := filepath.Glob("testdata/*/*.pt")
	if err != nil || len(paths) != 14 {
		t.Fatalf("%v, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimPrefix(path, "testdata/"), func(t *testing.T) {
			dir, name := filepath.Split(path)
			files := format.NewFiles(os.DirFS(dir))
			defer files.Close()
			c, err := torchzip.Read(files, name)
			if err != nil {
				t.Fatal(err)
			}
			if faults := c.Check(files); len(faults) > 0 {
				t.Error(faults)
			}
			text, err := os.ReadFile(strings.TrimSuffix(path, ".pt") + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var want map[string][3]any
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			got := map[string][3]any{}
			for i := range c.Tensors {
				s := &c.Tensors[i]
				b := make([]byte, s.Bytes())
				if err := files.Read(s, b); err != nil {
					t.Error(err)
				}
				shape := []any{}
				for _, d := range s.Shape {
					shape = append(shape, float64(d))
				}
				got[s.Name] = [3]any{"torch." + names[s.DType], shape, hex.EncodeToString(b)}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-torch +shoal:\n%s", diff)
			}
		})
	}
}

// TestObjectsInLists has objects with tensors in lists of a checkpoint, where they are found too.
func TestObjectsInLists(t *testing.T) {
	o := &format.Output{}
	if _, err := torchzip.LayoutRoot(o, "x.pt", &pickle.Dict{}, nil); err != nil {
		t.Fatal(err)
	}
	f, err := torchzip.Open(format.NewFiles(
		formattest.WriteOutput(t, o, &format.Checkpoint{}, nil)), "x.pt", nil)
	if err != nil {
		t.Fatal(err)
	}
	object := func(state any) any {
		return &pickle.List{Items: []any{pickle.Tuple{&pickle.Object{
			Class: pickle.Global{Module: "m", Name: "C"},
			State: &pickle.Dict{Items: []pickle.Item{{Key: "w", Value: state}}}}}}}
	}
	for path, v := range map[string]any{"0.0.w.d": &pickle.Dict{Items: []pickle.Item{
		{Key: "d", Value: int64(1)}}}, "": int64(1)} {
		c := &format.Checkpoint{}
		if err := f.Flatten(c, "", object(v)); err != nil || len(c.Values) != 1 ||
			c.Values[0].Path != path {
			t.Errorf("%q: %v %v", path, c.Values, err)
		}
	}
}

// TestValues finds the values beside tensors in what torch wrote.
func TestValues(t *testing.T) {
	for _, version := range []string{"torch1.13", "torch2.15"} {
		files := format.NewFiles(os.DirFS("testdata/" + version))
		defer files.Close()
		views, err := torchzip.Read(files, "views.pt")
		if err != nil {
			t.Fatal(err)
		}
		training, err := torchzip.Read(files, "training.pt")
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{
			"nums": "[1 2.5 true <nil>]", "none": "<nil>", "text": "é", "dtype": "torch.bfloat16",
			"size": "[2 3]", "device": "torch.device[cpu]",
			"args.tp": "2", "args.dtype": "torch.float16", "big": "1180591620717411303424",
			"list.1.a": "1",
			"step":     "12", "optimizer.param_groups.0.betas": "[0.9 0.95]",
			"optimizer.param_groups.0.params": "[0 1 2]",
		} {
			v, ok := views.Value(path)
			if !ok {
				v, ok = training.Value(path)
			}
			if got := fmt.Sprint(v); !ok || got != want {
				t.Errorf("%s: %s = %s, want %s", version, path, got, want)
			}
		}
	}
}

// openBytes reads bytes as a file that torch wrote.
func openBytes(b []byte) (*format.Checkpoint, *format.Files, error) {
	files := format.NewFiles(fstest.MapFS{"x.pt": {Data: b}})
	c, err := torchzip.Read(files, "x.pt")
	return c, files, err
}

// readFixture returns a file of testdata. It stops the test if there is none.
func readFixture(t testing.TB, name string) []byte {
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// An entry is an entry of a zip archive that a test makes.
type entry struct {
	name, data string
	method     uint16 // how it is compressed, as zip.FileHeader has it
}

// makeArchive returns a zip archive of entries. It stops the test if Go's package cannot write
// them.
func makeArchive(t testing.TB, entries ...entry) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		f, err := w.CreateHeader(&zip.FileHeader{Name: e.name, Method: e.method})
		if err == nil {
			_, err = f.Write([]byte(e.data))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tensorPickle returns a pickle of one tensor of a storage "0" of n floats. The others are its
// pickled offset, shape and strides.
func tensorPickle(n int, offset, shape, strides string) string {
	return "\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00st" +
		"oragectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" +
		fmt.Sprintf("K%ct", n) + "Q" + offset + shape + strides + "\x89NtRs."
}

// TestRefuses says of broken files what is wrong.
func TestRefuses(t *testing.T) {
	small, data := func(n int) string {
		return fmt.Sprintf("K%c", n)
	}, entry{name: "a/data/0", data: strings.Repeat("x", 24)}
	pkl := func(text string) entry { return entry{name: "a/data.pkl", data: text} }
	pair := func(a, b string) string { return a + b + "\x86" }
	huge := "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40" // 2^62
	for _, c := range []struct {
		name    string
		entries []entry
		err     string
	}{
		{"no pickle", []entry{data}, "no data.pkl"},
		{"TorchScript", []entry{pkl("\x80\x02N."), {name: "a/constants.pkl"}}, "TorchScript"},
		{"compressed TorchScript", []entry{pkl("\x80\x02N."),
			{"a/code/__torch__/net.py", strings.Repeat("x", 99), zip.Deflate}},
			"it is a TorchScript program; save its state_dict instead"},
		{"compressed", []entry{
			pkl(tensorPickle(6, small(0), pair(small(2), small(3)), pair(small(3), small(1)))),
			{"a/data/0", strings.Repeat("\x00", 24), zip.Deflate}},
			`entry "a/data/0" is compressed`},
		{"compressed pickle", []entry{{"a/data.pkl", "\x80\x02N.", zip.Deflate}}, "is compressed"},
		{"twice", []entry{pkl("\x80\x02N."), data, data}, `entry "a/data/0" stands twice`},
		{"two pickles", []entry{pkl("\x80\x02N."), {name: "b/data.pkl", data: "\x80\x02K\x01."}},
			"two pickles, a/data.pkl and b/data.pkl"},
		{"big-endian", []entry{pkl("\x80\x02N."), {name: "a/byteorder", data: "big"}},
			`byte order "big"`},
		{"global", []entry{pkl("\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.")},
			"asks for os.system"},
		{"no storage", []entry{
			pkl(tensorPickle(6, small(0), pair(small(2), small(3)), pair(small(3), small(1))))},
			`storage "0" is not in the archive`},
		{"short storage", []entry{
			pkl(tensorPickle(7, small(0), pair(small(2), small(3)), pair(small(3), small(1)))),
			data},
			`storage "0" has 28 bytes, its entry in the archive 24`},
		{"beyond", []entry{
			pkl(tensorPickle(6, small(1), pair(small(2), small(3)), pair(small(3), small(1)))),
			data},
			"reaches beyond its storage of 6"},
		{"offset", []entry{
			pkl(tensorPickle(6, small(7), pair(small(1), small(3)), pair(small(3), small(1)))),
			data},
			"from element 7 on"},
		{"no offset", []entry{
			pkl(tensorPickle(6, "N", pair(small(2), small(3)), pair(small(3), small(1)))), data},
			"is none"},
		{"negative", []entry{
			pkl(tensorPickle(6, small(0), pair("J\xff\xff\xff\xff", small(3)),
				pair(small(3), small(1)))), data}, "shape: -1 is no size"},
		{"negative stride",
			[]entry{pkl(tensorPickle(6, small(0), pair(small(2), small(3)),
				pair("J\xff\xff\xff\xff", small(1)))), data}, "strides: -1 is no size"},
		{"overflow", []entry{
			pkl(tensorPickle(6, small(0), pair(huge, huge), pair(small(3), small(1)))),
			data}, "is none"},
		{"large stride", []entry{
			pkl(tensorPickle(6, small(0), pair(small(2), small(3)), pair(huge, huge))), data},
			"reaches beyond"},
		{"expanded", []entry{
			pkl(tensorPickle(6, small(0), pair("J\x00\x00\x00\x40", small(1)),
				pair(small(0), small(1)))), data}, "repeats a storage of 6 elements"},
		{"ranks", []entry{pkl(tensorPickle(6, small(0), pair(small(2), small(3)), small(3)+"\x85")),
			data}, "is none"},
		{"few arguments", []entry{pkl("\x80\x02ctorch._utils\n_rebuild_tensor_v2\nK\x01\x85R.")},
			"1 arguments, it takes 6"},
		{"few arguments of a typed tensor",
			[]entry{pkl("\x80\x02ctorch._utils\n_rebuild_tensor_v3\nK\x01\x85R.")},
			"1 arguments, it takes 7"},
		{"a parameter of nothing",
			[]entry{pkl("\x80\x02ctorch._utils\n_rebuild_parameter\n)R.")}, "no arguments"},
		{"few arguments of a subclass",
			[]entry{pkl("\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nK\x01\x85R.")},
			"1 arguments instead of 4"},
		{"in itself", []entry{pkl("\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.")}, "or in itself"},
		{"a list in itself", []entry{pkl("\x80\x02}X\x01\x00\x00\x00l]q\x00h\x00as.")},
			"or in itself"},
		{"same name", []entry{pkl("\x80\x02}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00aK\x02u.")},
			`value "a" stands twice`},
		{"laughs", []entry{
			pkl("\x80\x02}X\x01\x00\x00\x00aK\x01s" +
				strings.Repeat("q\x000}(X\x01\x00\x00\x00ah\x00X\x01\x00\x00\x00bh\x00u", 60) +
				".")}, "comes apart into more than"},
		{"long names", []entry{
			pkl("\x80\x02}X\x00\x20\x00\x00" + strings.Repeat("k", 8192) + "K\x01s.")},
			"a name of more than 4096 bytes"},
		{"protocol", []entry{pkl("I1\n.")}, "instruction 0x49"},
	} {
		_, _, err := openBytes(makeArchive(t, c.entries...))
		if err == nil || !strings.Contains(err.Error(), c.err) ||
			!strings.Contains(err.Error(), "x.pt") {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
	for text, want := range map[string]string{"": "no zip archive",
		"\x80\x02\x8a\x0al\xfc": "unexpected EOF", "\x80\x02K\x01.": "torch.save did not write it",
		"GGUF":       "no zip archive",
		"PK\x03\x04": "cut off or broken"} {
		if _, _, err := openBytes([]byte(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// TestUnsummed reads a file that torch wrote without checksums: no record with bytes has one.
func TestUnsummed(t *testing.T) {
	_, files, err := openBytes(readFixture(t, "torch2.15/unsummed.pt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range archiveRecords(t, files) {
		if !r.LacksSum() {
			t.Errorf("%q, %d bytes, has the checksum %08x", r.Name, r.To-r.From, r.Sum)
		}
	}
}

// archiveRecords returns the records of the archives that readers have found. It stops the test if
// they cannot be read.
func archiveRecords(t *testing.T, files *format.Files) (list []format.Record) {
	for _, a := range files.Archives() {
		file, err := files.Open(a.File)
		if err != nil {
			t.Fatal(err)
		}
		some, err := a.Records(file)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, some...)
	}
	return list
}

// TestLyingEntries has entries that are larger than their archive, or lie in each other. They are
// refused.
func TestLyingEntries(t *testing.T) {
	lying := func(pickle string, entries ...zip.FileHeader) []byte {
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		for _, e := range append(
			[]zip.FileHeader{{Name: "a/data.pkl", UncompressedSize64: uint64(len(pickle))}},
			entries...) {
			e.CompressedSize64 = e.UncompressedSize64
			f, err := w.CreateRaw(&e)
			if err == nil {
				_, err = f.Write([]byte(pickle))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	two := func(n int) []byte { // tensors, of which the first has so many floats
		one := func(key string, n int) string {
			text := tensorPickle(n, "K\x00", fmt.Sprintf("K%c\x85", n), "K\x01\x85")
			return strings.Replace(text[len("\x80\x02}X\x01\x00\x00\x00w"):len(text)-len("s.")],
				"X\x01\x00\x00\x000", "X\x01\x00\x00\x00"+key, 1)
		}
		return lying("\x80\x02("+one("0", n)+one("1", 6)+"t.",
			zip.FileHeader{Name: "a/data/0", UncompressedSize64: uint64(4 * n)},
			zip.FileHeader{Name: "a/data/1", UncompressedSize64: 24})
	}
	if _, _, err := openBytes(two(6)); err != nil {
		t.Errorf("side by side: %v", err)
	}
	if _, _, err := openBytes(two(100)); err == nil ||
		!strings.Contains(err.Error(), `x.pt: the entries "a/data/0" and "a/data/1" overlap`) {
		t.Errorf("storages in each other: %v", err)
	}
	if _, _, err := openBytes(
		lying("\x80\x02N.",
			zip.FileHeader{Name: "a/byteorder", UncompressedSize64: 1000})); err == nil ||
		!strings.Contains(err.Error(), `entry "a/byteorder" has 1000 bytes from byte `) {
		t.Errorf("larger than the archive: %v", err)
	}
	_, files, err := openBytes(
		lying("\x80\x02N.", zip.FileHeader{Name: "a/x", UncompressedSize64: 50},
			zip.FileHeader{Name: "a/y", UncompressedSize64: 4}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := formattest.CheckRecords(files); err == nil ||
		!strings.Contains(err.Error(), `x.pt: the entries "a/x" and "a/y" overlap`) {
		t.Errorf("in each other: %v", err)
	}
}

// TestDamage cuts a file off everywhere and flips a bit of each byte: nothing panics, a cut is
// always an error, and so is a flip in what has a checksum, which is all of the entries.
func TestDamage(t *testing.T) {
	whole := readFixture(t, "torch2.15/views.pt")
	for n := range whole {
		if _, _, err := openBytes(whole[:n]); err == nil {
			t.Errorf("cut off at byte %d it passes", n)
		}
	}
	_, files, err := openBytes(whole)
	if err != nil {
		t.Fatal(err)
	}
	of := map[int]string{}
	for _, r := range archiveRecords(t, files) {
		for i := r.From; i < r.To; i++ {
			of[int(i)] = r.Name
		}
	}
	names := map[string]bool{}
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		if found := findsFault(b); of[i] != "" && !found {
			t.Errorf("a bit of byte %d is flipped, in entry %q, and nobody notices", i, of[i])
		}
		names[of[i]] = true
	}
	if !names["views/data.pkl"] || !names["views/data/0"] || !names["views/version"] {
		t.Errorf("flipped only %v", names)
	}
}

// findsFault reads a file that torch wrote, and each of its tensors below 64 KiB, and reports
// whether there was an error or a fault.
func findsFault(b []byte) bool {
	c, files, err := openBytes(b)
	if err != nil {
		return true
	}
	faults := c.Check(files)
	for i := range c.Tensors {
		if n := c.Tensors[i].Bytes(); n < 1<<16 {
			_ = files.Read(&c.Tensors[i], make([]byte, n))
		}
	}
	damaged, err := formattest.CheckRecords(files)
	return err != nil || len(faults)+len(damaged) > 0
}

// FuzzOpen has any bytes as a file: nothing panics, and what is read is sound.
func FuzzOpen(f *testing.F) {
	f.Add(readFixture(f, "torch1.13/training.pt"))
	f.Add(readFixture(f, "torch2.15/views.pt"))
	for _, name := range []string{"torch1.13/legacy-training.pt", "torch1.13/legacy-views.pt",
		"torch2.15/legacy-types.pt"} {
		f.Add(readFixture(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) { findsFault(b) })
}

// FuzzPickle puts pickles into a sound archive. Reading the file does not panic.
func FuzzPickle(f *testing.F) {
	for _, name := range []string{"torch1.13/training.pt", "torch2.15/views.pt",
		"torch2.15/types.pt"} {
		b := readFixture(f, name)
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			f.Fatal(err)
		}
		var text bytes.Buffer
		file, err := z.Open(strings.TrimSuffix(filepath.Base(name), ".pt") + "/data.pkl")
		if err != nil {
			f.Fatal(err)
		}
		if _, err := text.ReadFrom(file); err != nil {
			f.Fatal(err)
		}
		f.Add(text.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		entries := []entry{{name: "a/data.pkl", data: string(text)}}
		for i, n := range []int{96, 4, 0, 12, 192, 8} {
			entries = append(entries,
				entry{name: fmt.Sprintf("a/data/%d", i), data: strings.Repeat("x", n)})
		}
		findsFault(makeArchive(t, entries...))
	})
}

// TestKind demands that what is due elsewhere, and is a tensor, is called as in Python.
func TestKind(t *testing.T) {
	if _, err := pickle.Get[int64](
		&pickle.Dict{Items: []pickle.Item{{Key: "step", Value: &torchzip.Tensor{}}}},
		"step"); err == nil || err.Error() != "step is a torch.Tensor, not an int" {
		t.Error(err)
	}
	if _, err := pickle.Get[*torchzip.Tensor](
		&pickle.Dict{Items: []pickle.Item{{Key: "w", Value: 0.5}}}, "w"); err == nil ||
		err.Error() != "w is a float, not a torch.Tensor" {
		t.Error(err)
	}
}
