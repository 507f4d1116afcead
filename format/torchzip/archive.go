// Package torchzip reads the files that torch.save writes: a zip archive of stored entries with a
// pickle, and one entry for each storage, which is memory that tensors are views of. Before torch
// 1.6 the storages stood after the pickle. It runs nothing of the pickle, and reads no storage: a
// tensor is the location of its bytes in the file.
package torchzip

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// maxPickle bounds the bytes of the pickle of a file.
const maxPickle = 512 << 20

// A File is a file that torch.save wrote. Open reads it; later methods do no I/O and do not change
// it. It is for one goroutine at a time, as look-ups in the dicts of Root are.
type File struct {
	Name string
	Root any // what was saved: values of package pickle, with a *Tensor for each tensor

	archive *archive // nil = the form before torch 1.6, which is no archive
}

// An archive is the zip archive of a file. It is for one goroutine at a time. usedRecords does no
// I/O; the others read from the file into new memory, which is the caller's.
type archive struct {
	*directory
	folder string // the folder inside the archive that holds all entries; never ""
}

// Open reads the pickle of a file, and registers its archive in files. The pickle may mention the
// globals of torch's tensors, of pickle.Builtins and of more. It blocks on the file, and is for
// the goroutine of files, which closes it.
func Open(files *format.Files, name string, more pickle.Globals) (*File, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	return OpenAt(files, name, 0, file.Size, more)
}

// OpenAt is Open for what torch.save wrote into size bytes of a file, from an offset on. at and
// size are in bytes.
func OpenAt(files *format.Files, name string, at, size int64, more pickle.Globals) (*File, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	f, err := openAt(file, at, size, more)
	if err != nil {
		return nil, fmt.Errorf("torch: %s: %w", name, err)
	}
	if f.archive == nil {
		return f, nil
	}
	files.AddArchive(format.Archive{File: name, From: at, To: at + size,
		Records: func(file *format.File) ([]format.Record, error) {
			list, err := readRecords(file, at, size)
			if err != nil {
				return nil, fmt.Errorf("torch: %s: %w", name, err)
			}
			return list, nil
		}})
	return f, nil
}

// readRecords lists the entries of an archive, in the order in which they lie there. Those that
// torch wrote after set_crc32_options(False) have the checksum 0. It blocks on the file; offsets
// are bytes of the file.
func readRecords(file *format.File, at, size int64) (list []format.Record, err error) {
	a, err := readDirectory(file, at, size)
	if err != nil {
		return nil, err
	}
	for i := range a.members {
		m := &a.members[i]
		from, err := a.dataOffset(m)
		if err != nil {
			return nil, err
		}
		list = append(list,
			format.Record{Name: a.nameOf(m), File: a.file.Name, From: from, To: from + m.size,
				Sum: m.sum})
	}
	return list, checkOverlap(list)
}

// usedRecords lists the entries whose location was requested. Offsets are bytes of the file.
func (a *archive) usedRecords() (list []format.Record) {
	for i := range a.members {
		if m := &a.members[i]; m.data > 0 {
			list = append(list, format.Record{Name: a.nameOf(m), From: m.data, To: m.data + m.size})
		}
	}
	return list
}

// checkOverlap sorts entries by where they lie, and fails where they share bytes.
func checkOverlap(list []format.Record) error {
	slices.SortFunc(list, func(x, y format.Record) int {
		return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To))
	})
	for i := 1; i < len(list); i++ {
		if x, y := &list[i-1], &list[i]; y.From < x.To {
			return fmt.Errorf("the entries %q and %q overlap at byte %d", x.Name, y.Name, y.From)
		}
	}
	return nil
}

