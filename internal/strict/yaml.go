package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"

	plain "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// YAML reads text into a value, as yaml.UnmarshalStrict does: a field that the value does not have
// is an error, and so is one in other case or one that comes twice, and so is a second document.
// into is a pointer; after an error it may be filled in part. Any goroutine may call it.
func YAML(text []byte, into any) error {
	err := yaml.UnmarshalStrict(text, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return checkYAML(text, reflect.TypeOf(into))
	case errors.As(err, &wrong):
		return errors.New(wrongType(wrong, ""))
	}
	return errors.New(PlainReason(err))
}

// checkYAML returns an error for what yaml.UnmarshalStrict takes or passes over: a key that is the
// name of a field but for its case, and what comes after the first document. text is YAML that was
// read into a value of type t.
func checkYAML(text []byte, t reflect.Type) error {
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return errors.New(PlainReason(err))
	}
	if err := checkKeys(asJSON, t); err != nil {
		return err
	}
	documents := plain.NewDecoder(bytes.NewReader(text))
	var first, more any
	if err := documents.Decode(&first); errors.Is(err, io.EOF) {
		return nil // there is none
	}
	if err := documents.Decode(&more); more != nil || err != nil && !errors.Is(err, io.EOF) {
		return errors.New("there is more than one document; take out what comes after the line ---")
	}
	return nil
}

// PlainReason returns the text of an error of the YAML package without the layers that it puts
// before what is wrong.
func PlainReason(err error) string {
	msg := err.Error()
	for _, layer := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ",
		"while decoding JSON: ", "json: ", "yaml: ", "unmarshal errors:\n  "} {
		msg = strings.TrimPrefix(msg, layer)
	}
	return msg
}
