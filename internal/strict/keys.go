package strict

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// checkKeys returns an error for a key that stands twice in an object of a text, and for one that
// is the name of a field but for its case, which package json takes. text is JSON that was read
// into a value of type t.
func checkKeys(text []byte, t reflect.Type) error {
	s := &keyScan{text: string(text)}
	return s.value(readFrom(t))
}

// keyScan goes over the values of JSON. One goroutine uses it.
type keyScan struct {
	text string
	at   int // index of the byte that comes next
}

// value goes over the next value; t is what readFrom says of the type that it was read into.
func (s *keyScan) value(t reflect.Type) error {
	s.skip(" \t\r\n")
	switch s.text[s.at] {
	case '{':
		return s.object(t)
	case '[':
		return s.list(t)
	case '"':
		s.quoted()
	default: // a number, true, false or null
		if n := strings.IndexAny(s.text[s.at:], ",]} \t\r\n"); n >= 0 {
			s.at += n
		} else {
			s.at = len(s.text)
		}
	}
	return nil
}

// list goes over a list, as value does.
func (s *keyScan) list(t reflect.Type) error {
	var elem reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		elem = readFrom(t.Elem())
	}
	for s.at++; ; {
		s.skip(", \t\r\n")
		if s.text[s.at] == ']' {
			s.at++
			return nil
		}
		if err := s.value(elem); err != nil {
			return err
		}
	}
}

// object goes over an object, as value does.
func (s *keyScan) object(t reflect.Type) error {
	var elem reflect.Type
	var fields map[string]reflect.Type
	if t != nil && t.Kind() == reflect.Map {
		elem = readFrom(t.Elem())
	} else if t != nil && t.Kind() == reflect.Struct {
		fields = fieldsOf(t)
	}
	seen := make(map[string]bool, 8)
	for s.at++; ; {
		s.skip(", \t\r\n")
		if s.text[s.at] == '}' {
			s.at++
			return nil
		}
		key := s.quoted()
		if seen[key] {
			return fmt.Errorf("field %q stands in it twice", key)
		}
		seen[key] = true
		if fields != nil {
			var is bool
			if elem, is = fields[key]; !is {
				return otherCase(key, fields)
			}
		}
		s.skip(": \t\r\n")
		if err := s.value(elem); err != nil {
			return err
		}
	}
}

// otherCase returns the error for a key that package json takes for one of some fields, and that is
// written otherwise than each of them.
func otherCase(key string, fields map[string]reflect.Type) error {
	for name := range fields {
		if strings.EqualFold(name, key) {
			return fmt.Errorf("unknown field %q; write %q", key, name)
		}
	}
	return fmt.Errorf("unknown field %q", key)
}

// skip goes over bytes of a set.
func (s *keyScan) skip(set string) {
	for s.at < len(s.text) && strings.IndexByte(set, s.text[s.at]) >= 0 {
		s.at++
	}
}

// quoted goes over a string, and returns what it stands for.
func (s *keyScan) quoted() string {
	start := s.at
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
	inside := s.text[start+1 : s.at-1]
	if strings.IndexByte(inside, '\\') >= 0 {
		_ = json.Unmarshal([]byte(s.text[start:s.at]), &inside) // it was read once
	}
	return inside
}

// unmarshaler is what types have that read JSON themselves.
var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// readFrom returns the type whose parts are read from the parts of JSON, where a value of type t is
// read; nil = it is not known.
func readFrom(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(unmarshaler) {
		return nil
	}
	return t
}

// knownFields are the results of fieldsOf by type.
var knownFields sync.Map

// fieldsOf returns what readFrom says of the types of the fields of a struct, by the key that each
// has in JSON.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if known, is := knownFields.Load(t); is {
		return known.(map[string]reflect.Type)
	}
	fields := map[string]reflect.Type{}
	addFields(t, fields)
	knownFields.Store(t, fields)
	return fields
}

// addFields adds the fields of a struct, and those of the structs that are embedded in it.
func addFields(t reflect.Type, fields map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := readFrom(f.Type)
		if f.Anonymous && name == "" && inner != nil && inner.Kind() == reflect.Struct {
			addFields(inner, fields)
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields[name] = inner
	}
}
