package torchzip_test

// This file tests directories of archives that are made here byte by byte.
import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// endRecord64 returns the end of an archive whose directory has so many entries and bytes, and
// begins at a place. It is ZIP64's; at is where the record lies.
func endRecord64(entries, bytes, from, at uint64) []byte {
	le := binary.LittleEndian
	b := append(le.AppendUint64([]byte("PK\x06\x06"), 44), make([]byte, 12)...)
	for _, n := range []uint64{entries, entries, bytes, from} {
		b = le.AppendUint64(b, n)
	}
	b = le.AppendUint64(append(b, 'P', 'K', 6, 7, 0, 0, 0, 0), at)
	b = append(b, 1, 0, 0, 0, 'P', 'K', 5, 6, 0, 0, 0, 0)
	return append(b, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00"...)
}

// centralHeader returns the header in a directory of an empty entry that begins with the archive.
func centralHeader(name string) string {
	b := append([]byte("PK\x01\x02"), make([]byte, 42)...)
	binary.LittleEndian.PutUint16(b[28:], uint16(len(name)))
	return string(b) + name
}

// TestDirectoryLies reads archives whose end says what cannot be. The error says what is wrong.
func TestDirectoryLies(t *testing.T) {
	const one = "PK\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x0a\x00\x00\x00a/data.pkl"
	for _, c := range []struct {
		name, directory      string
		entries, bytes, from int
		want                 string
	}{
		{"more entries than bytes", centralHeader("a/data.pkl"), 1 << 40, 56, len(one),
			"1099511627776 entries in 56 bytes"},
		{"fewer entries", centralHeader("a/data.pkl") + centralHeader("b"), 1, 103, len(one),
			"more than the 1 entries"},
		{"more entries", centralHeader("a/data.pkl") + centralHeader("b") + strings.Repeat(" ", 46),
			3, 149,
			len(one), "byte 143: no header of an entry"},
		{"an entry cut off", centralHeader("a/data.pkl"), 1, 50, len(one), "unexpected EOF"},
		{"bytes that are none", centralHeader("a/data.pkl"), 1, 1 << 62, len(one),
			"the file is cut off or broken"},
		{"a place that is none", centralHeader("a/data.pkl"), 1, 56, -1,
			"the file is cut off or broken"},
		{"a name twice", centralHeader("a/data.pkl") + centralHeader("a/data.pkl"), 2, 112,
			len(one),
			`"a/data.pkl" stands twice`},
		{"a size that is missing",
			strings.Replace(centralHeader("a/data.pkl"), "\x00\x00\x00\x00\x0a\x00",
				"\xff\xff\xff\xff\x0a\x00", 1), 1, 56, len(one), "size or place is missing"},
		{"no pickle", centralHeader("a/data.pkl"), 1, 56, len(one),
			"1 bytes are due and 0 are left"},
	} {
		file := one + c.directory
		file += string(endRecord64(uint64(c.entries), uint64(c.bytes), uint64(c.from),
			uint64(len(file))))
		if _, _, err := openBytes([]byte(file)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

// vast is a folder with the one file vast.pt, of size bytes that are 0, but for its beginning and
// end. Its methods are those of fs.FS and fs.FileInfo, and do no I/O.
type vast struct {
	size       int64
	begin, end string
}

func (v *vast) Open(string) (fs.File, error)     { return &vastFile{v}, nil }
func (v *vast) Stat(string) (fs.FileInfo, error) { return v, nil }
func (v *vast) Name() string                     { return "vast.pt" }
func (v *vast) Size() int64                      { return v.size }
func (v *vast) Mode() fs.FileMode                { return 0o666 }
func (v *vast) ModTime() time.Time               { return time.Time{} }
func (v *vast) IsDir() bool                      { return false }
func (v *vast) Sys() any                         { return nil }

// vastFile is that file, open.
type vastFile struct{ *vast }

func (v *vastFile) Stat() (fs.FileInfo, error) { return v.vast, nil }
func (v *vastFile) Read([]byte) (int, error)   { return 0, io.EOF }
func (v *vastFile) Close() error               { return nil }

// ReadAt fills b with the beginning and the end of the file, and zeros between.
func (v *vastFile) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	if at < int64(len(v.begin)) {
		copy(b, v.begin[at:])
	}
	if behind := v.size - int64(len(v.end)) - at; behind >= 0 && behind < int64(len(b)) {
		copy(b[behind:], v.end)
	} else if behind < 0 {
		copy(b, v.end[-behind:])
	}
	return len(b), nil
}

// TestVastFile has a file that is hardly there, of a TiB, say that it has as many entries as there
// would be room for. It is refused by the limit for a directory.
func TestVastFile(t *testing.T) {
	const size = 1 << 40
	v := &vast{size: size, begin: "PK\x03\x04"}
	v.end = string(endRecord64(size/100, size/2, 4, size-98))
	if _, err := torchzip.Read(format.NewFiles(v), "vast.pt"); err == nil ||
		!strings.Contains(err.Error(), "the limit is 268435456 bytes") {
		t.Error(err)
	}
}

// TestMemoryOfDirectories reads a directory of as many entries as fit in 64 MiB, and counts all
// that the reader takes for it, also what it has given back.
func TestMemoryOfDirectories(t *testing.T) {
	b := []byte("PK\x03\x04" + strings.Repeat("\x00", 22) + "\x0a\x00\x00\x00a/data.pkl\x80\x02}.")
	header := []byte(centralHeader("a/data.pkl"))
	binary.LittleEndian.PutUint32(header[20:], 4)
	binary.LittleEndian.PutUint32(header[24:], 4)
	from, n := len(b), 1
	b = append(b, header...)
	for ; len(b) < 64<<20; n++ {
		b = append(b, centralHeader(fmt.Sprintf("%x", n))...)
	}
	b = append(b, endRecord64(uint64(n), uint64(len(b)-from), uint64(from), uint64(len(b)))...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := torchzip.Read(format.NewFiles(fstest.MapFS{"many.pt": {Data: b}}), "many.pt")
	runtime.ReadMemStats(&after)
	if err != nil || len(c.Tensors) > 0 {
		t.Fatal(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 80<<20 {
		t.Errorf("%d entries of %d bytes: the reader took %d bytes altogether", n, len(b), took)
	}
}
