package torchzip

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/shoal-ml/shoal/format"
)

// This file reads the directory of the zip archives that torch.save writes.

// maxDirectory bounds the bytes of a directory. Its parsed form takes hardly more; package
// archive/zip takes five times as much, and trusts numbers of entries for which there is no memory.
const maxDirectory = 256 << 20

// What headers have before their names.
const (
	localBytes   = 30
	centralBytes = 46
	endBytes     = 22
	end64Bytes   = 56
	locatorBytes = 20
)

// A directory is the entries of an archive. It is for one goroutine at a time. All of its methods
// but nameOf and find read from the file.
type directory struct {
	file    *format.File
	at, end int64    // range of the archive in its file, in bytes
	names   []byte   // names of all members, one after the other
	members []member // in the order of their names
	buffer  []byte   // memory for one header, which is used again
}

// A member is an entry of an archive.
type member struct {
	from, to uint32 // range of its name in names
	sum      uint32 // CRC-32 of the data; 0 = torch wrote none, or the sum is 0
	size     int64  // bytes of the data
	header   int64  // offset of its local header in the archive
	data     int64  // offset of its data in the file; 0 = not looked up yet
}

// nameOf returns the name of a member.
func (d *directory) nameOf(m *member) string { return string(d.names[m.from:m.to]) }

// find returns the member of a name, or nil.
func (d *directory) find(name string) *member {
	i, found := sort.Find(len(d.members), func(i int) int {
		m := &d.members[i]
		return strings.Compare(name, string(d.names[m.from:m.to]))
	})
	if !found {
		return nil
	}
	return &d.members[i]
}

// dataOffset returns the offset in the file of a member's data, which it reads from the member's
// header once.
func (d *directory) dataOffset(m *member) (int64, error) {
	if m.data == 0 {
		var b [localBytes]byte
		if m.header > d.end-d.at-localBytes {
			return 0, fmt.Errorf("entry %q would begin at byte %d, after the archive", d.nameOf(m),
				d.at+m.header)
		}
		if err := d.file.ReadFull(b[:], d.at+m.header); err != nil {
			return 0, fmt.Errorf("entry %q: %w", d.nameOf(m), err)
		}
		if string(b[:4]) != "PK\x03\x04" {
			return 0, fmt.Errorf("entry %q has no header at byte %d; the file is broken",
				d.nameOf(m),
				d.at+m.header)
		}
		m.data = d.at + m.header + localBytes + int64(binary.LittleEndian.Uint16(b[26:])) +
			int64(binary.LittleEndian.Uint16(b[28:]))
	}
	if m.size > d.end-m.data {
		return 0, fmt.Errorf("entry %q has %d bytes from byte %d on, and the archive ends at "+
			"%d; the file is cut off or broken", d.nameOf(m), m.size, m.data, d.end)
	}
	return m.data, nil
}

// openDirectory reads the directory of an archive of size bytes. It fails on what torch does not
// write: compressed entries, which could be bombs, and repeated names. at is the offset of the
// archive in the file; it blocks on the file.
func openDirectory(file *format.File, at, size int64) (*directory, error) {
	d := &directory{file: file, at: at, end: at + size}
	o, err := d.readEnd()
	if err != nil {
		return nil, fmt.Errorf(
			"the zip directory, which stands at the end: %w; the file is cut off or broken", err)
	}
	most := o.length / centralBytes
	if o.length > maxDirectory || o.exact && o.count > most {
		return nil, fmt.Errorf("the zip directory has %d entries in %d bytes; the limit is %d "+
			"bytes, and no entry has less than %d", o.count, o.length, maxDirectory, centralBytes)
	}
	if o.exact {
		most = o.count
	}
	d.members = make([]member, 0, most)
	d.names = make([]byte, 0, o.length-centralBytes*most)
	in := bufio.NewReaderSize(io.NewSectionReader(file, at+o.from, o.length),
		int(min(o.length, 64<<10)))
	for left := o.length; left > 0; {
		if int64(len(d.members)) == most {
			return nil, fmt.Errorf("the zip directory has more than the %d entries that it says",
				most)
		}
		n, err := d.readMember(in)
		if err != nil {
			return nil, fmt.Errorf("the zip directory, byte %d: %w", at+o.from+o.length-left, err)
		}
		left -= n
	}
	if n := int64(len(d.members)); n != o.count && (o.exact || n%(1<<16) != o.count) {
		return nil, fmt.Errorf("the zip directory has %d entries, and says %d", n, o.count)
	}
	name := func(m *member) []byte { return d.names[m.from:m.to] }
	slices.SortFunc(d.members, func(a, b member) int { return bytes.Compare(name(&a), name(&b)) })
	for i := 1; i < len(d.members); i++ {
		if bytes.Equal(name(&d.members[i-1]), name(&d.members[i])) {
			return nil, fmt.Errorf("entry %q stands twice", name(&d.members[i]))
		}
	}
	return d, nil
}

// An endRecord is what the end of an archive says about its directory.
type endRecord struct {
	from, length int64 // range in the archive, in bytes
	count        int64 // number of entries
	exact        bool  // whether count is exact; else it is modulo 65536
}

var errNoEnd = errors.New("it is missing")

