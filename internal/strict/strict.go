// Package strict reads JSON that this version wrote, or one that agrees with it to the last field.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// JSON reads text into a value, as json.Unmarshal does. A field that the value does not have is an
// error, as is one in other case or one that stands twice, and so is anything after the value. into
// is a pointer; after an error it may be filled in part. Any goroutine may call it.
func JSON(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	switch err := d.Decode(into); {
	case err == io.EOF:
		return fmt.Errorf("it is empty: %w", err)
	case err == io.ErrUnexpectedEOF:
		return fmt.Errorf("it is cut off: %w", err)
	case err != nil:
		return inWords(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something stands after it")
	}
	return checkKeys(text, reflect.TypeOf(into))
}

// inWords returns an error of json.Decoder as one that speaks of the text, and not of types of Go.
func inWords(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	return errors.New(wrongType(wrong, fmt.Sprintf(" (at byte %d)", wrong.Offset)))
}

// wrongType says which value has another type than its field takes; place, after a space, is where
// in the text it stands.
func wrongType(e *json.UnmarshalTypeError, place string) string {
	where, article := "it", "a"
	if e.Field != "" {
		where = "field " + e.Field
	}
	switch {
	case strings.HasPrefix(e.Value, "number "):
		article = "the"
	case strings.ContainsRune("ao", rune(e.Value[0])):
		article = "an"
	}
	return fmt.Sprintf("%s has %s %s%s, and takes %s", where, article, e.Value, place,
		kindOf(e.Type))
}

// kindOf says in words which JSON a type of Go is read from.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number from 0 on, of up to %d bits", t.Bits())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of up to %d bits", t.Bits())
	}
	return "something else"
}

// Document reads a text as JSON does, which must have this version in its field shoal, as into has.
// Of a text of another kind it says that, and not which fields the two do not share.
func Document(text []byte, version string, into any) error {
	var kind struct {
		Shoal string `json:"shoal"`
	}
	if json.Unmarshal(text, &kind) == nil && kind.Shoal != version {
		return fmt.Errorf("the field shoal is %q, not %q: it is another kind of file, or one of "+
			"another version", kind.Shoal, version)
	}
	return JSON(text, into)
}
