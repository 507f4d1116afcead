package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/shoal-ml/shoal/internal/shorten"
)

// This file reads JSON from a file without having all of it in memory, for headers and indexes.

// A scanner tokenizes JSON while it is read, so that only the content of a header is in memory. It
// is for one goroutine; every method that needs a further byte can read from the file.
type scanner struct {
	in   io.ReaderAt
	at   int64  // offset in the file of the byte after the buffer
	end  int64  // offset in the file of the end of the JSON
	buf  []byte // memory that is read into
	i, n int    // unread part of the buffer
	text []byte // last text or number, as far as it is kept
	most int    // bytes of a text that are kept
	size int    // bytes of the last text or number
}

// newScanner returns a scanner for the JSON from one offset of a file up to end, which keeps at
// most most bytes of a text.
func newScanner(in io.ReaderAt, from, end int64, most int) *scanner {
	return &scanner{in: in, at: from, end: end, buf: make([]byte, 64<<10),
		text: make([]byte, 0, most), most: most}
}

// offset returns the offset in the file of the next byte.
func (s *scanner) offset() int64 { return s.at - int64(s.n-s.i) }

// errorf returns an error with the offset after the last token.
func (s *scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", s.offset(), fmt.Errorf(format, args...))
}

// syntaxError is errorf for text that is no JSON.
func (s *scanner) syntaxError(format string, args ...any) error {
	return s.errorf("broken JSON: %w", fmt.Errorf(format, args...))
}

// fill makes sure that there is a next byte in the buffer: it reads from the file if it is empty.
func (s *scanner) fill() error {
	if s.i < s.n {
		return nil
	}
	if s.at == s.end {
		return s.errorf("broken JSON: %w", io.ErrUnexpectedEOF)
	}
	s.i, s.n = 0, int(min(int64(len(s.buf)), s.end-s.at))
	if err := readFull(s.in, s.buf[:s.n], s.at); err != nil {
		s.n = 0
		return s.errorf("%w", err)
	}
	s.at += int64(s.n)
	return nil
}

// peek skips white space, and returns the first byte of the next token, which it does not consume.
func (s *scanner) peek() (byte, error) {
	for {
		if err := s.fill(); err != nil {
			return 0, err
		}
		switch c := s.buf[s.i]; c {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return c, nil
		}
	}
}

// readByte consumes the next byte and returns it.
func (s *scanner) readByte() (byte, error) {
	if err := s.fill(); err != nil {
		return 0, err
	}
	s.i++
	return s.buf[s.i-1], nil
}

// expect consumes white space and a character, and fails for any other.
func (s *scanner) expect(want byte) error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c != want {
		other, err := s.readUnexpected(c)
		if err != nil {
			return err
		}
		return s.errorf("%s where %c is due", other, want)
	}
	s.i++
	return nil
}

// readUnexpected consumes a token that begins with c, and returns it for an error.
func (s *scanner) readUnexpected(c byte) (string, error) {
	switch {
	case c == '"':
		err := s.readQuoted()
		return strconv.Quote(s.shortText()), err
	case c == '-' || c >= '0' && c <= '9':
		err := s.readNumber()
		return s.shortText(), err
	case wordFrom(c) != "":
		return wordFrom(c), s.readWord(wordFrom(c))
	case c >= utf8.RuneSelf:
		return "", s.syntaxError("a character %q outside of a text", c)
	}
	s.i++
	return string(c), nil
}

// wordFrom returns the value of JSON that is a word and begins with c; "" if none does.
func wordFrom(c byte) string {
	switch c {
	case 't':
		return "true"
	case 'f':
		return "false"
	case 'n':
		return "null"
	}
	return ""
}

// readWord consumes a word, and fails for anything else.
func (s *scanner) readWord(word string) error {
	for i := range len(word) {
		c, err := s.readByte()
		if err != nil {
			return err
		}
		if c != word[i] {
			return s.syntaxError("%q where %s is due", word[:i]+string(rune(c)), word)
		}
	}
	return nil
}

// shortText returns the beginning of the last text or number, for an error.
func (s *scanner) shortText() string { return shorten.Text(string(s.text), 200) }

