package safetensors

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// This file writes headers. It does no I/O: its functions append to memory of the caller.

// AppendBinary appends the start of the file: the length of the header and the header, Data bytes
// in all. The same tensors and metadata always give the same bytes. It fails on texts that are not
// UTF-8, and on a header that would be too long.
func (h *Header) AppendBinary(b []byte) ([]byte, error) {
	text, err := h.marshal()
	if err != nil {
		return b, err
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(text)))
	return append(b, text...), nil
}

// marshal returns the JSON as the reference implementation writes it, keys of the metadata sorted,
// and padded with spaces so that the data starts at a multiple of eight bytes.
func (h *Header) marshal() ([]byte, error) {
	b := []byte{'{'}
	if h.Metadata != nil {
		b = append(appendQuoted(b, metadataKey), ":{"...)
		for i, key := range slices.Sorted(maps.Keys(h.Metadata)) {
			if value := h.Metadata[key]; !utf8.ValidString(key) || !utf8.ValidString(value) {
				return nil, fmt.Errorf("safetensors: metadata %q: %q is not UTF-8", key, value)
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, key), ':')
			b = appendQuoted(b, h.Metadata[key])
		}
		b = append(b, '}')
	}
	for _, t := range h.Tensors {
		if len(b) > 1 {
			b = append(b, ',')
		}
		if !utf8.ValidString(t.Name) {
			return nil, fmt.Errorf("safetensors: tensor %q: the name is not UTF-8", t.Name)
		}
		b = appendQuoted(b, t.Name)
		b = append(b, `:{"dtype":"`...)
		b = append(b, dtypes[storeOrder(t.DType)].name...)
		b = append(b, `","shape":[`...)
		for i, d := range t.Shape {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(d), 10)
		}
		b = fmt.Appendf(b, `],"data_offsets":[%d,%d]}`, t.Begin, t.End)
	}
	b = append(b, '}')
	for len(b)%lengthBytes != 0 {
		b = append(b, ' ')
	}
	if len(b) > MaxHeader {
		return nil, fmt.Errorf("safetensors: a header of %d bytes, the limit is %d; spread the "+
			"tensors over more files", len(b), MaxHeader)
	}
	return b, nil
}

// appendQuoted appends s, which is UTF-8, in quotes, escaping only what JSON requires.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		default:
			if c < ' ' {
				b = fmt.Appendf(b, `\u%04x`, c)
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}
