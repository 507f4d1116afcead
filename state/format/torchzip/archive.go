// Package torchzip reads the files that torch.save writes: a zip archive of stored entries with a pickle, and one entry for
// each storage, which is memory that tensors are views of. Nothing of the pickle is run, and no storage is read: a tensor
// comes out as the place of its bytes in the file.
package torchzip

import (
	"archive/zip"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/pickle"
)

const (
	maxDirectory = 256 << 20 // bytes that are read to list the entries
	maxPickle    = 512 << 20
)

// A File is one that torch.save wrote.
type File struct {
	Name string
	Root any // what was saved: values of package pickle, with a *Tensor for each tensor

	archive *archive
}

// archive is the zip around it.
type archive struct {
	file    *format.File
	at, end int64 // in its file
	entries map[string]*zip.File
	folder  string // that all entries lie in
}

// Open reads the pickle of a file. It may mention the globals of torch's tensors, of pickle.Builtins and of more.
func Open(files *format.Files, name string, more pickle.Globals) (*File, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	return OpenAt(files, name, 0, file.Size, more)
}

// OpenAt is Open for a zip archive that is size bytes of a file, from an offset on.
func OpenAt(files *format.Files, name string, at, size int64, more pickle.Globals) (*File, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	f, err := openAt(file, at, size, more)
	if err != nil {
		return nil, fmt.Errorf("torch: %s: %w", name, err)
	}
	files.Found(format.Archive{File: name, From: at, To: at + size, Records: func(file *format.File) ([]format.Record, error) {
		list, err := records(file, at, size)
		if err != nil {
			return nil, fmt.Errorf("torch: %s: %w", name, err)
		}
		return list, nil
	}})
	return f, nil
}

// records lists the entries of an archive. Those that torch wrote after set_crc32_options(False) have the checksum 0.
func records(file *format.File, at, size int64) (list []format.Record, err error) {
	a, err := readDirectory(file, at, size)
	if err != nil {
		return nil, err
	}
	for _, e := range a.entries {
		from, err := a.place(e)
		if err != nil {
			return nil, err
		}
		list = append(list, format.Record{Name: e.Name, File: a.file.Name, From: from, To: from + int64(e.UncompressedSize64), Sum: e.CRC32})
	}
	slices.SortFunc(list, func(x, y format.Record) int { return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To)) })
	for i := 1; i < len(list); i++ {
		if x, y := &list[i-1], &list[i]; y.From < x.To {
			return nil, fmt.Errorf("the entries %q and %q overlap at byte %d", x.Name, y.Name, y.From)
		}
	}
	return list, nil
}

func openAt(file *format.File, at, size int64, more pickle.Globals) (*File, error) {
	a, err := readDirectory(file, at, size)
	if err != nil {
		return nil, err
	}
	if order, err := a.small("byteorder"); err != nil {
		return nil, err
	} else if order != "" && order != "little" {
		return nil, fmt.Errorf("byte order %q; shoal reads little-endian files", order)
	}
	data, offset, err := a.pickle()
	if err != nil {
		return nil, err
	}
	f := &File{Name: file.Name, archive: a}
	f.Root, err = pickle.Load(data, pickle.Options{File: file.Name, Offset: offset, Globals: Globals, More: more, Persistent: f.storage})
	return f, err
}

// budget is a ReaderAt that ends after so many bytes: a directory that lies about its size must not fill the memory.
type budget struct {
	io.ReaderAt
	left int64
}

var errDirectory = fmt.Errorf("the zip directory has more than %d bytes", maxDirectory)

func (b *budget) ReadAt(p []byte, at int64) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errDirectory
	}
	return b.ReaderAt.ReadAt(p, at)
}

