package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"

	kjson "sigs.k8s.io/json"
)

// The template of pods is whatever people write: the schema in install.yaml does not describe it,
// so that the API server takes each. One that is no template must not keep the operator from
// reading the jobs of others, and what nobody knows in it must not get lost without a word.

// plainSpec is a ShoalJobSpec without its methods.
type plainSpec ShoalJobSpec

// UnmarshalJSON implements json.Unmarshaler. What is wrong with the template is no error:
// TemplateFault returns it, and Template has what could be read.
func (s *ShoalJobSpec) UnmarshalJSON(text []byte) error {
	with := struct {
		*plainSpec
		Template json.RawMessage `json:"template"`
	}{plainSpec: (*plainSpec)(s)}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &with); err != nil {
		return err
	}
	s.wrong = nil
	if len(with.Template) == 0 {
		return nil
	}
	unknown, err := kjson.UnmarshalStrict(with.Template, &s.Template)
	if err = errors.Join(append(unknown, err)...); err != nil {
		s.wrong = &wrongTemplate{text: bytes.Clone(with.Template), why: err}
	}
	return nil
}

// MarshalJSON implements json.Marshaler. A template with a fault is written as it was read.
func (s ShoalJobSpec) MarshalJSON() ([]byte, error) {
	if s.wrong == nil {
		return json.Marshal(plainSpec(s))
	}
	return json.Marshal(struct {
		plainSpec
		Template json.RawMessage `json:"template"`
	}{plainSpec(s), s.wrong.text})
}

// wrongTemplate is a template that is none. It does not change.
type wrongTemplate struct {
	text []byte // as people have written it
	why  error
}

// TemplateFault returns what in the template could not be read, or is none of its keys; nil = it is
// right.
func (s *ShoalJobSpec) TemplateFault() error {
	if s.wrong == nil {
		return nil
	}
	return s.wrong.why
}
