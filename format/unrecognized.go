package format

import (
	"bytes"
	"fmt"
)

// This file explains why a file is none of a checkpoint, for all readers.

// others lists how files of other formats begin, and what to do with them.
var others = []struct{ begin, is string }{
	{"GGUF", "is a file of GGUF, in which llama.cpp has models, mostly quantized; give shoal the " +
		"model from which it was made"},
	{"\x89HDF\r\n", "is a file of HDF5, as Keras writes them; save the model as safetensors"},
	{"\x93NUMPY", "is an array of NumPy; save a dict of arrays with safetensors.numpy.save_file"},
	{"\x1f\x8b", "is compressed with gzip; decompress it first"},
	{"\x28\xb5\x2f\xfd", "is compressed with Zstandard; decompress it first"},
	{"\xfd7zXZ\x00", "is compressed with xz; decompress it first"},
	{"\x00\x05\x16\x07", "is what macOS keeps beside a file for its attributes; give the file " +
		"itself, whose name has no ._ in front"},
}

// ExplainLast reads the beginning of the file that was opened last, and says what it is, if it is
// something that often lies where a checkpoint should be: an empty file, zeros, a Git LFS pointer,
// the error page of a server, or a file of another format. Readers that fail ask it, because their
// own errors would describe only the symptom. It returns nil if the file can belong to a
// checkpoint. It is for the goroutine of f.
func (f *Files) ExplainLast() error {
	file := f.open[f.last]
	if file == nil {
		return nil
	}
	if file.Size == 0 {
		return fmt.Errorf(
			"%s is empty: it was not written to its end, or not copied; copy it again", file.Name)
	}
	head := make([]byte, min(file.Size, 200))
	if file.ReadFull(head, 0) != nil {
		return nil
	}
	for _, o := range others {
		if bytes.HasPrefix(head, []byte(o.begin)) {
			return fmt.Errorf("%s %s", file.Name, o.is)
		}
	}
	if len(head) >= 8 && len(bytes.Trim(head, "\x00")) == 0 {
		return fmt.Errorf("%s begins with zeros: it was not written to its end; copy it again, "+
			"or run again what writes it", file.Name)
	}
	if bytes.HasPrefix(head, []byte("version https://git-lfs.github.com/spec/")) {
		return fmt.Errorf(
			"%s is a Git LFS pointer, not the file: run git lfs pull where it was cloned",
			file.Name)
	}
	head = bytes.ToLower(bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n"))
	for _, start := range []string{"<!doctype", "<html", "<?xml"} {
		if bytes.HasPrefix(head, []byte(start)) {
			return fmt.Errorf("%s is a page of a server, not the file, which was not found "+
				"there or is for some to read only: open it to see, and download the file again",
				file.Name)
		}
	}
	return nil
}
