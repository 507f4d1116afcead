package pickle_test

// This file tests dicts.
import (
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