// readEnd finds the record at the end of the archive and reads it.
func (d *directory) readEnd() (o endRecord, err error) {
	tail, i, err := d.readTail()
	if err != nil {
		return o, err
	}
	le, size := binary.LittleEndian, d.end-d.at
	b, end := tail[i:], size-int64(len(tail)-i)
	o = endRecord{count: int64(le.Uint16(b[10:])), length: int64(le.Uint32(b[12:])),
		from: int64(le.Uint32(b[16:]))}
	if i >= locatorBytes && string(tail[i-locatorBytes:i-locatorBytes+4]) == "PK\x06\x07" {
		var wide [end64Bytes]byte
		end = int64(le.Uint64(tail[i-locatorBytes+8:]))
		if end < 0 || end > size-end64Bytes {
			return o, fmt.Errorf("it would end at byte %d", uint64(end))
		}
		if err := d.file.ReadFull(wide[:], d.at+end); err != nil {
			return o, err
		}
		if string(wide[:4]) != "PK\x06\x06" {
			return o, errNoEnd
		}
		o = endRecord{count: int64(le.Uint64(wide[32:])), length: int64(le.Uint64(wide[40:])),
			from: int64(le.Uint64(wide[48:])), exact: true}
	}
	if o.count < 0 || o.length < 0 || o.from < 0 || o.length > end || o.from > end-o.length {
		return o, fmt.Errorf("it would have %d entries in %d bytes from byte %d on, and end at %d",
			uint64(o.count), uint64(o.length), uint64(o.from), end)
	}
	return o, nil
}

// readTail reads the last bytes of the archive, among which its end record begins at i.
func (d *directory) readTail() (tail []byte, i int, err error) {
	size := d.end - d.at
	// there are checkpoints of millions of archives, and hardly any has a comment at its end
	for _, n := range []int64{1 << 10, locatorBytes + endBytes + 1<<16} {
		tail = make([]byte, min(size, n))
		if err := d.file.ReadFull(tail, d.end-int64(len(tail))); err != nil {
			return nil, 0, err
		}
		for i = len(tail) - endBytes; i >= 0; i-- {
			if string(tail[i:i+4]) == "PK\x05\x06" &&
				int(binary.LittleEndian.Uint16(tail[i+20:])) <= len(tail)-i-endBytes {
				break
			}
		}
		if i >= locatorBytes || i >= 0 && int64(len(tail)) == size {
			return tail, i, nil
		}
	}
	return nil, 0, errNoEnd
}

// readMember reads the next header of the directory, adds its member, and returns the length of
// the header. in is the directory; the length is in bytes.
func (d *directory) readMember(in *bufio.Reader) (int64, error) {
	le := binary.LittleEndian
	next := func(n int) ([]byte, error) {
		d.buffer = slices.Grow(d.buffer[:0], n)[:n]
		if _, err := io.ReadFull(in, d.buffer); err != nil {
			return nil, io.ErrUnexpectedEOF
		}
		return d.buffer, nil
	}
	b, err := next(centralBytes)
	if err != nil {
		return 0, err
	}
	if string(b[:4]) != "PK\x01\x02" {
		return 0, errors.New("no header of an entry; the file is broken")
	}
	name, extra, comment := int(le.Uint16(b[28:])), int(le.Uint16(b[30:])), int(le.Uint16(b[32:]))
	plain := le.Uint16(b[10:]) == 0 && le.Uint16(b[8:])&1 == 0
	packed := int64(le.Uint32(b[20:]))
	m := member{from: uint32(len(d.names)), sum: le.Uint32(b[16:]), size: int64(le.Uint32(b[24:])),
		header: int64(le.Uint32(b[42:]))}
	rest, err := next(name + extra + comment)
	if err != nil {
		return 0, err
	}
	d.names = append(d.names, rest[:name]...)
	m.to = uint32(len(d.names))
	if err := readZip64(rest[name:name+extra], &m.size, &packed, &m.header); err != nil {
		return 0, fmt.Errorf("entry %q: %w", rest[:name], err)
	}
	if !plain && bytes.Contains(rest[:name], []byte("/code/")) { // torch.jit.save compresses it
		return 0, errTorchScript
	}
	if !plain || packed != m.size {
		return 0, fmt.Errorf("entry %q is compressed or encrypted; torch stores entries plainly",
			rest[:name])
	}
	d.members = append(d.members, m)
	return int64(centralBytes + len(rest)), nil
}

// readZip64 sets those numbers that do not fit their fields from the extra field of ZIP64.
func readZip64(extra []byte, numbers ...*int64) error {
	var field []byte
	for len(extra) >= 4 {
		n := int(binary.LittleEndian.Uint16(extra[2:]))
		if n > len(extra)-4 {
			break
		}
		if binary.LittleEndian.Uint16(extra) == 1 {
			field = extra[4 : 4+n]
			break
		}
		extra = extra[4+n:]
	}
	for _, x := range numbers {
		if *x != elsewhere32 {
			continue
		}
		if len(field) < 8 {
			return errors.New("its size or place is missing; the file is broken")
		}
		if *x = int64(binary.LittleEndian.Uint64(field)); *x < 0 {
			return fmt.Errorf("its size or place is %d", uint64(*x))
		}
		field = field[8:]
	}
	return nil
}
