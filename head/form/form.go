// Package form writes the values of Go types as JSON, and reads them strictly, where the types need
// not know of JSON: interfaces are objects whose one key names the kind, what is embedded is in
// place, keys are in lower case, and what is zero is left out. It also has numbers, texts and lists
// as bytes, read as strictly. Package wire writes messages so. It does no I/O.
package form

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/internal/strict"
)

// Form is how the values of an interface are written. It is not changed once it is made, so any
// goroutine may use it.
type Form struct {
	top *form
	// check returns why a struct that was read is none that can be; nil = it is one.
	check func(v any) error
}

// Kinds are the types that the values of an interface can have.
type Kinds struct {
	Of   reflect.Type // the interface
	List []any        // a value of each type; payloads may also be pointers to such values
}

// New returns the form of the last of several interfaces; those before it are what values of those
// after them may have in them. check is called for each struct that is read, the inner ones first.
func New(check func(v any) error, interfaces ...Kinds) *Form {
	set := formSet{}
	for _, k := range interfaces {
		set.addInterface(k.Of, k.List)
	}
	return &Form{set[interfaces[len(interfaces)-1].Of], check}
}

// Encode returns a value of the interface as JSON. It panics where there is a part that JSON cannot
// have, but for a float64 that is no finite number, which becomes -1. Memory ([]byte) and errors
// stay behind.
func (f *Form) Encode(v any) []byte {
	w := reflect.New(f.top.wire)
	f.top.pack(w.Elem(), reflect.ValueOf(v))
	b, err := json.Marshal(w.Interface())
	if err != nil {
		panic("form: a value that is no JSON: " + err.Error())
	}
	return b
}

// Decode reads a value of one of the kinds of the interface. It fails for what is no such value,
// with an Unread, and for what check refuses.
func (f *Form) Decode(b []byte) (m any, err error) {
	w := reflect.New(f.top.wire)
	if err := strict.JSON(b, w.Interface()); err != nil {
		return nil, Unread{err}
	}
	err = f.top.unpack(reflect.ValueOf(&m).Elem(), w.Elem(), f.check)
	return m, err
}

// Unread is why JSON cannot be read.
type Unread struct{ error }

// Unwrap returns what is wrong with the JSON.
func (e Unread) Unwrap() error { return e.error }

// form is how the values of a type are written: as values of another type, wire, that encoding/json
// knows how to name. It is not changed once it is made.
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
		Tag: reflect.StructTag(`json:"` + JSONName(name) + `,omitzero"`)}
}

// JSONName writes the name of a type or a field the way JSON has it: WantsGroup is wants_group.
func JSONName(name string) string {
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

// unpack writes w, a value of f.wire, into v, a value of f.real, and fails if check refuses
// a part of it.
func (f *form) unpack(v, w reflect.Value, check func(any) error) error {
	switch {
	case f.real.Kind() == reflect.Interface:
		return f.unpackInterface(v, w, check)
	case f.real == f.wire:
		v.Set(w)
	case f.real.Kind() == reflect.Struct:
		for i, part := range f.parts {
			if err := part.unpack(v.FieldByIndex(f.paths[i]), w.Field(i), check); err != nil {
				return err
			}
		}
		for _, path := range f.inside {
			if err := check(v.FieldByIndex(path).Interface()); err != nil {
				return err
			}
		}
		return check(v.Interface())
	case w.IsNil():
	case f.real.Kind() == reflect.Pointer:
		v.Set(reflect.New(f.elem.real))
		return f.elem.unpack(v.Elem(), w.Elem(), check)
	default:
		v.Set(reflect.MakeSlice(f.real, w.Len(), w.Len()))
		for i := range w.Len() {
			if err := f.elem.unpack(v.Index(i), w.Index(i), check); err != nil {
				return err
			}
		}
	}
	return nil
}

// unpackInterface writes the one value of an interface that is set in w into v, and fails if there
// is none or more.
func (f *form) unpackInterface(v, w reflect.Value, check func(any) error) error {
	found := 0
	for i, part := range f.parts {
		if w.Field(i).IsNil() {
			continue
		}
		found++
		x := reflect.New(part.elem.real).Elem()
		if err := part.elem.unpack(x, w.Field(i).Elem(), check); err != nil {
			return fmt.Errorf("%s: %w", JSONName(part.elem.real.Name()), err)
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
