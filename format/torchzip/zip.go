package torchzip

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/shoal-ml/shoal/format"
)

// This file lays out zip archives as torch.save writes them, as parts of an output. It does no
// I/O.

// alignment is the alignment of each entry's data in its file, as torch has it.
const alignment = 64

// An entry is an entry of an archive that is to be written: bytes, or the size of elements that
// others write. Its methods do not change it, and return new memory. It is for one goroutine: that
// which lays out the archive, and fills it in.
type entry struct {
	name  string
	bytes []byte // the data; nil = elements that others write
	size  int64  // size of the data of an entry whose bytes are nil

	at     int64   // offset of the data in the archive
	header int64   // offset of the local header in the archive
	sums   []int64 // offsets in the file of the checksum of elements, once in each header
}

// dataBytes returns the size of the data, in bytes.
func (e *entry) dataBytes() int64 {
	if e.bytes != nil {
		return int64(len(e.bytes))
	}
	return e.size
}

// layoutZip lays an archive of stored entries out in a file, from base on, and adds to the output
// all but the data of the entries without bytes, and their checksums. It sets at, header and sums
// of the entries, and returns the size of the archive. Sizes beyond 4 GiB take the form of ZIP64.
func layoutZip(o *format.Output, file string, base int64, entries []*entry) int64 {
	w := framer{output: o, file: file, at: base}
	for _, e := range entries {
		e.header = w.at - base
		w.addHeader(e, e.localHeader(base), 14)
		e.at = w.at - base
		if e.bytes != nil {
			w.appendBytes(e.bytes)
		} else {
			w.endFrame(e.size)
		}
	}
	directory := w.at - base
	for _, e := range entries {
		w.addHeader(e, e.directoryHeader(), 16)
	}
	w.appendBytes(endOfDirectory(len(entries), directory, w.at-base-directory))
	w.endFrame(0)
	for _, e := range entries {
		if e.bytes == nil {
			o.Sums = append(o.Sums,
				format.Sum{File: file, From: base + e.at, To: base + e.at + e.size, At: e.sums})
		}
	}
	return w.at - base
}

// A framer adds bytes that are not elements to an output, in frames as long as possible: there are
// checkpoints of so many small archives that frames are most of the memory. It is for one
// goroutine, and writes no file.
type framer struct {
	output *format.Output
	file   string
	at     int64  // offset in the file of what comes next
	bytes  []byte // bytes before at that are in no frame yet
}

// appendBytes appends bytes to the frame under way, of which it keeps a copy.
func (w *framer) appendBytes(b []byte) {
	w.bytes = append(w.bytes, b...)
	w.at += int64(len(b))
}

// endFrame ends the frame under way, adds it to the output, and leaves the next n bytes of the file
// to others.
func (w *framer) endFrame(n int64) {
	if len(w.bytes) > 0 {
		w.output.Frames = append(w.output.Frames,
			format.Frame{File: w.file, Offset: w.at - int64(len(w.bytes)),
				Bytes: bytes.Clone(w.bytes)})
		w.bytes = w.bytes[:0]
	}
	w.at += n
}

// addHeader adds one of the headers of an entry. Where the checksum is not known yet, it is left
// out: four bytes of the header, from hole on, whose offset it adds to the entry's sums.
func (w *framer) addHeader(e *entry, b []byte, hole int) {
	if e.bytes != nil {
		w.appendBytes(b)
		return
	}
	w.appendBytes(b[:hole])
	e.sums = append(e.sums, w.at)
	w.endFrame(4)
	w.appendBytes(b[hole+4:])
}

// What marks a number that stands in the extra field of ZIP64 instead.
const (
	elsewhere32 = 0xffffffff
	elsewhere16 = 0xffff
)

// narrowSize returns n for a field of 32 bits, or the mark where n does not fit.
func narrowSize(n int64) uint32 {
	if n >= elsewhere32 {
		return elsewhere32
	}
	return uint32(n)
}

// zip64Field returns the extra field of ZIP64 with the numbers that do not fit their fields.
func zip64Field(numbers ...int64) []byte {
	var b []byte
	for _, n := range numbers {
		if n >= elsewhere32 {
			b = binary.LittleEndian.AppendUint64(b, uint64(n))
		}
	}
	if b == nil {
		return nil
	}
	return append(binary.LittleEndian.AppendUint16([]byte{1, 0}, uint16(len(b))), b...)
}

// commonFields returns what the local header and the one in the directory share, from the version
// on; the checksum of elements is left 0. extra is the length of the extra field, in bytes.
func (e *entry) commonFields(extra int) []byte {
	le := binary.LittleEndian
	b := []byte{45, 0, 0, 8, 0, 0, 0, 0, 0x21, 0} // version 4.5; UTF-8 names; stored; 1980-01-01
	b = le.AppendUint32(b, crc32.ChecksumIEEE(e.bytes))
	b = le.AppendUint32(b, narrowSize(e.dataBytes()))
	b = le.AppendUint32(b, narrowSize(e.dataBytes()))
	b = le.AppendUint16(b, uint16(len(e.name)))
	return le.AppendUint16(b, uint16(extra))
}

// localHeader returns the header that precedes the data, and fills up to its alignment with an
// extra field that readers skip. base is the offset of the archive in its file.
func (e *entry) localHeader(base int64) []byte {
	extra := zip64Field(e.dataBytes(), e.dataBytes())
	const fixed, head = 30, 4
	start := base + e.header + fixed + int64(len(e.name)+len(extra)) + head
	padding := int((alignment - start%alignment) % alignment)
	extra = append(append(extra, 'F', 'B', byte(padding), 0), make([]byte, padding)...)
	b := append([]byte{'P', 'K', 3, 4}, e.commonFields(len(extra))...)
	return append(append(b, e.name...), extra...)
}

// directoryHeader returns the header of the entry in the directory.
func (e *entry) directoryHeader() []byte {
	extra := zip64Field(e.dataBytes(), e.dataBytes(), e.header)
	b := append([]byte{'P', 'K', 1, 2, 45, 0}, e.commonFields(len(extra))...)
	b = append(b, make([]byte, 10)...) // no comment, the first disk, no attributes
	b = binary.LittleEndian.AppendUint32(b, narrowSize(e.header))
	return append(append(b, e.name...), extra...)
}

// endOfDirectory returns the end of an archive in both forms, so that no number has to fit the
// short one. at and size are those of the directory, in bytes of the archive.
func endOfDirectory(entries int, at, size int64) []byte {
	le := binary.LittleEndian
	b := append([]byte{'P', 'K', 6, 6}, le.AppendUint64(nil, 44)...)
	b = append(b, 45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	for _, n := range []int64{int64(entries), int64(entries), size, at} {
		b = le.AppendUint64(b, uint64(n))
	}
	b = append(b, 'P', 'K', 6, 7, 0, 0, 0, 0)
	b = le.AppendUint64(b, uint64(at+size))
	b = append(b, 1, 0, 0, 0, 'P', 'K', 5, 6, 0, 0, 0, 0)
	count := uint16(min(entries, elsewhere16))
	b = le.AppendUint16(le.AppendUint16(b, count), count)
	b = le.AppendUint32(le.AppendUint32(b, narrowSize(size)), narrowSize(at))
	return append(b, 0, 0)
}
