package head

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/member"
)

// The kinds of messages and of bodies, each known by the name of its type. docs/formats/hosts.md lists them.
var (
	messages = []any{member.Prepare{}, member.Accept{}, member.Promise{}, member.Accepted{}, member.Refused{}, member.Decision{}, Frame{}}
	upward   = []any{Report{}, Posted{}, Began{}, Asked{}, Ended{}, Executed{}, Stated{}, WantsGroup{}, Cut{}}
	downward = []any{Snapshot{}, Begin{}, Exec{}, Drops{}, Commit{}, Starts{}, Stops{}, Groups{}, Refuses{}, Leaves{}, Ends{}, Decides{}}
)

// Encode brings a message to bytes: JSON, as docs/formats/hosts.md has it. Memory of calls and errors as values stay behind.
func Encode(m Message) []byte {
	var v any = m
	switch m := m.(type) {
	case Ask:
		v = m.Ask
	case Answer:
		v = m.Answer
	}
	b, err := json.Marshal(forms.choice(messageType).pack(reflect.ValueOf(v)).Interface())
	if err != nil {
		panic("head: a message that is no JSON: " + err.Error())
	}
	return b
}

// Decode is the inverse of Encode. It fails for what no agent of this version sends, so that nothing from a link can make an agent index
// out of range or allocate beyond reason.
func Decode(b []byte) (Message, error) {
	f := forms.choice(messageType)
	w := reflect.New(f.wire)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(w.Interface()); err != nil {
		return nil, fmt.Errorf("a message between agents that cannot be read: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("a message between agents with something behind it")
	}
	v, err := f.unpack(w.Elem())
	if err != nil {
		return nil, fmt.Errorf("a message between agents that cannot be: %w", err)
	}
	switch v := v.Interface().(type) {
	case member.Ask:
		return Ask{v}, nil
	case member.Answer:
		return Answer{v}, nil
	case Frame:
		return v, nil
	}
	panic("head: a kind of message without a type")
}

// form is how the values of a type are written: as values of another type, wire, that encoding/json knows how to name. It has what is
// embedded in place, keys in lower case, and leaves out what is zero. So the types of the protocol need not know of JSON.
type form struct {
	real, wire reflect.Type
	paths      [][]int // of a struct: where the fields of wire are in real
	inside     [][]int // of a struct: where other structs are embedded in real
	elem       *form   // of a slice or a pointer
	parts      []*form // by field of wire: of a struct what they are; of an interface what they may be, one being set
}

type formSet map[reflect.Type]*form

var (
	messageType = reflect.TypeFor[Message]()
	bodyType    = reflect.TypeFor[Body]()
	forms       = makeForms()
)

func makeForms() formSet {
	set := formSet{}
	set.addChoice(bodyType, append(append([]any{}, upward...), downward...))
	set.addChoice(messageType, messages)
	return set
}

func (set formSet) choice(t reflect.Type) *form { return set[t] }

// addChoice makes the form of an interface: an object whose one key names the kind.
func (set formSet) addChoice(t reflect.Type, kinds []any) {
	f := &form{real: t}
	var fields []reflect.StructField
	for _, k := range kinds {
		kind := reflect.TypeOf(k)
		part := set.add(reflect.PointerTo(kind))
		f.parts = append(f.parts, part)
		fields = append(fields, field(kind.Name(), part))
	}
	f.wire = reflect.StructOf(fields)
	set[t] = f
}

// add makes the form of another type. Memory ([]byte) and errors have none.
func (set formSet) add(t reflect.Type) *form {
	if f := set[t]; f != nil {
		return f
	}
	f := &form{real: t, wire: t}
	switch t.Kind() {
	case reflect.Slice:
		f.elem = set.add(t.Elem())
		f.wire = reflect.SliceOf(f.elem.wire)
	case reflect.Pointer:
		f.elem = set.add(t.Elem())
		f.wire = reflect.PointerTo(f.elem.wire)
	case reflect.Struct:
		var fields []reflect.StructField
		for _, x := range reflect.VisibleFields(t) {
			if x.Anonymous && x.Type.Kind() == reflect.Struct {
				f.inside = append(f.inside, x.Index)
				continue
			}
			if x.Type == reflect.TypeFor[[]byte]() || x.Type == reflect.TypeFor[error]() {
				continue
			}
			part := set.add(x.Type)
			f.paths, f.parts = append(f.paths, x.Index), append(f.parts, part)
			fields = append(fields, field(x.Name, part))
		}
		f.wire = reflect.StructOf(fields)
	}
	set[t] = f
	return f
}

func field(name string, f *form) reflect.StructField {
	return reflect.StructField{Name: name, Type: f.wire, Tag: reflect.StructTag(`json:"` + key(name) + `,omitzero"`)}
}

// key writes the name of a type or a field the way messages do: WantsGroup is wants_group.
func key(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if lower && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r)
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// pack returns the value of wire that stands for v.
func (f *form) pack(v reflect.Value) reflect.Value {
	w := reflect.New(f.wire).Elem()
	switch {
	case f.real.Kind() == reflect.Interface:
		if v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		for i, part := range f.parts {
			if part.real.Elem() == v.Type() {
				w.Field(i).Set(reflect.New(part.elem.wire))
				w.Field(i).Elem().Set(part.elem.pack(v))
			}
		}
	case f.real.Kind() == reflect.Struct:
		for i, part := range f.parts {
			w.Field(i).Set(part.pack(v.FieldByIndex(f.paths[i])))
		}
	case f.real.Kind() == reflect.Float64 && (math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0)):
		w.SetFloat(-1) // JSON has no word for it, and no weight is either
	case f.real == f.wire || v.IsNil():
		if f.real == f.wire {
			w.Set(v)
		}
	case f.real.Kind() == reflect.Pointer:
		w.Set(reflect.New(f.elem.wire))
		w.Elem().Set(f.elem.pack(v.Elem()))
	default:
		w.Set(reflect.MakeSlice(f.wire, v.Len(), v.Len()))
		for i := range v.Len() {
			w.Index(i).Set(f.elem.pack(v.Index(i)))
		}
	}
	return w
}

