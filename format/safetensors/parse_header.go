package safetensors

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// This file reads the header of a file in two passes, because it can name more tensors than there
// should be memory for.

// Bounds on what a header makes of its bytes. Headers of 100,000,000 bytes with tensors as there
// are, of few dimensions, stay below them whatever their number.
const (
	maxTexts  = 1 << 16     // number of texts in the metadata
	maxText   = 100_000_000 // bytes of a name, or of a text in the metadata
	maxMemory = 1 << 29

	// Costs are the bytes of memory that a checkpoint takes for a tensor and to check it.
	costTensor    = 264
	costDimension = 24
)

// ScanHeader is ReadHeader for callers that keep tensors in a form of their own: a header can name
// 1.8 million. It calls begin once, with the number of tensors and of their dimensions altogether,
// and then add for each tensor in the order of the header, before it returns. The tensors count
// only when it returns no error; its header has none. begin and add run on the caller's goroutine,
// and r is read there.
func ScanHeader(name string, r io.ReaderAt, size int64, begin func(tensors, dims int),
	add func(Tensor)) (*Header, error) {
	h, err := scanHeader(r, size, begin, add)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", name, err)
	}
	return h, nil
}

// scanHeader is ScanHeader, whose errors do not name the file.
func scanHeader(r io.ReaderAt, size int64, begin func(tensors, dims int),
	add func(Tensor)) (*Header,
	error) {
	n, err := headerLength(r, size)
	if err != nil {
		return nil, err
	}
	// The first pass counts, so that no list has to grow in the second.
	p := parser{scanner: newScanner(r, lengthBytes, lengthBytes+n, maxShown)}
	if err := p.parseHeader(); err != nil {
		return nil, err
	}
	if p.longest > maxText {
		return nil, fmt.Errorf("a text of %d bytes, the limit is %d", p.longest, maxText)
	}
	if p.names+p.textBytes+p.tensors*costTensor+p.dims*costDimension > maxMemory {
		return nil, fmt.Errorf("%d tensors of %d dimensions altogether would take more than %d "+
			"bytes of memory, which is the limit", p.tensors, p.dims, maxMemory)
	}
	p = parser{scanner: newScanner(r, lengthBytes, lengthBytes+n, max(p.longest, maxShown)),
		list: newList(p.tensors, p.names, p.dims), add: add}
	begin(cap(p.list.spans), cap(p.list.shapes))
	if err := p.parseHeader(); err != nil {
		return nil, err
	}
	if err := p.list.checkNames(); err != nil {
		return nil, err
	}
	h := &Header{Metadata: p.metadata, Data: lengthBytes + n}
	return h, p.list.checkSpans(h.Data, size-h.Data)
}

// maxShown is how much is kept of a text that is only counted, which bounds names in errors.
const maxShown = 4096

// A parser reads the JSON of a header. It is for one goroutine and one pass over the header. All of
// its methods read from the file. parseHeader calls add.
type parser struct {
	*scanner
	list *list        // nil = only count
	add  func(Tensor) // called with each tensor of the second pass

	// Counts so far; names is in bytes, and longest is the longest text in bytes.
	tensors, names, dims, longest int
	texts, textBytes              int // number and bytes of the texts in the metadata
	metadata                      map[string]string
}

// A list is what is needed to check the tensors of a header together. The parser fills it, and it
// is for the parser's goroutine. Its methods do not change it, and do no I/O.
type list struct {
	spans  []span
	names  strings.Builder
	ends   []uint32 // end of each name in names
	shapes []int    // dimensions of all shapes, one shape after the other
}

// A span is the data of a tensor, in bytes from the start of the data on.
type span struct{ begin, end int64 }

// newList returns an empty list with room for so many tensors, bytes of names and dimensions.
func newList(tensors, names, dims int) *list {
	l := &list{spans: make([]span, 0, tensors), ends: make([]uint32, 0, tensors),
		shapes: make([]int, 0, dims)}
	l.names.Grow(names)
	return l
}

