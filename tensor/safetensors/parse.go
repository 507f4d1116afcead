package safetensors

import (
	stdbytes "bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/shoal-ml/shoal/tensor"
)

// reader takes JSON apart token by token: a map would hide a key that stands twice.
type reader struct {
	*json.Decoder
	start int64 // of the JSON in its file
}

func newReader(text []byte, start int64) *reader {
	r := &reader{json.NewDecoder(stdbytes.NewReader(text)), start}
	r.UseNumber()
	return r
}

// errorf is an error with the place of the last token.
func (r *reader) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", r.start+r.InputOffset(), fmt.Errorf(format, args...))
}

func (r *reader) token() (json.Token, error) {
	t, err := r.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, r.errorf("broken JSON: %w", err)
	}
	return t, nil
}

func (r *reader) delim(want json.Delim) error {
	t, err := r.token()
	if err == nil && t != want {
		err = r.errorf("%v where %v is due", t, want)
	}
	return err
}

func (r *reader) text(what string) (string, error) {
	t, err := r.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", r.errorf("%s is %v, which is no string", what, t)
	}
	return s, nil
}

// whole reads a number that is not negative.
func (r *reader) whole(what string) (int64, error) {
	t, err := r.token()
	if err != nil {
		return 0, err
	}
	n, ok := t.(json.Number)
	if !ok {
		return 0, r.errorf("%s has %v, which is no number", what, t)
	}
	x, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil || x < 0 || n[0] == '-' {
		return 0, r.errorf("%s has %v; it takes whole numbers from 0 to 2^63-1", what, n)
	}
	return x, nil
}

// object calls f for each key, with the value still to be read.
func (r *reader) object(f func(key string) error) error {
	if err := r.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for r.More() {
		key, err := r.text("a key")
		if err != nil {
			return err
		}
		if seen[key] {
			return r.errorf("the key %q stands twice", key)
		}
		seen[key] = true
		if err := f(key); err != nil {
			return err
		}
	}
	return r.delim('}')
}

// end demands that behind the JSON there are only characters of the set allowed.
func (r *reader) end(text []byte, allowed string) error {
	rest := stdbytes.TrimLeft(text[r.InputOffset():], allowed)
	if len(rest) > 0 {
		return fmt.Errorf("byte %d: %q behind the JSON", r.start+int64(len(text)-len(rest)), rest[:min(len(rest), 10)])
	}
	return nil
}

// parse reads the JSON of a header.
func parse(text []byte) (*Header, error) {
	if len(text) == 0 || text[0] != '{' {
		return nil, fmt.Errorf("byte %d: the header does not start with {; the file is of another format", lengthBytes)
	}
	if !utf8.Valid(text) {
		return nil, errors.New("the header is not UTF-8")
	}
	h, r := &Header{}, newReader(text, lengthBytes)
	err := r.object(func(key string) (err error) {
		if key == metadataKey {
			h.Metadata, err = r.metadata()
			return err
		}
		t, err := r.tensor(key)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", key, err)
		}
		h.Tensors = append(h.Tensors, t)
		return nil
	})
	if err == nil {
		err = r.end(text, " ")
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (r *reader) metadata() (map[string]string, error) {
	m := map[string]string{}
	err := r.object(func(key string) (err error) {
		m[key], err = r.text(metadataKey + "." + key)
		return err
	})
	return m, err
}

func (r *reader) tensor(name string) (Tensor, error) {
	t, fields := Tensor{Name: name}, 0
	err := r.object(func(key string) (err error) {
		fields++
		switch key {
		case "dtype":
			t.DType, err = r.dtype()
		case "shape":
			err = r.list(key, func(x int64) error {
				if t.Shape = append(t.Shape, int(x)); len(t.Shape) > tensor.MaxDims {
					return r.errorf("shape has more than %d dimensions", tensor.MaxDims)
				}
				if int64(int(x)) != x {
					return r.errorf("shape has %d, more than an int can count", x)
				}
				return nil
			})
		case "data_offsets":
			var at []int64
			err = r.list(key, func(x int64) error {
				if at = append(at, x); len(at) > 2 {
					return r.errorf("data_offsets has more than two numbers")
				}
				return nil
			})
			if err == nil && len(at) != 2 {
				err = r.errorf("data_offsets has %d numbers, it takes two", len(at))
			}
			if err == nil {
				t.Begin, t.End = at[0], at[1]
			}
		default:
			err = r.errorf("an unknown field %q", key)
		}
		return err
	})
	if err == nil && fields != 3 {
		err = r.errorf("it takes the fields dtype, shape and data_offsets; there are only %d", fields)
	}
	return t, err
}

func (r *reader) dtype() (tensor.DType, error) {
	s, err := r.text("dtype")
	if err != nil {
		return 0, err
	}
	for _, t := range dtypes {
		if t.name == s {
			return t.dtype, nil
		}
	}
	return 0, r.errorf("an unknown dtype %q", s)
}

func (r *reader) list(what string, f func(int64) error) error {
	if err := r.delim('['); err != nil {
		return err
	}
	for r.More() {
		x, err := r.whole(what)
		if err != nil {
			return err
		}
		if err := f(x); err != nil {
			return err
		}
	}
	return r.delim(']')
}