// appendText appends bytes to the last text or number, as far as it is kept.
func (s *scanner) appendText(b ...byte) {
	s.size += len(b)
	if room := s.most - len(s.text); room > 0 {
		s.text = append(s.text, b[:min(len(b), room)]...)
	}
}

// readNumber reads a number into text.
func (s *scanner) readNumber() error {
	s.text, s.size = s.text[:0], 0
	for {
		if err := s.fill(); err != nil {
			return err
		}
		c := s.buf[s.i]
		if c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' && (c < '0' || c > '9') {
			return nil
		}
		s.i++
		s.appendText(c)
	}
}

// readWholeNumber reads a number that is not negative. what names it in errors.
func (s *scanner) readWholeNumber(what string) (int64, error) {
	c, err := s.peek()
	if err != nil {
		return 0, err
	}
	if c != '-' && (c < '0' || c > '9') {
		other, err := s.readUnexpected(c)
		if err != nil {
			return 0, err
		}
		return 0, s.errorf("%s has %s, which is no number", what, other)
	}
	if err := s.readNumber(); err != nil {
		return 0, err
	}
	x, good := int64(0), s.size <= 19 && (s.size == 1 || s.text[0] != '0')
	for i := 0; good && i < s.size; i++ {
		c := s.text[i]
		good = c >= '0' && c <= '9'
		x = x*10 + int64(c-'0')
	}
	if !good || x < 0 {
		return 0, s.errorf("%s has %s; it takes whole numbers from 0 to 2^63-1", what,
			s.shortText())
	}
	return x, nil
}

// readString reads a text in quotes into text. what names it in errors.
func (s *scanner) readString(what string) error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c != '"' {
		other, err := s.readUnexpected(c)
		if err != nil {
			return err
		}
		return s.errorf("%s is %s, which is no string", what, other)
	}
	return s.readQuoted()
}

// readQuoted reads a text into text; its first quote is the next byte.
func (s *scanner) readQuoted() error {
	s.text, s.size = s.text[:0], 0
	s.i++
	for {
		if err := s.fill(); err != nil {
			return err
		}
		rest := s.buf[s.i:s.n] // a run without escapes
		n := 0
		for n < len(rest) && rest[n] != '"' && rest[n] != '\\' && rest[n] >= ' ' {
			n++
		}
		s.appendText(rest[:n]...)
		if s.i += n; s.i == s.n {
			continue
		}
		switch c, _ := s.readByte(); {
		case c == '"':
			if s.size == len(s.text) && !utf8.Valid(s.text) {
				return s.errorf("a text is not UTF-8")
			}
			return nil
		case c == '\\':
			if err := s.readEscape(); err != nil {
				return err
			}
		default:
			return s.syntaxError("a control character %q in a text", c)
		}
	}
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n',
	'r': '\r', 't': '\t'}

// readEscape reads what follows a backslash, and appends what it stands for to text. An unpaired
// surrogate becomes U+FFFD, as in encoding/json.
func (s *scanner) readEscape() error {
	c, err := s.readByte()
	if err != nil {
		return err
	}
	if plain, ok := escapes[c]; ok {
		s.appendText(plain)
		return nil
	}
	if c != 'u' {
		return s.syntaxError("an escape %q in a text", c)
	}
	r, err := s.readHex()
	for err == nil && utf16.IsSurrogate(r) {
		first := r
		if r = utf8.RuneError; first >= 0xdc00 || s.n-s.i < 2 && s.fillTo(2) != nil ||
			string(s.buf[s.i:s.i+2]) != `\u` {
			break
		}
		s.i += 2
		var second rune
		if second, err = s.readHex(); err == nil {
			if r = utf16.DecodeRune(first, second); r == utf8.RuneError {
				s.appendText(utf8.AppendRune(nil, r)...)
				r = second
			}
		}
	}
	if err != nil {
		return err
	}
	s.appendText(utf8.AppendRune(nil, r)...)
	return nil
}

// readHex reads the four digits of an escape.
func (s *scanner) readHex() (rune, error) {
	var r rune
	for range 4 {
		c, err := s.readByte()
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseUint(string(c), 16, 8)
		if err != nil {
			return 0, s.syntaxError("an escape of %q in a text", c)
		}
		r = r<<4 | rune(n)
	}
	return r, nil
}