// unpack returns the value that w stands for, found sound in all its parts.
func (f *form) unpack(w reflect.Value) (reflect.Value, error) {
	v := reflect.New(f.real).Elem()
	put := func(to reflect.Value, part *form, from reflect.Value) error {
		x, err := part.unpack(from)
		if err == nil {
			to.Set(x)
		}
		return err
	}
	switch {
	case f.real.Kind() == reflect.Interface:
		return f.chosen(w)
	case f.real.Kind() == reflect.Struct:
		for i, part := range f.parts {
			if err := put(v.FieldByIndex(f.paths[i]), part, w.Field(i)); err != nil {
				return v, err
			}
		}
		for _, path := range f.inside {
			if err := sound(v.FieldByIndex(path).Interface()); err != nil {
				return v, err
			}
		}
		return v, sound(v.Interface())
	case f.real == f.wire:
		return w, nil
	case w.IsNil():
	case f.real.Kind() == reflect.Pointer:
		v.Set(reflect.New(f.elem.real))
		return v, put(v.Elem(), f.elem, w.Elem())
	default:
		v.Set(reflect.MakeSlice(f.real, w.Len(), w.Len()))
		for i := range w.Len() {
			if err := put(v.Index(i), f.elem, w.Index(i)); err != nil {
				return v, err
			}
		}
	}
	return v, nil
}

// chosen returns the one value of an interface that is set.
func (f *form) chosen(w reflect.Value) (v reflect.Value, err error) {
	found := 0
	for i, part := range f.parts {
		if w.Field(i).IsNil() {
			continue
		}
		found++
		if v, err = part.elem.unpack(w.Field(i).Elem()); err != nil {
			return v, fmt.Errorf("%s: %w", key(part.elem.real.Name()), err)
		}
	}
	if found != 1 {
		return v, fmt.Errorf("it is of %d kinds; it must be of one", found)
	}
	return v, nil
}