// readDirectory lists the entries. It fails on what torch does not write: compressed entries, which could be bombs, and
// names that occur twice or point elsewhere.
func readDirectory(file *format.File, at, size int64) (*archive, error) {
	var magic [4]byte
	if size < int64(len(magic)) {
		return nil, fmt.Errorf("%d bytes are no zip archive", size)
	}
	if err := file.ReadFull(magic[:], at); err != nil {
		return nil, err
	}
	switch {
	case string(magic[:2]) == "\x80\x02":
		return nil, errors.New("it has the form that torch.save wrote before version 1.6; load it there and save it again")
	case string(magic[:]) != "PK\x03\x04":
		return nil, errors.New("it is no zip archive, so torch.save did not write it, or not all of it")
	}
	b := &budget{io.NewSectionReader(file, at, size), maxDirectory}
	z, err := zip.NewReader(b, size)
	if err != nil {
		return nil, fmt.Errorf("the zip directory, which stands at the end: %w; the file is cut off or broken", err)
	}
	a := &archive{file: file, at: at, end: at + size, entries: map[string]*zip.File{}}
	for _, e := range z.File {
		switch {
		case e.Method != zip.Store || e.UncompressedSize64 != e.CompressedSize64 || e.Flags&1 != 0:
			return nil, fmt.Errorf("entry %q is compressed or encrypted; torch stores entries plainly", e.Name)
		case a.entries[e.Name] != nil:
			return nil, fmt.Errorf("entry %q stands twice", e.Name)
		}
		a.entries[e.Name] = e
		if path.Base(e.Name) == "data.pkl" && strings.Count(e.Name, "/") == 1 {
			a.folder = path.Dir(e.Name)
		}
	}
	b.left = maxPickle // for the small entries and the heads of the others
	switch {
	case a.folder == "":
		return nil, errors.New("the zip archive has no data.pkl, so torch.save did not write it")
	case a.entries[a.folder+"/constants.pkl"] != nil:
		return nil, errors.New("it is a TorchScript program; save its state_dict instead")
	}
	return a, nil
}

// place returns where in the file the bytes of an entry lie.
func (a *archive) place(e *zip.File) (int64, error) {
	at, err := e.DataOffset()
	if err != nil {
		return 0, fmt.Errorf("entry %q: %w", e.Name, err)
	}
	if at += a.at; e.UncompressedSize64 > uint64(max(a.end-at, 0)) {
		return 0, fmt.Errorf("entry %q has %d bytes from byte %d on, and the archive ends at %d; the file is cut off or broken", e.Name, e.UncompressedSize64, at, a.end)
	}
	return at, nil
}

// read reads an entry whole, and compares its checksum. archive/zip would refuse entries without one.
func (a *archive) read(e *zip.File, most uint64) ([]byte, int64, error) {
	if e.UncompressedSize64 > most {
		return nil, 0, fmt.Errorf("entry %q has %d bytes, the limit is %d", e.Name, e.UncompressedSize64, most)
	}
	at, err := a.place(e)
	if err != nil {
		return nil, 0, err
	}
	b := make([]byte, e.UncompressedSize64)
	if err := a.file.ReadFull(b, at); err != nil {
		return nil, 0, fmt.Errorf("entry %q: %w", e.Name, err)
	}
	r := format.Record{Name: e.Name, File: a.file.Name, From: at, To: at + int64(len(b)), Sum: e.CRC32}
	if sum := crc32.ChecksumIEEE(b); sum != r.Sum && !r.Bare() {
		return nil, 0, fmt.Errorf("%v; restore the file from another copy", r.Fault(sum, nil).What)
	}
	return b, at, nil
}

// small reads an entry of a few bytes, "" when there is none.
func (a *archive) small(name string) (string, error) {
	e := a.entries[a.folder+"/"+name]
	if e == nil {
		return "", nil
	}
	b, _, err := a.read(e, 1024)
	return strings.TrimSpace(string(b)), err
}

func (a *archive) pickle() ([]byte, int64, error) {
	return a.read(a.entries[a.folder+"/data.pkl"], maxPickle)
}