// nameAt returns the name of tensor i.
func (l *list) nameAt(i int) string {
	from := uint32(0)
	if i > 0 {
		from = l.ends[i-1]
	}
	return l.names.String()[from:l.ends[i]]
}

// sortedIndices returns the indices of the tensors in an order.
func (l *list) sortedIndices(order func(i, j int) int) []uint32 {
	numbers := make([]uint32, len(l.spans))
	for i := range numbers {
		numbers[i] = uint32(i)
	}
	slices.SortFunc(numbers, func(a, b uint32) int { return order(int(a), int(b)) })
	return numbers
}

// checkNames fails when two tensors have one name.
func (l *list) checkNames() error {
	order := l.sortedIndices(func(i, j int) int {
		return strings.Compare(l.nameAt(i), l.nameAt(j))
	})
	for k := 1; k < len(order); k++ {
		if name := l.nameAt(int(order[k])); name == l.nameAt(int(order[k-1])) {
			return fmt.Errorf("the key %q stands twice", name)
		}
	}
	return nil
}

// checkSpans fails unless the tensors fill the data, which begins at offset at of the file and has
// data bytes.
func (l *list) checkSpans(at, data int64) error {
	var end int64
	for _, i := range l.sortedIndices(func(i, j int) int {
		a, b := l.spans[i], l.spans[j]
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end),
			strings.Compare(l.nameAt(i), l.nameAt(j)))
	}) {
		t := l.spans[i]
		switch {
		case t.begin < end:
			return fmt.Errorf("tensor %q: data_offsets [%d,%d] overlap a tensor that ends at %d",
				l.nameAt(int(i)), t.begin, t.end, end)
		case t.begin > end:
			return fmt.Errorf("tensor %q: data_offsets [%d,%d] leave a hole after %d",
				l.nameAt(int(i)), t.begin, t.end, end)
		case t.end > data:
			return fmt.Errorf(
				"tensor %q: data_offsets [%d,%d] in %d bytes of data; the file is cut off",
				l.nameAt(int(i)), t.begin, t.end, data)
		}
		end = t.end
	}
	if end != data {
		return fmt.Errorf("byte %d: %d bytes after the last tensor belong to none", at+end,
			data-end)
	}
	return nil
}

// parseHeader reads all of the header: without a list it only counts, else it adds the tensors.
func (p *parser) parseHeader() error {
	err := p.fill()
	if err != nil && p.at < p.end {
		return err
	}
	if err != nil || p.buf[p.i] != '{' {
		return fmt.Errorf(
			"byte %d: the header does not start with {; the file is of another format", lengthBytes)
	}
	err = p.readObject(func() error {
		p.longest = max(p.longest, p.size)
		if string(p.text) == metadataKey {
			return p.readMetadata()
		}
		if p.list == nil {
			p.tensors, p.names = p.tensors+1, p.names+p.size
			return p.readNamed(string(p.text))
		}
		return p.readNamed(copyText(&p.list.names, p.text))
	})
	if err != nil {
		return err
	}
	return p.expectEnd(" ")
}

// readNamed reads the tensor of a name, which its errors say.
func (p *parser) readNamed(name string) error {
	t := Tensor{Name: name}
	if err := p.readTensor(&t); err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	return nil
}

