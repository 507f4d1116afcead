// Package strict reads JSON that this version wrote, or one that agrees with it to the last field.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// JSON reads text into a value, as json.Unmarshal does. A field that the value does not have is an
// error, and so is anything after it. into is a pointer; after an error it may be filled in part.
// Any goroutine may call it.
func JSON(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something stands after it")
	}
	return nil
}
