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
)

// A scanner tokenizes JSON while it is read, so that only the content of a header is in memory.
type scanner struct {
	in   io.ReaderAt
	at   int64 // offset in the file of the byte after the buffer
	end  int64 // offset in the file of the end of the JSON
	buf  []byte
	i, n int    // unread part of the buffer
	text []byte // last text or number, as far as it is kept
	most int    // bytes of a text that are kept
	size int    // bytes of the last text or number
}

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

func (s *scanner) syntaxError(format string, args ...any) error {
	return s.errorf("broken JSON: %w", fmt.Errorf(format, args...))
}

// fill makes sure that there is a next byte.
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

// peek returns the first byte of the next token.
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

// byte returns the next byte.
func (s *scanner) byte() (byte, error) {
	if err := s.fill(); err != nil {
		return 0, err
	}
	s.i++
	return s.buf[s.i-1], nil
}

// expect consumes a character, and fails for any other.
func (s *scanner) expect(want byte) error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c != want {
		other, err := s.unexpected(c)
		if err != nil {
			return err
		}
		return s.errorf("%s where %c is due", other, want)
	}
	s.i++
	return nil
}

// unexpected consumes a token that begins with c, and returns it for an error.
func (s *scanner) unexpected(c byte) (string, error) {
	switch {
	case c == '"':
		err := s.quoted()
		return strconv.Quote(s.short()), err
	case c == '-' || c >= '0' && c <= '9':
		err := s.number()
		return s.short(), err
	case c >= utf8.RuneSelf:
		return "", s.syntaxError("a character %q outside of a text", c)
	}
	s.i++
	return string(c), nil
}

// short returns the last text or number for an error.
func (s *scanner) short() string {
	if len(s.text) > 200 {
		return string(s.text[:200]) + "…"
	}
	return string(s.text)
}

func (s *scanner) keep(b ...byte) {
	s.size += len(b)
	if room := s.most - len(s.text); room > 0 {
		s.text = append(s.text, b[:min(len(b), room)]...)
	}
}

// number reads a number.
func (s *scanner) number() error {
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
		s.keep(c)
	}
}

// wholeNumber reads a number that is not negative.
func (s *scanner) wholeNumber(what string) (int64, error) {
	c, err := s.peek()
	if err != nil {
		return 0, err
	}
	if c != '-' && (c < '0' || c > '9') {
		other, err := s.unexpected(c)
		if err != nil {
			return 0, err
		}
		return 0, s.errorf("%s has %s, which is no number", what, other)
	}
	if err := s.number(); err != nil {
		return 0, err
	}
	x, good := int64(0), s.size <= 19 && (s.size == 1 || s.text[0] != '0')
	for i := 0; good && i < s.size; i++ {
		c := s.text[i]
		good = c >= '0' && c <= '9'
		x = x*10 + int64(c-'0')
	}
	if !good || x < 0 {
		return 0, s.errorf("%s has %s; it takes whole numbers from 0 to 2^63-1", what, s.short())
	}
	return x, nil
}

// string reads a text.
func (s *scanner) string(what string) error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c != '"' {
		other, err := s.unexpected(c)
		if err != nil {
			return err
		}
		return s.errorf("%s is %s, which is no string", what, other)
	}
	return s.quoted()
}

func (s *scanner) quoted() error {
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
		s.keep(rest[:n]...)
		if s.i += n; s.i == s.n {
			continue
		}
		switch c, _ := s.byte(); {
		case c == '"':
			if s.size == len(s.text) && !utf8.Valid(s.text) {
				return s.errorf("a text is not UTF-8")
			}
			return nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		default:
			return s.syntaxError("a control character %q in a text", c)
		}
	}
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n',
	'r': '\r', 't': '\t'}

// escape reads what follows a backslash. An unpaired surrogate becomes U+FFFD, as in encoding/json.
func (s *scanner) escape() error {
	c, err := s.byte()
	if err != nil {
		return err
	}
	if plain, ok := escapes[c]; ok {
		s.keep(plain)
		return nil
	}
	if c != 'u' {
		return s.syntaxError("an escape %q in a text", c)
	}
	r, err := s.hex()
	for err == nil && utf16.IsSurrogate(r) {
		first := r
		if r = utf8.RuneError; first >= 0xdc00 || s.n-s.i < 2 && s.more(2) != nil ||
			string(s.buf[s.i:s.i+2]) != `\u` {
			break
		}
		s.i += 2
		var second rune
		if second, err = s.hex(); err == nil {
			if r = utf16.DecodeRune(first, second); r == utf8.RuneError {
				s.keep(utf8.AppendRune(nil, r)...)
				r = second
			}
		}
	}
	if err != nil {
		return err
	}
	s.keep(utf8.AppendRune(nil, r)...)
	return nil
}

func (s *scanner) hex() (rune, error) {
	var r rune
	for range 4 {
		c, err := s.byte()
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

// more makes sure that n bytes, a few, are in the buffer.
func (s *scanner) more(n int) error {
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

// object calls f after each key, which is the last text, with the value still to be read.
func (s *scanner) object(f func() error) error {
	return s.items('{', '}', func() error {
		if err := s.string("a key"); err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return f()
	})
}

// items calls f before each item between two brackets.
func (s *scanner) items(open, close byte, f func() error) error {
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

// skip consumes one value.
func (s *scanner) skip(depth int) error {
	c, err := s.peek()
	inner := func() error { return s.skip(depth + 1) }
	switch {
	case err != nil:
		return err
	case depth == maxNested:
		return s.syntaxError("nested more than %d deep", maxNested)
	case c == '{':
		return s.object(inner)
	case c == '[':
		return s.items('[', ']', inner)
	case c == '"':
		return s.quoted()
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		for i := 0; c == word[i]; i++ {
			s.i++
			if i == len(word)-1 {
				return nil
			}
			if err := s.fill(); err != nil {
				return err
			}
			c = s.buf[s.i]
		}
	}
	return s.syntaxError("%q where a value is due", c)
}

// expectEnd fails when anything but the allowed characters follows.
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
			return fmt.Errorf("byte %d: %q behind the JSON", s.offset(), rest)
		}
		s.i++
	}
}

// headerLength reads the length of the header of a file of size bytes.
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
	switch {
	case n > MaxHeader:
		return 0, fmt.Errorf("byte 0: a header of %d bytes, the limit is %d; the file is "+
			"probably of another format", n, MaxHeader)
	case int64(n) > size-lengthBytes:
		return 0, fmt.Errorf("byte 0: a header of %d bytes in a file of %d; the file is cut off", n,
			size)
	}
	return int64(n), nil
}

// copyText copies a text into memory that has room for it.
func copyText(to *strings.Builder, text []byte) string {
	from := to.Len()
	to.Write(text)
	return to.String()[from:]
}