// readMetadata reads the metadata, and keeps it unless it only counts. null is metadata without
// texts.
func (p *parser) readMetadata() error {
	if p.metadata != nil {
		return p.errorf("the key %q stands twice", metadataKey)
	}
	p.metadata = map[string]string{}
	if c, err := p.peek(); err != nil || c == 'n' {
		return cmp.Or(err, p.skipValue(0))
	}
	return p.readObject(func() error {
		key := string(p.text)
		p.longest, p.textBytes = max(p.longest, p.size), p.textBytes+p.size
		if p.texts++; p.texts > maxTexts {
			return p.errorf("%s has more than %d texts, which is the limit", metadataKey, maxTexts)
		}
		if _, twice := p.metadata[key]; twice && p.list != nil {
			return p.errorf("the key %q stands twice", key)
		}
		if err := p.readString(metadataKey + "." + key); err != nil {
			return err
		}
		p.longest, p.textBytes = max(p.longest, p.size), p.textBytes+p.size
		if p.list != nil {
			p.metadata[key] = string(p.text)
		}
		return nil
	})
}

// fields are the keys of a tensor.
var fields = []string{"dtype", "shape", "data_offsets"}

// readTensor reads the fields of a tensor into t, and adds it to the list, if there is one.
func (p *parser) readTensor(t *Tensor) error {
	var has [3]bool
	count := 0
	err := p.readObject(func() (err error) {
		field := slices.Index(fields, string(p.text))
		switch {
		case field < 0:
			return p.errorf("an unknown field %q", p.shortText())
		case has[field]:
			return p.errorf("the key %q stands twice", fields[field])
		}
		has[field] = true
		count++
		switch field {
		case 0:
			t.DType, err = p.readDType()
		case 1:
			t.Shape, err = p.readShape()
		default:
			t.Begin, t.End, err = p.readOffsets()
		}
		return err
	})
	if err == nil && count != len(fields) {
		err = p.errorf("it takes the fields dtype, shape and data_offsets; there are only %d",
			count)
	}
	if err != nil || p.list == nil {
		return err
	}
	want, err := elementBytes(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if t.End < t.Begin || t.End-t.Begin != want {
		return fmt.Errorf("data_offsets [%d,%d] hold %d bytes, %v elements of shape %v have %d",
			t.Begin, t.End, t.End-t.Begin, t.DType, t.Shape, want)
	}
	l := p.list
	l.spans, l.ends = append(l.spans, span{t.Begin, t.End}), append(l.ends, uint32(l.names.Len()))
	p.add(*t)
	return nil
}

// readDType reads the name of an element type. 0 comes with an error.
func (p *parser) readDType() (tensor.DType, error) {
	if err := p.readString("dtype"); err != nil {
		return 0, err
	}
	for _, t := range dtypes {
		if t.name == string(p.text) {
			return t.dtype, nil
		}
	}
	return 0, p.errorf("an unknown dtype %q", p.shortText())
}

// readShape reads a shape, whose memory is in the list; nil if it only counts.
func (p *parser) readShape() (tensor.Shape, error) {
	from, n := 0, 0
	if p.list != nil {
		from = len(p.list.shapes)
	}
	err := p.readItems('[', ']', func() error {
		x, err := p.readWholeNumber("shape")
		if err != nil {
			return err
		}
		if n++; n > tensor.MaxDims {
			return p.errorf("shape has more than %d dimensions", tensor.MaxDims)
		}
		if int64(int(x)) != x {
			return p.errorf("shape has %d, more than an int can count", x)
		}
		if p.list != nil {
			p.list.shapes = append(p.list.shapes, int(x))
		}
		return nil
	})
	if p.dims += n; err != nil || p.list == nil || n == 0 {
		return nil, err
	}
	return p.list.shapes[from : from+n : from+n], nil
}

// readOffsets reads the two data_offsets of a tensor. They are in bytes.
func (p *parser) readOffsets() (begin, end int64, err error) {
	var at [2]int64
	n := 0
	err = p.readItems('[', ']', func() error {
		x, err := p.readWholeNumber("data_offsets")
		if err != nil {
			return err
		}
		if n == 2 {
			return p.errorf("data_offsets has more than two numbers")
		}
		at[n] = x
		n++
		return nil
	})
	if err == nil && n != 2 {
		err = p.errorf("data_offsets has %d numbers, it takes two", n)
	}
	return at[0], at[1], err
}
