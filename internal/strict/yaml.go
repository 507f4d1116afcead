package strict

import (
	"encoding/json"
	"errors"
	"strings"

	"sigs.k8s.io/yaml"
)

// YAML reads text into a value, as yaml.UnmarshalStrict does: a field that the value does not have
// is an error, and so is one that comes twice. into is a pointer; after an error it may be filled
// in part. Any goroutine may call it.
func YAML(text []byte, into any) error {
	err := yaml.UnmarshalStrict(text, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return errors.New(wrongType(wrong, ""))
	}
	return errors.New(PlainReason(err))
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
