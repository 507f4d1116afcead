package pickle_test

// This file tests dicts, and calls.
import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shoal-ml/shoal/format/pickle"
)

// TestPut builds dicts in dicts.
func TestPut(t *testing.T) {
	d := &pickle.Dict{}
	for _, path := range []string{"a.b", "c", "a.d.e"} {
		if err := d.Put(path, path); err != nil {
			t.Fatal(err)
		}
	}
	d.Set("c", int64(1))
	d.Set("f", int64(2))
	item := func(key string, value any) pickle.Item { return pickle.Item{Key: key, Value: value} }
	want := &pickle.Dict{Items: []pickle.Item{
		item("a", &pickle.Dict{
			Items: []pickle.Item{item("b", "a.b"),
				item("d", &pickle.Dict{Items: []pickle.Item{item("e", "a.d.e")}})}}),
		item("c", int64(1)), item("f", int64(2)),
	}}
	if diff := cmp.Diff(want, d, cmpopts.IgnoreUnexported(pickle.Dict{})); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]string{"c": "c stands twice", "a": "a stands twice",
		"c.x": "c.x: an int has no x in it"} {
		if err := d.Put(path, nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", path, err, want)
		}
	}
}

// TestLargeDict looks keys up in a dict of so many that it has an index, while it grows. Of a key
// that was set twice the last one counts.
func TestLargeDict(t *testing.T) {
	d := &pickle.Dict{Items: []pickle.Item{{Key: int64(3), Value: "no text"}}}
	for i := range 40 {
		key := fmt.Sprint(i)
		if v, ok := d.Get(key); ok {
			t.Errorf("%s is %v before it is set", key, v)
		}
		d.Set(key, i)
		for k := range i + 1 {
			if v, ok := d.Get(fmt.Sprint(k)); !ok || v != k {
				t.Fatalf("of %d keys %d is %v, %v", i+1, k, v, ok)
			}
		}
	}
	d.Items = append(d.Items, pickle.Item{Key: "7", Value: "last"})
	if v, _ := d.Get("7"); v != "last" {
		t.Errorf("a key that was set twice is %v", v)
	}
	d.Set("7", "new")
	if v, _ := d.Get("7"); v != "new" || d.Items[8].Value != 7 || len(d.Items) != 42 {
		t.Errorf("set again it is %v, in %d items", v, len(d.Items))
	}
}

// TestCalls reads calls of names that every pickle may mention, and refuses others of them.
func TestCalls(t *testing.T) {
	const a, one = "X\x01\x00\x00\x00a", "K\x01"
	ordered := func(items string) string {
		return "ccollections\nOrderedDict\n](" + items + "e\x85R."
	}
	scalar := func(code, order, bytes string) string {
		return "cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\x00\x00\x00" + code +
			"\x89\x88\x87R(K\x03X\x01\x00\x00\x00" + order + "tbC\x04" + bytes + "\x86R."
	}
	const namespace, buffer = "cargparse\nNamespace\n", "c_io\nBytesIO\n)R"
	for _, c := range []struct{ text, want, err string }{
		{ordered(a + one + "\x86](" + one + a + "e"), "{s61: 1, 1: s61}", ""},
		{ordered(one + "\x85"), "", "a tuple where a key and a value are due"},
		{ordered(one), "", "an int where a key and a value are due"},
		{namespace + ")}\x92.", "argparse.Namespace()None", ""},
		{namespace + ")}(" + a + one + "u\x92.", "", "with keywords"},
		{namespace + "]}\x92.", "", "with keywords"},
		{namespace + ")N\x92.", "", "with keywords"},
		{scalar("i4", ">", "\x00\x00\x01\x02"), "258", ""},
		{scalar("i4", "<", "\x02\x01\x00\x00"), "258", ""},
		{scalar("U1", ">", "\x00\x00\x00h"), "s68", ""},
		{scalar("i4", "=", "\x02\x01\x00\x00"), "", "a NumPy scalar that is no number"},
		{scalar("V4", "|", "\x02\x01\x00\x00"), "", `a NumPy scalar of type "V4"`},
		{buffer + "(C\x02xyK\x00Ntb.", "*pickle.Buffer?", ""},
		{buffer + "(C\x02xyK\x00tb.", "", "no tuple of bytes, position and attributes"},
		{buffer + "(NK\x00Ntb.", "", "no tuple of bytes, position and attributes"},
		{"c_codecs\nencode\n" + a + "X\x04\x00\x00\x00utf8\x86R.", "",
			"where a text and latin1 are due"},
	} {
		v, err := load([]byte("\x80\x04"+c.text), pickle.Options{})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) ||
			err == nil && repr(v, 0) != c.want {
			t.Errorf("%q: %s, %v; want %s, %q", c.text, repr(v, 0), err, c.want, c.err)
		}
	}
}
