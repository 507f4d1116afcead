// Package formattest holds what the tests of the readers share: checkpoints in a zip beside the
// test, with what is in them according to the library that wrote them, and damage to try on them.
// Its functions that take a test run on the test's goroutine, fail it where they say so or cannot
// go on, and register nothing for cleanup: all files are in memory.
package formattest

import (
	"archive/zip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// What says what is in a checkpoint: for each tensor torch's name of its element type, the shape,
// and its bytes in hex.
type What map[string][3]any

// Load unpacks the zip at a path into memory: a checkpoint, and what is in it by the file
// what.json. It stops the test if the zip cannot be read. Both are the caller's.
func Load(t testing.TB, path string) (fstest.MapFS, What) {
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	dir, what := fstest.MapFS{}, What{}
	for _, e := range z.File {
		r, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == "what.json" {
			err = json.Unmarshal(b, &what)
		} else {
			dir[e.Name] = &fstest.MapFile{Data: b}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, what
}

// torchNames are torch's names of element types.
var torchNames = map[tensor.DType]string{
	tensor.F64: "float64", tensor.F32: "float32", tensor.F16: "float16", tensor.BF16: "bfloat16",
	tensor.I64: "int64", tensor.I32: "int32",
	tensor.I16: "int16", tensor.I8: "int8", tensor.U8: "uint8", tensor.Bool: "bool",
	tensor.C128: "complex128", tensor.C64: "complex64",
	tensor.U16: "uint16", tensor.U32: "uint32", tensor.U64: "uint64", tensor.F8E5M2: "float8_e5m2",
	tensor.F8E4M3: "float8_e4m3fn",
	tensor.F8E8M0: "float8_e8m0fnu", tensor.F8E5M2FNUZ: "float8_e5m2fnuz",
	tensor.F8E4M3FNUZ: "float8_e4m3fnuz",
}

// Compare fails the test unless a checkpoint is sound and holds exactly what was written. A tensor
// that one rank holds goes by its name, a space and its place.
func Compare(t testing.TB, files *format.Files, c *format.Checkpoint, want What) {
	t.Helper()
	for _, f := range c.Check(files) {
		t.Error(f)
	}
	got := What{}
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
		name := s.Name
		if s.Coords != nil {
			name += " " + s.Coords.String()
		}
		got[name] = [3]any{"torch." + torchNames[s.DType], shape, hex.EncodeToString(b)}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
}

// ReadTensor returns the elements of a tensor, packed row-major. It stops the test if they cannot
// be read.
func ReadTensor(t testing.TB, files *format.Files, x *format.Tensor) []byte {
	t.Helper()
	b := make([]byte, x.Bytes())
	if err := files.Read(x, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// Contents returns the element types, shapes and elements of all tensors as texts, by name. It
// stops the test if one cannot be read.
func Contents(t testing.TB, files *format.Files, c *format.Checkpoint) map[string]string {
	t.Helper()
	all := map[string]string{}
	for i := range c.Tensors {
		x := &c.Tensors[i]
		all[x.Name] = fmt.Sprint(x.DType, x.Shape, ReadTensor(t, files, x))
	}
	return all
}

// CheckProofs tries the proofs of the tensors of a checkpoint that is sound, and returns where
// they fail. It leaves out those of more than 1 MiB, and needs no test.
func CheckProofs(files *format.Files, c *format.Checkpoint) (faults []format.Fault, err error) {
	tried := map[*format.Proof]bool{}
	for i := range c.Tensors {
		for _, p := range c.Tensors[i].Proofs {
			if tried[p] || p.Main.Bytes() > 1<<20 {
				continue
			}
			tried[p] = true
			main, model := make([]byte, p.Main.Bytes()), make([]byte, p.Model.Bytes())
			if err := errors.Join(files.Read(&p.Main, main),
				files.Read(&p.Model, model)); err != nil {
				return nil, err
			}
			if n, size := p.FirstDifference(main, model), p.Model.DType.Size(); n >= 0 {
				faults = append(faults, p.FaultAt(n, main[4*n:4*n+4], model[size*n:size*n+size]))
			}
		}
	}
	return faults, nil
}

// CheckRecords compares the records of all archives with their checksums, and returns what is
// damaged. It needs no test; it fails where something cannot be read.
func CheckRecords(files *format.Files) (faults []format.Fault, err error) {
	err = forEachRecord(files, func(file *format.File, r *format.Record) error {
		b := make([]byte, r.To-r.From)
		if err := file.ReadFull(b, r.From); err != nil {
			return err
		}
		if sum := crc32.ChecksumIEEE(b); sum != r.Sum && !r.LacksSum() {
			faults = append(faults, r.SumFault(sum, nil))
		}
		return nil
	})
	return faults, err
}

// forEachRecord calls f with each record of the archives that readers have found. It stops at the
// first error, and returns it.
func forEachRecord(files *format.Files, f func(*format.File, *format.Record) error) error {
	for _, a := range files.Archives() {
		file, err := files.Open(a.File)
		if err != nil {
			return err
		}
		records, err := a.Records(file)
		if err != nil {
			return err
		}
		for i := range records {
			if err := f(file, &records[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// summedBytes reads a sound checkpoint, and returns a function that reports whether a byte of one
// of its files is in a record with a checksum. name is that file; an offset that is not in it
// makes the function panic. It stops the test where read fails.
func summedBytes(t *testing.T, dir fstest.MapFS, name string,
	read func(*format.Files) (*format.Checkpoint, error)) func(int) bool {
	t.Helper()
	files := format.NewFiles(dir)
	if _, err := read(files); err != nil {
		t.Fatal(err)
	}
	is := make([]bool, len(dir[name].Data))
	err := forEachRecord(files, func(_ *format.File, r *format.Record) error {
		for i := r.From; r.File == name && i < r.To && !r.LacksSum(); i++ {
			is[i] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(i int) bool { return is[i] }
}

// CheckDamage cuts each file off at many lengths, takes it away, and flips its bits, in copies of
// dir: nothing panics, and where a file whose name strict accepts is cut, or a bit flipped of what
// has a checksum, reading fails, or Check or CheckRecords finds a fault. places chooses about so
// many of the bytes of a file of some length, as envtest.Places does: 60 lengths, and 300 bits.
func CheckDamage(t *testing.T, places func(length, count int) []int, dir fstest.MapFS,
	read func(*format.Files) (*format.Checkpoint, error),
	strict func(name string) bool) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(dir)) {
		whole := dir[name].Data
		try := func(b []byte) (found bool) {
			copied := maps.Clone(dir)
			copied[name] = &fstest.MapFile{Data: b}
			if b == nil {
				delete(copied, name)
			}
			return !IsSound(copied, read)
		}
		if !try(nil) && strict(name) {
			t.Errorf("%s is missing, and nobody notices", name)
		}
		for _, n := range places(len(whole), 60) {
			if !try(whole[:n:n]) && strict(name) {
				t.Errorf("%s is cut off at byte %d of %d, and nobody notices", name, n, len(whole))
			}
		}
		summed := summedBytes(t, dir, name, read)
		for _, i := range places(len(whole), 300) {
			b := slices.Clone(whole)
			b[i] ^= 1 << (i % 8)
			if !try(b) && summed(i) {
				t.Errorf("a bit of byte %d of %s is flipped, and nobody notices", i, name)
			}
		}
	}
}

// IsSound reads all of a checkpoint, and reports whether there was no error and no fault. Tensors
// that are large because a header says so are not read. It panics where something that Check found
// sound cannot be read. It opens files of dir anew, and needs no test.
func IsSound(dir fstest.MapFS, read func(*format.Files) (*format.Checkpoint, error)) bool {
	files := format.NewFiles(dir)
	c, err := read(files)
	if err != nil {
		return false
	}
	sound := len(c.Check(files)) == 0
	for i := range c.Tensors {
		s := &c.Tensors[i]
		if s.Bytes() > 1<<16 {
			continue
		}
		if err := files.Read(s, make([]byte, s.Bytes())); err != nil {
			if sound {
				panic(fmt.Sprintf("what Check found sound cannot be read: %v", err))
			}
		}
	}
	if sound {
		faults, err := CheckRecords(files)
		sound = err == nil && len(faults) == 0
	}
	if sound {
		faults, err := CheckProofs(files, c)
		if err != nil {
			panic(fmt.Sprintf("what Check found sound cannot be proved or disproved: %v", err))
		}
		sound = len(faults) == 0
	}
	return sound
}
