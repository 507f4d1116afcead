package move

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/shoal-ml/shoal/state/digest"
)

// The bytes of a journal: what is appended to it, and how it is read. Whoever calls reads and
// writes the file; the functions are pure.

// A Record says that a block is in the target, and with which content. docs/formats/journal.md
// describes its bytes.
type Record struct {
	Block
	Parts []Part
}

// A Block is a range of a region of the target that ops of one depth write.
type Block struct {
	Region   int   // number of the region
	From, To int64 // first byte in the region, and the byte after the last
	Depth    int   // depth of the ops
}

// A Part is what a block holds of a tensor: either elements that no block before it holds, or a
// replica. It is a value.
type Part struct {
	Tensor int        // index in the tensors of the new layout
	First  bool       // whether the elements are not a replica
	Sum    digest.Sum // fingerprint under the key Job.Key
	Shown  digest.Sum // the same under the key Job.Shown; not in the journal
}

// sameSum reports whether two parts are the same elements with the same fingerprint.
func (p Part) sameSum(q Part) bool {
	return p.Tensor == q.Tensor && p.First == q.First && p.Sum == q.Sum
}

// compare orders parts by tensor, elements that are no replica first: below 0 = p comes first.
func (p Part) compare(q Part) int {
	if p.Tensor == q.Tensor && p.First != q.First {
		if p.First {
			return -1
		}
		return 1
	}
	return cmp.Compare(p.Tensor, q.Tensor)
}

// An Identity says which move a journal belongs to: what it reads, what it writes, under which key.
type Identity [sha256.Size]byte

// magic begins a journal.
var magic = []byte("shoal journal/1\n")

// ErrOther says that a journal belongs to another move.
var ErrOther = errors.New("the journal is of another move")

// castagnoli is the polynomial of the checksum of a record.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendHeader appends the beginning of a journal.
func AppendHeader(b []byte, id Identity) []byte { return append(append(b, magic...), id[:]...) }

// AppendRecord appends a record to a journal.
func AppendRecord(b []byte, r Record) []byte {
	var body []byte
	for _, n := range []int64{int64(r.Region), r.From, r.To, int64(r.Depth), int64(len(r.Parts))} {
		body = binary.AppendUvarint(body, uint64(n))
	}
	for _, p := range r.Parts {
		tensor := uint64(p.Tensor) << 1
		if p.First {
			tensor |= 1
		}
		body = binary.AppendUvarint(body, tensor)
		body = binary.LittleEndian.AppendUint64(body, p.Sum.Value)
		body = binary.AppendUvarint(body, p.Sum.Bytes)
	}
	b = append(binary.AppendUvarint(b, uint64(len(body))), body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
}

// ParseJournal reads a journal up to a record that is cut off or damaged, where its writer was
// stopped. It returns how many bytes are good, so that more can be appended after them: 0 where the
// journal ends within its header. The error is ErrOther where it begins otherwise than the journal
// of this move.
func ParseJournal(text []byte, id Identity) (records []Record, good int, err error) {
	header := AppendHeader(nil, id)
	if len(text) < len(header) && bytes.HasPrefix(header, text) {
		return nil, 0, nil
	}
	if !bytes.HasPrefix(text, header) {
		return nil, 0, ErrOther
	}
	good = len(header)
	for {
		r, n := parseRecord(text[good:])
		if n == 0 {
			return records, good, nil
		}
		records, good = append(records, r), good+n
	}
}

// parseRecord returns a record and its length, 0 when there is no complete one.
func parseRecord(text []byte) (r Record, n int) {
	length, skip := binary.Uvarint(text)
	if skip <= 0 || length > uint64(len(text)-skip) || uint64(len(text)-skip)-length < 4 {
		return r, 0
	}
	body, rest := text[skip:skip+int(length)], text[skip+int(length):]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(rest) {
		return r, 0
	}
	d := decoder{body, true}
	r.Region, r.From, r.To, r.Depth = int(d.uvarint()), int64(d.uvarint()), int64(d.uvarint()),
		int(d.uvarint())
	for range d.uvarint() {
		tensor := d.uvarint()
		p := Part{Tensor: int(tensor >> 1), First: tensor&1 == 1}
		p.Sum.Value = d.uint64()
		p.Sum.Bytes = d.uvarint()
		if !d.good {
			break
		}
		r.Parts = append(r.Parts, p)
	}
	if !d.good || len(d.text) > 0 {
		return r, 0
	}
	return r, skip + int(length) + 4
}

// A decoder reads numbers until the text ends; good turns false at the end or at an invalid number.
// It does no I/O and is for one goroutine.
type decoder struct {
	text []byte // what is not read yet
	good bool   // must begin true
}

// uvarint reads a number of up to 2^62 in the form of encoding/binary; 0 where there is none.
func (d *decoder) uvarint() uint64 {
	x, n := binary.Uvarint(d.text)
	if d.good = d.good && n > 0 && x <= 1<<62; !d.good {
		return 0
	}
	d.text = d.text[n:]
	return x
}

// uint64 reads a number of eight bytes, the lowest first; 0 where there is none.
func (d *decoder) uint64() uint64 {
	if d.good = d.good && len(d.text) >= 8; !d.good {
		return 0
	}
	x := binary.LittleEndian.Uint64(d.text)
	d.text = d.text[8:]
	return x
}
