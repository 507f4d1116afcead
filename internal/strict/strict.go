// Package strict reads JSON that this version wrote, or one that agrees with it to the last field.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// JSON reads text into a value, as json.Unmarshal does. A field that the value does not have is an
// error, and so is anything after it. into is a pointer; after an error it may be filled in part.
// Any goroutine may call it.
func JSON(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	switch err := d.Decode(into); {
	case err == io.EOF:
		return fmt.Errorf("it is empty: %w", err)
	case err == io.ErrUnexpectedEOF:
		return fmt.Errorf("it is cut off: %w", err)
	case err != nil:
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something stands after it")
	}
	return nil
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
