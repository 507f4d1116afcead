package safetensors

import (
	stdbytes "bytes"
	"encoding/json"
	"fmt"
	"io"
)

// reader takes JSON apart token by token: a map would hide a key that stands twice.
type reader struct{ *json.Decoder }

func newReader(text []byte) *reader {
	r := &reader{json.NewDecoder(stdbytes.NewReader(text))}
	r.UseNumber()
	return r
}

// errorf is an error with the place of the last token.
func (r *reader) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", r.InputOffset(), fmt.Errorf(format, args...))
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
		return fmt.Errorf("byte %d: %q behind the JSON", len(text)-len(rest), rest[:min(len(rest), 10)])
	}
	return nil
}
