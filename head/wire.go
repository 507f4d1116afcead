package head

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/member"
)

// The kinds of messages and of payloads, each known by the name of its type. docs/formats/hosts.md
// lists them.
var (
	messages = []any{member.Prepare{}, member.Accept{}, member.Promise{}, member.Accepted{},
		member.Refused{}, member.Decision{}, Frame{}}
	upward = []any{Report{}, Posted{}, Began{}, Asked{}, Ended{}, Executed{}, Stated{}, Shaped{},
		WantsGroup{}, Ungroups{}, LinkLost{}, Noted{}}
	downward = []any{Snapshot{}, Begin{}, Exec{}, Drops{}, Commit{}, Starts{}, Stops{}, Groups{},
		Disbands{}, Refuses{}, Leaves{}, Ends{}, Decides{}}
)

// Encode brings a message to bytes, as docs/formats/hosts.md has them. Memory of calls and errors
// as values stay behind.
func Encode(m Message) []byte { return Append(nil, m) }

// Append appends to b what Encode returns.
func Append(b []byte, m Message) []byte {
	if b, is := AppendBinary(b, m); is {
		return b
	}
	return append(b, encodeJSON(m)...)
}

// Decode reads a message into memory of its own, as Reader.Read does.
func Decode(b []byte) (Message, error) { return new(Reader).Read(b) }

// encodeJSON returns a message as JSON. It panics where a message has a value that JSON cannot
// have.
func encodeJSON(m Message) []byte {
	var v any = m
	switch m := m.(type) {
	case Ask:
		v = m.Ask
	case Answer:
		v = m.Answer
	}
	f := messageForm()
	w := reflect.New(f.wire)
	f.pack(w.Elem(), reflect.ValueOf(v))
	b, err := json.Marshal(w.Interface())
	if err != nil {
		panic("head: a message that is no JSON: " + err.Error())
	}
	return b
}

// decodeJSON reads a message from JSON, and fails for what no agent of this version sends.
func decodeJSON(b []byte) (Message, error) {
	f := messageForm()
	w := reflect.New(f.wire)
	if err := strict.JSON(b, w.Interface()); err != nil {
		return nil, fmt.Errorf("a message between agents that cannot be read: %w", err)
	}
	var m any
	if err := f.unpack(reflect.ValueOf(&m).Elem(), w.Elem()); err != nil {
		return nil, fmt.Errorf("a message between agents that cannot be: %w", err)
	}
	switch v := m.(type) {
	case member.Ask:
		return Ask{v}, nil
	case member.Answer:
		return Answer{v}, nil
	case Frame:
		return &v, nil
	}
	panic("head: a kind of message without a type")
}

// form is how the values of a type are written: as values of another type, wire, that encoding/json
// knows how to name. It has what is embedded in place, keys in lower case, and leaves out what is
// zero. So the types of the protocol need not know of JSON. It is not changed once it is made, so
// any goroutine may use it.
type form struct {
	real, wire reflect.Type
	// paths say where the fields of a struct's wire are in real.
	paths [][]int
	// inside say where other structs are embedded in a struct.
	inside [][]int
	// elem is the form of the elements of a slice, or of what a pointer points to.
	elem *form
	// parts are the forms of wire's fields. In a struct all of them are set, in an interface one.
	parts []*form
}

// formSet has the forms of types, by type. One goroutine fills it.
type formSet map[reflect.Type]*form

var (
	messageType = reflect.TypeFor[Message]()
	payloadType = reflect.TypeFor[Payload]()

	// messageForm is made when the first message is: most commands send none.
	messageForm = sync.OnceValue(func() *form {
		set := formSet{}
		set.addInterface(payloadType, slices.Concat(upward, downward))
		set.addInterface(messageType, messages)
		return set[messageType]
	})
)

// addInterface adds the form of an interface to the set: an object whose one key names the kind.
func (set formSet) addInterface(t reflect.Type, kinds []any) {
	f := &form{real: t}
	var fields []reflect.StructField
	for _, k := range kinds {
		kind := reflect.TypeOf(k)
		part := set.formOf(reflect.PointerTo(kind))
		f.parts = append(f.parts, part)
		fields = append(fields, jsonField(kind.Name(), part))
	}
	f.wire = reflect.StructOf(fields)
	set[t] = f
}

