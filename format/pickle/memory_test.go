package pickle_test

// This file measures the memory that values take.
import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/pickle"
)

// TestMemory reads pickles of 16 MiB that ask for as much memory as they can, and counts all that
// the reader takes for them, also what it has given back: of a list that grows item by item, that
// is five times its length.
func TestMemory(t *testing.T) {
	const length = 16 << 20
	for _, c := range []struct{ name, before, unit, after string }{
		{"values", "\x80\x02", "N", "."},
		{"numbers", "\x80\x02", "J\x01\x02\x03\x04", "."},
		{"texts", "\x80\x02", "X\x01\x00\x00\x00a", "."},
		{"bytes", "\x80\x04", "C\x01a", "."},
		{"lists", "\x80\x02](", "]", "e."},
		{"dicts", "\x80\x02](", "}", "e."},
		{"sets", "\x80\x04](", "\x8f", "e."},
		{"tuples in tuples", "\x80\x02N", "\x85", "."},
		{"items one by one", "\x80\x02]", "Na", "."},
		{"keys one by one", "\x80\x02}", "NNs", "."},
		{"marks", "\x80\x02", "(", "."},
		{"a memo", "\x80\x04N", "\x94", "."},
		{"globals", "\x80\x02](", "cbuiltins\nint\n", "e."},
		{"calls", "\x80\x02cbuiltins\nlist\nq\x00](", "h\x00)R", "e."},
	} {
		b := []byte(c.before +
			strings.Repeat(c.unit, (length-len(c.before)-len(c.after))/len(c.unit)) + c.after)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := load(b, pickle.Options{})
		runtime.ReadMemStats(&after)
		most := uint64(600 << 20)
		if strings.Contains(c.name, "one by one") {
			most = 1600 << 20
		}
		took := after.TotalAlloc - before.TotalAlloc
		if t.Logf("%s: %d MiB, %v", c.name, took>>20, err); took > most {
			t.Errorf("%s: the reader took %d bytes altogether", c.name, took)
		}
	}
}

// TestLongList reads a list of more numbers than the memory for values has room for, as a sampler's
// order that was saved as a list: it says in which form it is read.
func TestLongList(t *testing.T) {
	const n = 12_000_000
	list := "\x80\x02]" +
		strings.Repeat("("+strings.Repeat("J\x01\x02\x03\x04", 1000)+"e", n/1000) + "."
	if _, err := load([]byte(list), pickle.Options{}); err == nil ||
		!strings.Contains(err.Error(), "save long lists of numbers as tensors or arrays") {
		t.Error(err)
	}
}

// TestObjectsFit reads many small objects, as a checkpoint of many ranks has one for each part of a
// tensor: in Python's own words, with all that is said twice taken from the memo, they are as short
// as they can be.
func TestObjectsFit(t *testing.T) {
	const before = "\x80\x04\x8c\x01m\x94\x8c\x05Index\x94\x93\x940\x8c\x03fqn\x940\x8c\x06offs" +
		"et\x940\x8c\x05index\x940"
	const object = "h\x02)\x81\x94}\x94(h\x03h\x00h\x04h\x02M\x01\x01K\x00\x86\x94\x85\x94R\x94" +
		"h\x05M\x01\x01ub"
	const n = 200_000
	got, err := load([]byte(before+"]("+strings.Repeat(object, n)+"e."),
		pickle.Options{Globals: pickle.InertGlobals("m.Index")})
	if list, is := got.(*pickle.List); err != nil || !is || len(list.Items) != n {
		t.Fatal(err)
	}
}

// TestBatches writes more items than go on the stack together. They are written in batches of 1000,
// and read back.
func TestBatches(t *testing.T) {
	list, dict := &pickle.List{}, &pickle.Dict{}
	for i := range int64(2001) {
		list.Items = append(list.Items, i)
		dict.Items = append(dict.Items, pickle.Item{Key: i, Value: -i})
	}
	b, err := pickle.Append(nil, pickle.Tuple{list, dict})
	if err != nil {
		t.Fatal(err)
	}
	got, err := load(b, pickle.Options{})
	if err != nil || repr(got, 0) != repr(pickle.Tuple{list, dict}, 0) {
		t.Errorf("they are read as %v, %v", got, err)
	}
	if bytes.Count(b, []byte("e(")) != 2 || bytes.Count(b, []byte("u(")) != 2 {
		t.Error("they are not written in batches of 1000")
	}
}

// TestOddMemo gives things numbers in the memo that do not follow each other, and some twice. Of a
// number the last thing counts.
func TestOddMemo(t *testing.T) {
	const text = "\x80\x04(K\x07q\x02K\x08q\x00K\x09q\x01K\x0aq\x02K\x0bq\x00K\x0c\x94h\x00h" +
		"\x01h\x02h\x03t."
	got, err := load([]byte(text), pickle.Options{})
	if want := "(7, 8, 9, 10, 11, 12, 11, 9, 10, 12)"; err != nil || repr(got, 0) != want {
		t.Errorf("%s, %v; want %s", repr(got, 0), err, want)
	}
}
