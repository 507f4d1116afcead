package wire_test

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// Frames in bytes are written as docs/formats/hosts.md says, and read as what was written.
func TestBinaryFrames(t *testing.T) {
	for i, want := range [][]byte{
		{1, 1, 1, 2, 3, 4,
			1, 3, 0xac, 2, 1, 2, 2, 0xc2, 2, 2, 0, 0, 0, 3, 4, 6, 12, 12, 0, 0, 0, 0, 0, 0, 0xe0,
			0x3f,
			1, 3, 0xac, 2, 11, 2, 2, 0xa2, 1, 2, 1, 0, 1, 0, 2, 5, 't', 'o', 't', 'a', 'l', 16,
			2, 0x87, 0x80, 0x80, 0x80, 0x10},
	} {
		if got := wire.Append(nil, wiretest.SteadyFrames(t)[i]); !bytes.Equal(got, want) {
			t.Errorf("frame %d is written as\n% x, want\n% x", i, got, want)
		}
	}
	var reader wire.Reader
	for range 2 { // into memory of its own, and again into that of others
		for i, f := range wiretest.SteadyFrames(t) {
			b := wire.Append(nil, f)
			if got, err := reader.Read(b); !wire.IsBinary(b) || err != nil ||
				cmp.Diff(wire.Message(f), got) != "" {
				t.Errorf("frame %d comes back with %v:\n%s", i, err, cmp.Diff(wire.Message(f), got))
			}
		}
	}
}

// Payloads that say more than they do in a steady state are JSON, with all that is in their frame.
func TestFramesThatSayMoreAreJSON(t *testing.T) {
	for _, b := range []wire.Payload{
		&wire.Executed{Batch: 1, Proof: digest.Proof{New: digest.Sum{Bytes: 1}}},
		&wire.Executed{Batch: 1, Err: "it has no plan"},
		wire.Drops{Batch: 1},
		&wire.Commit{Index: 1, View: &topo.View{}},
		&wire.Commit{Index: 1, Released: []topo.WorkerID{}},
		&wire.Commit{Index: 1, AllReleased: "why"},
		&wire.Commit{Index: 1, Changed: true},
		&wire.Commit{Index: 1, Aborted: true},
	} {
		f := &wire.Frame{First: 2, Payloads: []wire.Payload{&wire.Commit{Index: 1}, b}}
		if got := wire.Append(nil, f); wire.IsBinary(got) {
			t.Errorf("%q", got)
		}
	}
}

// A frame in bytes that is cut short, goes on, or says what no agent says is refused.
func TestReadRefusesBrokenFrames(t *testing.T) {
	var reader wire.Reader
	for _, f := range wiretest.SteadyFrames(t) {
		b := wire.Append(nil, f)
		for n := range len(b) {
			if _, err := reader.Read(b[:n]); err == nil {
				t.Errorf("% x is read, and % x follows", b[:n], b[n:])
			}
		}
		if _, err := reader.Read(append(b, 0)); err == nil {
			t.Errorf("a zero behind % x is read", b)
		}
	}
	call := wiretest.SteadyFrames(t)[0].Payloads[0].(*wire.Posted).Call
	far := func(in int) wire.Call {
		c := call
		c.Far = &collective.Far{In: in}
		return c
	}
	for what, f := range map[string]*wire.Frame{
		"a stream without a number": {},
		"a payload the wrong way": {First: 2, Up: true,
			Payloads: []wire.Payload{&wire.Commit{Index: 1}}},
		"a follower without report": {First: 1, Up: true,
			Payloads: []wire.Payload{&wire.Executed{Batch: 1}}},
		"an entry without a number": {First: 2, Payloads: []wire.Payload{&wire.Commit{}}},
		"a call of -1 elements": {First: 2, Up: true,
			Payloads: []wire.Payload{&wire.Posted{Call: far(-1)}}},
		"a batch without hosts": {First: 2,
			Payloads: []wire.Payload{
				&wire.Exec{Batch: 1,
					Sets: []wire.Set{{Calls: []wire.Call{call}, Of: []int{0}, Err: "why"}}}}},
		"a set without calls": {First: 2,
			Payloads: []wire.Payload{
				&wire.Exec{Batch: 1, Hosts: []string{"A"}, Sets: []wire.Set{{Err: "why"}}}}},
		"a set of calls like that": {First: 2,
			Payloads: []wire.Payload{
				&wire.Exec{Batch: 1, Hosts: []string{"A"},
					Sets: []wire.Set{{Calls: []wire.Call{far(-1)}, Of: []int{0}, Err: "why"}}}}},
		"a set without a route": {First: 2,
			Payloads: []wire.Payload{
				&wire.Exec{Batch: 1, Hosts: []string{"A"},
					Sets: []wire.Set{{Calls: []wire.Call{call}, Of: []int{0}}}}}},
	} {
		b := wire.Append(nil, f)
		if m, err := reader.Read(b); !wire.IsBinary(b) || err == nil {
			t.Errorf("%s is read as %+v", what, m)
		}
	}
	f := wiretest.SteadyFrames(t)[0]
	f.Payloads[0].(*wire.Posted).Weight = math.NaN()
	if m, err := reader.Read(wire.Append(nil, f)); err != nil ||
		m.(*wire.Frame).Payloads[0].(*wire.Posted).Weight != -1 {
		t.Errorf("a weight that is no number: %v", err)
	}
}

