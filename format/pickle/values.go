package pickle

import (
	"fmt"
	"strings"
)

// What Load returns is made of nil, bool, int64, *big.Int, float64, string, []byte, Tuple, *List,
// *Dict, *Set, *Buffer, Global, Member, and what the constructors of Globals make, such as *Object.
// Lists and dicts can contain themselves, and one value can stand in many places: who walks them
// bounds depth and steps.

// A Tuple is a Python tuple.
type Tuple []any

// A List is a Python list.
type List struct{ Items []any }

// A Set is a Python set or frozenset, in the order of the pickle.
type Set struct {
	Items  []any
	Frozen bool // whether it is a frozenset
}

// A Dict is a Python dict or OrderedDict, in the order of the pickle. A key that was set twice
// stands twice; to Python the last one counts. It is for one goroutine at a time: Get can build its
// index. The zero value is an empty dict.
type Dict struct {
	Items []Item
	// index has, by string key, the index in Items of the last item with the key among the first
	// indexed items. It is nil for a small dict.
	index   map[string]int
	indexed int // number of items, from the first on, whose keys are in index
}

// An Item is a key with its value.
type Item struct{ Key, Value any }

// Get returns the value of a string key, the last if it was set twice; false if there is none. It
// can build the index of the dict: one goroutine at a time may call it.
func (d *Dict) Get(key string) (any, bool) {
	if i := d.find(key); i >= 0 {
		return d.Items[i].Value, true
	}
	return nil, false
}

// indexFrom is the number of items from which on a dict has an index: for a small dict an index
// would take more memory than the dict.
const indexFrom = 8

// find returns the index of a key, the last if there are several, or -1. It brings the index of a
// large dict up to date. So one goroutine at a time may call it.
func (d *Dict) find(key string) int {
	if len(d.Items) <= indexFrom {
		for i := len(d.Items) - 1; i >= 0; i-- {
			if s, ok := d.Items[i].Key.(string); ok && s == key {
				return i
			}
		}
		return -1
	}
	if d.index == nil {
		d.index = map[string]int{}
	}
	for ; d.indexed < len(d.Items); d.indexed++ {
		if s, ok := d.Items[d.indexed].Key.(string); ok {
			d.index[s] = d.indexed
		}
	}
	if i, ok := d.index[key]; ok {
		return i
	}
	return -1
}

// Add adds a key that the dict does not have. Like all methods that change a dict, it is for one
// goroutine at a time.
func (d *Dict) Add(key string, value any) { d.Items = append(d.Items, Item{key, value}) }

// Set gives a key a value, in place of the one that it has, if there is one.
func (d *Dict) Set(key string, value any) {
	if i := d.find(key); i >= 0 {
		d.Items[i].Value = value
	} else {
		d.Add(key, value)
	}
}

// Put adds a value under keys that are joined by dots, in nested dicts, which it makes. It fails
// where another value stands in the way.
func (d *Dict) Put(path string, value any) error {
	key, rest, deeper := strings.Cut(path, ".")
	for deeper {
		next, ok := d.Get(key)
		if !ok {
			next = &Dict{}
			d.Add(key, next)
		}
		if d, ok = next.(*Dict); !ok {
			return fmt.Errorf("%s: %s has no %s in it", path, KindWithArticle(next), rest)
		}
		key, rest, deeper = strings.Cut(rest, ".")
	}
	if _, ok := d.Get(key); ok {
		return fmt.Errorf("%s stands twice", path)
	}
	d.Add(key, value)
	return nil
}

// SetState does nothing: it ignores what Python keeps in the __dict__ of a subclass of dict. The
// machine calls it.
func (d *Dict) SetState(any) error { return nil }

// A Global is the name of something in a Python module. Names of modules of Python 2 are given as
// those of Python 3.
type Global struct{ Module, Name string }

// String writes the name as module.name.
func (g Global) String() string { return g.Module + "." + g.Name }

// An Object records a call of a global, which was not made.
// It is for the goroutine that loads the pickle; later nothing in this package changes it.
type Object struct {
	Class Global
	Args  []any // arguments of the call
	State any   // state from __reduce__ or __dict__; nil = none
}

// A Member is a member of an enumeration, by its name in the pickle, which is not looked up.
type Member struct {
	Class Global
	Name  string
}

// String writes the member as module.Class.NAME.
func (m Member) String() string { return m.Class.String() + "." + m.Name }

// SetState keeps the state that a pickle gives the object. Only the machine calls it.
func (o *Object) SetState(state any) error {
	o.State = state
	return nil
}

// Attr returns an attribute from the state, which for most objects is a dict. It is false if there
// is none. Like Dict.Get it is for one goroutine at a time.
func (o *Object) Attr(name string) (any, bool) {
	if d, ok := o.State.(*Dict); ok {
		return d.Get(name)
	}
	return nil, false
}

// A Buffer is an io.BytesIO, in which some frameworks keep what they have serialized themselves.
type Buffer struct{ Data []byte } // Data is what was written to it

// SetState sets the data, from (bytes, position, attributes). It keeps the bytes. Only the machine
// calls it.
func (b *Buffer) SetState(state any) error {
	s, ok := state.(Tuple)
	if ok && len(s) == 3 {
		b.Data, ok = s[0].([]byte)
	}
	if !ok || len(s) != 3 {
		return fmt.Errorf(
			"an io.BytesIO with a state that is no tuple of bytes, position and attributes")
	}
	return nil
}

// A Constructor makes the value that stands for a call of a global. It receives only what the file
// says: no constructor runs code from a file.
type Constructor func(args []any) (any, error)

// Globals are the names that a pickle may mention, with the constructors for calls. A name without
// a constructor may be mentioned but not called.
type Globals map[Global]Constructor

// InertGlobals returns globals for classes, each written module.Class, of which a call makes an
// Object.
func InertGlobals(classes ...string) Globals {
	g := Globals{}
	for _, c := range classes {
		name := splitGlobal(c)
		g[name] = func(args []any) (any, error) { return &Object{Class: name, Args: args}, nil }
	}
	return g
}

// NameGlobals returns globals that may be mentioned but not called, each written module.name.
func NameGlobals(names ...string) Globals {
	g := Globals{}
	for _, n := range names {
		g[splitGlobal(n)] = nil
	}
	return g
}

// splitGlobal splits module.name at the last dot, of which there is one.
func splitGlobal(name string) Global {
	i := strings.LastIndexByte(name, '.')
	return Global{name[:i], name[i+1:]}
}

// An UnknownGlobal is the error of a pickle that mentions a global that is not allowed.
type UnknownGlobal struct{ Global Global }

// Error says what the pickle asks for, and what to do.
func (e *UnknownGlobal) Error() string {
	return fmt.Sprintf("the pickle asks for %v, which shoal does not know and never runs; if "+
		"the file is yours, save it again without objects of that kind", e.Global)
}

// An Error is why a pickle cannot be read, with the place in its file.
type Error struct {
	File   string // name of the file
	Offset int64  // offset in the file of the instruction that failed
	Err    error
}

// Error says where in which file the pickle cannot be read, and why.
func (e *Error) Error() string {
	return fmt.Sprintf("pickle: %s, byte %d: %v", e.File, e.Offset, e.Err)
}

// Unwrap returns why the pickle cannot be read.
func (e *Error) Unwrap() error { return e.Err }