// openAt is OpenAt, whose errors do not name the file.
func openAt(file *format.File, at, size int64, more pickle.Globals) (*File, error) {
	var first [1]byte
	if size > 0 {
		if err := file.ReadFull(first[:], at); err != nil {
			return nil, err
		}
	}
	if first[0] == 0x80 { // a pickle
		return openLegacy(file, at, size, more)
	}
	a, err := readDirectory(file, at, size)
	if err != nil {
		return nil, err
	}
	if order, err := a.readSmall("byteorder"); err != nil {
		return nil, err
	} else if order != "" && order != "little" {
		return nil, fmt.Errorf("byte order %q; shoal reads little-endian files", order)
	}
	data, offset, err := a.readPickle()
	if err != nil {
		return nil, err
	}
	f := &File{Name: file.Name, archive: a}
	if f.Root, err = pickle.Load(data,
		pickle.Options{File: file.Name, Offset: offset, Globals: Globals, More: more,
			Persistent: f.findStorage}); err != nil {
		return nil, err
	}
	return f, checkOverlap(a.usedRecords())
}

// readDirectory reads the directory of an archive of size bytes that begins at an offset of a file,
// and finds what torch has written in it.
func readDirectory(file *format.File, at, size int64) (*archive, error) {
	var magic [4]byte
	if size < int64(len(magic)) {
		return nil, fmt.Errorf("%d bytes are no zip archive", size)
	}
	if err := file.ReadFull(magic[:], at); err != nil {
		return nil, err
	}
	if string(magic[:]) != "PK\x03\x04" {
		return nil, errors.New(
			"it is no zip archive, so torch.save did not write it, or not all of it")
	}
	d, err := openDirectory(file, at, size)
	if err != nil {
		return nil, err
	}
	a := &archive{directory: d}
	for i := range d.members {
		m := &d.members[i]
		folder, found := bytes.CutSuffix(d.names[m.from:m.to], []byte("/data.pkl"))
		if found && !bytes.ContainsRune(folder, '/') {
			if a.folder != "" {
				return nil, fmt.Errorf("it has two pickles, %s/data.pkl and %s/data.pkl, and "+
					"programs differ on which counts; torch writes one", a.folder, folder)
			}
			a.folder = string(folder)
		}
	}
	switch {
	case a.folder == "":
		return nil, errors.New("the zip archive has no data.pkl, so torch.save did not write it")
	case a.find(a.folder+"/constants.pkl") != nil:
		return nil, errTorchScript
	}
	return a, nil
}

// errTorchScript says that an archive is a program, which torch.jit.save has written.
var errTorchScript = errors.New("it is a TorchScript program; save its state_dict instead")

// readEntry reads a whole entry of up to most bytes, and compares its checksum. It returns the
// offset of the data in the file too.
func (a *archive) readEntry(m *member, most int64) ([]byte, int64, error) {
	if m.size > most {
		return nil, 0, fmt.Errorf("entry %q has %d bytes, the limit is %d", a.nameOf(m), m.size,
			most)
	}
	at, err := a.dataOffset(m)
	if err != nil {
		return nil, 0, err
	}
	b := make([]byte, m.size)
	if err := a.file.ReadFull(b, at); err != nil {
		return nil, 0, fmt.Errorf("entry %q: %w", a.nameOf(m), err)
	}
	r := format.Record{Name: a.nameOf(m), File: a.file.Name, From: at, To: at + m.size, Sum: m.sum}
	if sum := crc32.ChecksumIEEE(b); sum != r.Sum && !r.LacksSum() {
		return nil, 0, fmt.Errorf("%v; restore the file from another copy",
			r.SumFault(sum, nil).What)
	}
	return b, at, nil
}

// readSmall reads an entry of a few bytes as a text, "" when there is none.
func (a *archive) readSmall(name string) (string, error) {
	m := a.find(a.folder + "/" + name)
	if m == nil {
		return "", nil
	}
	b, _, err := a.readEntry(m, 1024)
	return strings.TrimSpace(string(b)), err
}

// readPickle reads the pickle of the file, and returns its offset in the file too.
func (a *archive) readPickle() ([]byte, int64, error) {
	return a.readEntry(a.find(a.folder+"/data.pkl"), maxPickle)
}
