package pickle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// This file executes the instructions that name globals and call them. Like all methods of a
// machine they run on the goroutine that loads the pickle, and do no I/O; only persistent calls a
// function of the caller's, which may.

// maxName bounds the name of a module or of something in it, in bytes.
const maxName = 1024

// python3 maps the modules of Python 2 that protocol 2 writes to their names of today.
var python3 = map[string]string{"__builtin__": "builtins", "copy_reg": "copyreg"}

// global executes GLOBAL: it reads a module and a name, and pushes what they name.
func (m *machine) global() error {
	module, err := m.readLine()
	if err != nil {
		return err
	}
	name, err := m.readLine()
	if err != nil {
		return err
	}
	return m.pushGlobal(module, name)
}

// readLine reads the rest of a line of text, and its end. The end is not returned.
func (m *machine) readLine() (string, error) {
	n := bytes.IndexByte(m.data[m.at:min(len(m.data), m.at+maxName)], '\n')
	if n < 0 && len(m.data)-m.at < maxName {
		return "", fmt.Errorf("a name that is cut off: %w", io.ErrUnexpectedEOF)
	}
	if n < 0 {
		return "", fmt.Errorf("a name of more than %d bytes", maxName)
	}
	b, err := m.readBytes(uint64(n) + 1)
	return string(b[:n]), err
}

// stackGlobal executes STACK_GLOBAL: it pops a module and a name, and pushes what they name.
func (m *machine) stackGlobal() error {
	v, err := m.pop(2)
	if err != nil {
		return err
	}
	module, ok := v[0].(string)
	name, also := v[1].(string)
	if !ok || !also || len(module)+len(name) > maxName {
		return errors.New("the name of a global is no text, or too long")
	}
	return m.pushGlobal(module, name)
}

// pushGlobal pushes the global of a name in a module of Python, if it is allowed.
func (m *machine) pushGlobal(module, name string) error {
	if now, ok := python3[module]; ok {
		module = now
	}
	g := Global{module, name}
	if _, known := m.findGlobal(g); !known {
		return &UnknownGlobal{g}
	}
	return m.push(g, costGlobal+int64(len(module)+len(name)))
}

// findGlobal finds a global among those that the pickle may mention; the constructor is nil for one
// that may not be called.
func (m *machine) findGlobal(g Global) (Constructor, bool) {
	for _, list := range []Globals{m.Globals, m.More, Builtins} {
		if c, ok := list[g]; ok {
			return c, true
		}
	}
	return nil, false
}

// reduce executes REDUCE and NEWOBJ: it pops a global and a tuple, and pushes the value that stands
// for the call.
func (m *machine) reduce() error {
	v, err := m.pop(2)
	if err != nil {
		return err
	}
	args, ok := v[1].(Tuple)
	if !ok {
		return fmt.Errorf("a call with %s instead of a tuple of arguments", KindWithArticle(v[1]))
	}
	return m.pushCall(v[0], args)
}

// newWithKeywords executes NEWOBJ_EX, a call with keywords, of which there may be none.
func (m *machine) newWithKeywords() error {
	v, err := m.pop(3)
	if err != nil {
		return err
	}
	args, ok := v[1].(Tuple)
	if keywords, is := v[2].(*Dict); !ok || !is || len(keywords.Items) > 0 {
		return fmt.Errorf("a call of %v with keywords, which shoal does not know", v[0])
	}
	return m.pushCall(v[0], args)
}

// pushCall pushes the value that stands for the call of a global.
func (m *machine) pushCall(what any, args Tuple) error {
	g, ok := what.(Global)
	if !ok {
		return fmt.Errorf("a call of %s, which is no global", KindWithArticle(what))
	}
	construct, _ := m.findGlobal(g)
	if construct == nil {
		return fmt.Errorf("a call of %v, which is known by name only", g)
	}
	v, err := construct(slices.Clone(args))
	if err != nil {
		return fmt.Errorf("%v: %w", g, err)
	}
	return m.push(v, costObject+slotBytes*int64(len(args))+copyCost(v))
}

// copyCost returns the bytes that a constructor may have copied: a short call with a long list must
// not be cheap.
func copyCost(v any) int64 {
	switch v := v.(type) {
	case []byte:
		return int64(len(v))
	case string:
		return int64(len(v))
	case Tuple:
		return slotBytes * int64(len(v))
	case *List:
		return slotBytes * int64(len(v.Items))
	case *Set:
		return slotBytes * int64(len(v.Items))
	case *Dict:
		return itemBytes * int64(cap(v.Items))
	}
	return 0
}

// build executes BUILD: it pops a state, and gives it to the object below.
func (m *machine) build() error {
	state, err := m.pop(1)
	if err != nil {
		return err
	}
	to, err := m.top()
	if err != nil {
		return err
	}
	o, ok := to.(interface{ SetState(any) error })
	if !ok {
		return fmt.Errorf("%s is given a state, and takes none", KindWithArticle(to))
	}
	return o.SetState(state[0])
}

// persistent executes BINPERSID: it pops a reference to data outside the pickle, and pushes what it
// stands for.
func (m *machine) persistent() error {
	id, err := m.pop(1)
	if err != nil {
		return err
	}
	if m.Persistent == nil {
		return errors.New("a reference to data outside the pickle, where there is none")
	}
	v, err := m.Persistent(id[0])
	if err != nil {
		return err
	}
	return m.push(v, costObject)
}
