package format

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// This file knows the checksums that the files of a checkpoint carry themselves, for whoever
// verifies them. Files is for one goroutine.

// A Record is a range of a file whose checksum stands elsewhere in the file.
type Record struct {
	Name     string
	File     string
	From, To int64  // range in the file, in bytes
	Sum      uint32 // CRC-32 (IEEE); 0 = no checksum
}

// LacksSum reports whether the record has bytes and no checksum, so that damage to it cannot be
// seen.
func (r *Record) LacksSum() bool { return r.Sum == 0 && r.From < r.To }

// An Archive is a range of a file that consists of records.
type Archive struct {
	File     string
	From, To int64 // range in the file, in bytes
	// Records reads the directory from the open file; the result is ordered by offset.
	Records func(*File) ([]Record, error)
}

// An archiveID identifies an archive, which several readers may find.
type archiveID struct {
	file string
	from int64
}

// AddArchive registers an archive that a reader has found, in place of one with the same
// beginning.
func (f *Files) AddArchive(a Archive) { f.archives[archiveID{a.File, a.From}] = a }

// Archives returns the archives that readers have found, by file and offset.
func (f *Files) Archives() []Archive {
	return slices.SortedFunc(maps.Values(f.archives), func(a, b Archive) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.From, b.From))
	})
}

// SumFault says that the record has another checksum, which is sum, and which tensors have
// elements there. It reads nothing.
func (r *Record) SumFault(sum uint32, tensors []string) Fault {
	f := Fault{Name: r.Name, File: r.File, Offset: r.From}
	f.What = fmt.Sprintf(
		"the record %q, bytes %d to %d, is damaged: its checksum is %08x, and the file says %08x",
		r.Name, r.From, r.To, sum, r.Sum)
	if len(tensors) == 0 {
		return f
	}
	f.Name, tensors = tensors[0], tensors[1:]
	if len(tensors) > 0 {
		f.What += fmt.Sprintf("; %q lies there too", tensors[0])
	}
	if len(tensors) > 1 {
		f.What += fmt.Sprintf(", and %d more", len(tensors)-1)
	}
	return f
}