// Frames in bytes are written and read in memory that is used again; the place in the data, which
// others may hold, is new.
func TestBinaryFramesAllocateNothing(t *testing.T) {
	frames := wiretest.SteadyFrames(t)
	frames[1].Payloads[1].(*wire.Commit).Data = nil
	for _, b := range frames[1].Payloads {
		if e, is := b.(*wire.Exec); is {
			e.Sets = e.Sets[:1] // an error is new each time
		}
	}
	var b []byte
	readers := make([]wire.Reader, len(frames))
	if n := testing.AllocsPerRun(100, func() {
		for i, f := range frames {
			b = wire.Append(b[:0], f)
			if _, err := readers[i].Read(b); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Nothing that a payload has is left behind: where it does not go in bytes, its frame is JSON. So a
// field that is added later is not forgotten.
func TestBinaryFramesLoseNothing(t *testing.T) {
	said := 0
	for i := range wiretest.SteadyFrames(t) {
		var frame *wire.Frame
		// fresh sets frame to a new one, and lists the parts of its payloads.
		fresh := func() []reflect.Value {
			frame = wiretest.SteadyFrames(t)[i]
			var leaves []reflect.Value
			for _, b := range frame.Payloads {
				leaves = append(leaves, changeableParts(reflect.ValueOf(b).Elem())...)
			}
			return leaves
		}
		for k := range fresh() {
			changeValue(fresh()[k])
			// else it is nothing that an agent says
			if got, err := wire.Decode(wire.Append(nil, frame)); err == nil {
				if said++; !reflect.DeepEqual(wire.Message(frame), got) {
					t.Errorf("frame %d comes back without all it has:\n%s", i,
						cmp.Diff(wire.Message(frame), got))
				}
			}
		}
	}
	if said < 100 {
		t.Errorf("%d changes were of a kind that is said", said)
	}
}

// changeableParts lists what a value has that can be changed by itself, but for memory: fields,
// entries of lists, and what pointers point to, as far down as there are any.
func changeableParts(v reflect.Value) (list []reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[collective.Route](): // goes as text, all of it
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			list = append(list, changeableParts(v.Field(i))...)
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		list = changeableParts(v.Elem())
	case v.Kind() == reflect.Slice && v.Len() > 0:
		for i := range v.Len() {
			list = append(list, changeableParts(v.Index(i))...)
		}
	// memory stays behind
	case v.CanSet() && v.Kind() != reflect.Interface && v.Type() != reflect.TypeFor[[]byte]():
		list = []reflect.Value{v}
	}
	return list
}

// changeValue gives v, one of changeableParts, another value than it has.
func changeValue(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.CanInt():
		v.SetInt(v.Int() + 1)
	case v.CanUint():
		v.SetUint(v.Uint() + 1)
	case v.CanFloat():
		v.SetFloat(v.Float() + 1)
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "x")
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	}
}
