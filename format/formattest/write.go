package formattest

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/tensor"
)

// This file writes what a format has laid out, so that its test can read it again. Its functions
// run on the test's goroutine, stop the test when they cannot go on, and register nothing for
// cleanup: all files are in memory.

// WriteOutput writes an output into memory, with the elements of another checkpoint, which has the
// same tensors, and fails the test unless every byte is written once.
func WriteOutput(t testing.TB, o *format.Output, from *format.Checkpoint,
	files *format.Files) fstest.MapFS {
	t.Helper()
	w := writeAll(t, o, from, files)
	for name, done := range w.done {
		if i := slices.Index(done, false); i >= 0 {
			t.Errorf("nothing is written to byte %d of %s", i, name)
		}
	}
	return w.dir
}

// WritePaddedOutput is WriteOutput for an output with padding, to which nothing is written: it
// stays zero.
func WritePaddedOutput(t testing.TB, o *format.Output, from *format.Checkpoint,
	files *format.Files) fstest.MapFS {
	t.Helper()
	return writeAll(t, o, from, files).dir
}

// writeAll writes all frames, elements and checksums of an output, and demands that no byte is
// written twice. files are those of from.
func writeAll(t testing.TB, o *format.Output, from *format.Checkpoint,
	files *format.Files) *writer {
	t.Helper()
	w := &writer{t, fstest.MapFS{}, map[string][]bool{}}
	for _, f := range o.Files {
		w.dir[f.Name], w.done[f.Name] = &fstest.MapFile{Data: make([]byte, f.Size)},
			make([]bool, f.Size)
	}
	for _, f := range o.Frames {
		w.writeBytes(f.File, f.Offset, f.Bytes)
	}
	for i := range o.Tensors {
		s := &o.Tensors[i]
		j := slices.IndexFunc(from.Tensors, func(x format.Tensor) bool { return x.Name == s.Name })
		if j < 0 {
			t.Fatalf("there is no tensor %q", s.Name)
		}
		whole := make([]byte, s.Bytes())
		if err := files.Read(&from.Tensors[j], whole); err != nil {
			t.Fatal(err)
		}
		size := s.DType.Size()
		for _, p := range slices.Concat(s.Pieces, s.Replicas) {
			for run := range tensor.Runs(p.Box, s.Shape.View(), p.View()) {
				w.writeBytes(p.File, p.Offset+int64(run.B*size),
					whole[run.A*size:(run.A+run.N)*size])
			}
		}
	}
	for _, s := range o.Sums {
		sum := crc32.ChecksumIEEE(w.dir[s.File].Data[s.From:s.To])
		for _, at := range s.At {
			w.writeBytes(s.File, at, binary.LittleEndian.AppendUint32(nil, sum))
		}
	}
	return w
}

// A writer is the files of an output while writeAll fills them in. It is for the goroutine of the
// test t.
type writer struct {
	t    testing.TB
	dir  fstest.MapFS      // the files, of their final sizes
	done map[string][]bool // by file, for each byte whether it is written
}

// writeBytes copies b to an offset of a file in memory, and records that these bytes are written.
// It stops the test where one is written already.
func (w *writer) writeBytes(name string, at int64, b []byte) {
	done := w.done[name][at:]
	for i := range b {
		if done[i] {
			w.t.Fatalf("byte %d of %s is written twice", at+int64(i), name)
		}
		done[i] = true
	}
	copy(w.dir[name].Data[at:], b)
}