// formOf returns the form of a type that is no interface, and adds it to the set. Memory ([]byte)
// and errors have none.
func (set formSet) formOf(t reflect.Type) *form {
	if f := set[t]; f != nil {
		return f
	}
	f := &form{real: t, wire: t}
	switch kind := t.Kind(); {
	// written as its text
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
	case kind == reflect.Slice:
		f.elem = set.formOf(t.Elem())
		f.wire = reflect.SliceOf(f.elem.wire)
	case kind == reflect.Pointer:
		f.elem = set.formOf(t.Elem())
		f.wire = reflect.PointerTo(f.elem.wire)
	case kind == reflect.Struct:
		var fields []reflect.StructField
		for _, x := range reflect.VisibleFields(t) {
			if x.Anonymous && x.Type.Kind() == reflect.Struct {
				f.inside = append(f.inside, x.Index)
				continue
			}
			if x.Type == reflect.TypeFor[[]byte]() || x.Type == reflect.TypeFor[error]() {
				continue
			}
			part := set.formOf(x.Type)
			f.paths, f.parts = append(f.paths, x.Index), append(f.parts, part)
			fields = append(fields, jsonField(x.Name, part))
		}
		f.wire = reflect.StructOf(fields)
	}
	set[t] = f
	return f
}

// jsonField returns the field of a wire struct with a key for a name, and a form.
func jsonField(name string, f *form) reflect.StructField {
	return reflect.StructField{Name: name, Type: f.wire,
		Tag: reflect.StructTag(`json:"` + jsonKey(name) + `,omitzero"`)}
}

// jsonKey writes the name of a type or a field the way messages do: WantsGroup is wants_group.
func jsonKey(name string) string {
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

// pack writes v, a value of f.real, into w, a value of f.wire.
func (f *form) pack(w, v reflect.Value) {
	switch {
	case f.real.Kind() == reflect.Interface:
		if v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		v = reflect.Indirect(v) // payloads of every step are pointers
		for i, part := range f.parts {
			if part.elem.real == v.Type() {
				w.Field(i).Set(reflect.New(part.elem.wire))
				part.elem.pack(w.Field(i).Elem(), v)
			}
		}
	case f.real.Kind() == reflect.Float64 && (math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0)):
		w.SetFloat(-1) // JSON cannot write it, and no weight is negative
	case f.real == f.wire:
		w.Set(v)
	case f.real.Kind() == reflect.Struct:
		for i, part := range f.parts {
			part.pack(w.Field(i), v.FieldByIndex(f.paths[i]))
		}
	case v.IsNil():
	case f.real.Kind() == reflect.Pointer:
		w.Set(reflect.New(f.elem.wire))
		f.elem.pack(w.Elem(), v.Elem())
	default:
		w.Set(reflect.MakeSlice(f.wire, v.Len(), v.Len()))
		for i := range v.Len() {
			f.elem.pack(w.Index(i), v.Index(i))
		}
	}
}

// unpack writes w, a value of f.wire, into v, a value of f.real, and fails if any part of it is not
// sound.
func (f *form) unpack(v, w reflect.Value) error {
	switch {
	case f.real.Kind() == reflect.Interface:
		return f.unpackInterface(v, w)
	case f.real == f.wire:
		v.Set(w)
	case f.real.Kind() == reflect.Struct:
		for i, part := range f.parts {
			if err := part.unpack(v.FieldByIndex(f.paths[i]), w.Field(i)); err != nil {
				return err
			}
		}
		for _, path := range f.inside {
			if err := validate(v.FieldByIndex(path).Interface()); err != nil {
				return err
			}
		}
		return validate(v.Interface())
	case w.IsNil():
	case f.real.Kind() == reflect.Pointer:
		v.Set(reflect.New(f.elem.real))
		return f.elem.unpack(v.Elem(), w.Elem())
	default:
		v.Set(reflect.MakeSlice(f.real, w.Len(), w.Len()))
		for i := range w.Len() {
			if err := f.elem.unpack(v.Index(i), w.Index(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// unpackInterface writes the one value of an interface that is set in w into v, and fails if there
// is none or more.
func (f *form) unpackInterface(v, w reflect.Value) error {
	found := 0
	for i, part := range f.parts {
		if w.Field(i).IsNil() {
			continue
		}
		found++
		x := reflect.New(part.elem.real).Elem()
		if err := part.elem.unpack(x, w.Field(i).Elem()); err != nil {
			return fmt.Errorf("%s: %w", jsonKey(part.elem.real.Name()), err)
		}
		if !x.Type().AssignableTo(v.Type()) { // a payload of every step
			x = x.Addr()
		}
		v.Set(x)
	}
	if found != 1 {
		return fmt.Errorf("it is of %d kinds; it must be of one", found)
	}
	return nil
}