var errEnd = errors.New("no more")

// fillTo makes sure that n bytes, a few, are in the buffer. It fails with errEnd where the JSON
// ends before.
func (s *scanner) fillTo(n int) error {
	left := copy(s.buf, s.buf[s.i:s.n])
	take := int(min(int64(len(s.buf)-left), s.end-s.at))
	s.i, s.n = 0, left
	if left+take < n {
		return errEnd
	}
	if err := readFull(s.in, s.buf[left:left+take], s.at); err != nil {
		return err
	}
	s.at, s.n = s.at+int64(take), left+take
	return nil
}

// readObject calls f after each key, which is the last text, with the value still to be read.
func (s *scanner) readObject(f func() error) error {
	return s.readItems('{', '}', func() error {
		if err := s.readString("a key"); err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return f()
	})
}

// readItems calls f before each item between two brackets.
func (s *scanner) readItems(open, close byte, f func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	for first := true; ; first = false {
		c, err := s.peek()
		if err != nil {
			return err
		}
		if c == close {
			s.i++
			return nil
		}
		if !first {
			if err := s.expect(','); err != nil {
				return err
			}
		}
		if err := f(); err != nil {
			return err
		}
	}
}

// maxNested bounds the depth of skipped values.
const maxNested = 100

// skipValue consumes one value, which is nested depth deep.
func (s *scanner) skipValue(depth int) error {
	c, err := s.peek()
	inner := func() error { return s.skipValue(depth + 1) }
	switch {
	case err != nil:
		return err
	case depth == maxNested:
		return s.syntaxError("nested more than %d deep", maxNested)
	case c == '{':
		return s.readObject(inner)
	case c == '[':
		return s.readItems('[', ']', inner)
	case c == '"':
		return s.readQuoted()
	case c == '-' || c >= '0' && c <= '9':
		return s.readNumber()
	case wordFrom(c) != "":
		return s.readWord(wordFrom(c))
	}
	return s.syntaxError("%q where a value is due", c)
}

// expectEnd reads to the end, and fails when anything but the allowed characters follows.
func (s *scanner) expectEnd(allowed string) error {
	for {
		if s.i == s.n && s.at == s.end {
			return nil
		}
		if err := s.fill(); err != nil {
			return err
		}
		if strings.IndexByte(allowed, s.buf[s.i]) < 0 {
			rest := s.buf[s.i:min(s.n, s.i+10)]
			return fmt.Errorf("byte %d: %q after the JSON", s.offset(), rest)
		}
		s.i++
	}
}

// headerLength reads the length of the header of a file of size bytes. It blocks on r.
func headerLength(r io.ReaderAt, size int64) (int64, error) {
	var length [lengthBytes]byte
	if size < lengthBytes {
		return 0, fmt.Errorf("%d bytes are too few even for the length of a header; the file is "+
			"cut off, or of another format", size)
	}
	if err := readFull(r, length[:], 0); err != nil {
		return 0, fmt.Errorf("byte 0: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	whole := n <= uint64(size-lengthBytes)
	switch {
	case n > maxRead && whole && startsObject(r):
		return 0, fmt.Errorf("byte 0: a header of %d bytes, and shoal reads up to %d; save the "+
			"tensors over more files", n, maxRead)
	case n > maxRead:
		return 0, fmt.Errorf("byte 0: a header of %d bytes would be beyond the limit of %d; the "+
			"file is probably of another format", n, maxRead)
	case !whole:
		return 0, fmt.Errorf("byte 0: a header of %d bytes in a file of %d; the file is cut off", n,
			size)
	}
	return int64(n), nil
}

// startsObject reports whether a header starts as it should. It reads the first byte from r.
func startsObject(r io.ReaderAt) bool {
	var first [1]byte
	return readFull(r, first[:], lengthBytes) == nil && first[0] == '{'
}

// copyText appends a text to a builder that has room for it, and returns it in the memory of that.
func copyText(to *strings.Builder, text []byte) string {
	from := to.Len()
	to.Write(text)
	return to.String()[from:]
}
