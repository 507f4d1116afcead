package torchzip_test

// This file tests nested dicts of values.
import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// TestNest writes values into a file as dicts in dicts, with objects of their texts, and reads them
// again: the same values, and in the file these objects.
func TestNest(t *testing.T) {
	known := pickle.InertGlobals("megatron.core.enums.ModelType")
	values := []format.Value{
		{Path: "args.dtype", Data: "torch.bfloat16"},
		{Path: "args.kind", Data: "megatron.core.enums.ModelType.encoder"},
		{Path: "args.list", Data: []any{int64(1), 0.5}},
		{Path: "args.number", Data: "megatron.core.enums.ModelType[2]"},
		{Path: "args.other", Data: "some.other.Class[2]"},
		{Path: "args.text", Data: "megatron.core.enums.ModelType[x y]"},
		{Path: "step", Data: int64(3)},
	}
	root := &pickle.Dict{}
	if err := torchzip.NestValues(root, values, torchzip.ObjectsToPickle(known)); err != nil {
		t.Fatal(err)
	}
	class := pickle.Global{Module: "megatron.core.enums", Name: "ModelType"}
	for key, want := range map[string]any{
		"dtype":  pickle.Global{Module: "torch", Name: "bfloat16"},
		"kind":   pickle.Member{Class: class, Name: "encoder"},
		"number": &pickle.Object{Class: class, Args: []any{int64(2)}},
		"other":  "some.other.Class[2]", "text": &pickle.Object{Class: class, Args: []any{"x y"}},
	} {
		if got, err := pickle.Get[any](root, "args", key); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s is %#v, want %#v: %v", key, got, want, err)
		}
	}
	values = values[:5] // a text with a space comes back with a comma, as all do

	root = &pickle.Dict{}
	if err := torchzip.NestValues(root, values, torchzip.ObjectsToPickle(known)); err != nil {
		t.Fatal(err)
	}
	o := &format.Output{}
	if _, err := torchzip.LayoutRoot(o, "x.pt", root, nil); err != nil {
		t.Fatal(err)
	}
	files := format.NewFiles(formattest.WriteOutput(t, o, &format.Checkpoint{}, nil))
	f, err := torchzip.Open(files, "x.pt", known)
	if err != nil {
		t.Fatal(err)
	}
	c := &format.Checkpoint{}
	if err := f.Flatten(c, "", f.Root); err != nil {
		t.Fatal(err)
	}
	if err := c.Finish(); err != nil {
		t.Fatal(err)
	}
	for i := range c.Values {
		c.Values[i].Python = nil // the objects themselves, as TestLayout has them
	}
	if diff := cmp.Diff(values, c.Values); diff != "" {
		t.Error(diff)
	}
	if err := torchzip.NestValues(root, values[:1], torchzip.ToPickle); err == nil ||
		!strings.Contains(err.Error(), `value "args.dtype": args.dtype stands twice`) {
		t.Error(err)
	}
}

// TestNested reads dicts in dicts, and dicts without keys, which are values but for the whole.
func TestNested(t *testing.T) {
	const a, b = "X\x01\x00\x00\x00a", "X\x01\x00\x00\x00b"
	for _, c := range []struct {
		text, values string
		nested       bool
	}{
		{"}", "", false},
		{"}" + a + "}s", "a=map[]", false},
		{"}" + a + "K\x01s", "a=1", false},
		{"}" + a + "}" + b + "K\x01ss", "a.b=1", true},
		{"}(" + a + "}" + b + "K\x01s" + b + "}u", "a.b=1 b=map[]", true},
	} {
		found, _, err := openBytes(makeArchive(t,
			entry{name: "x/data.pkl", data: "\x80\x02" + c.text + "."}))
		if err != nil {
			t.Fatal(err)
		}
		var values []string
		for _, v := range found.Values {
			values = append(values, fmt.Sprintf("%s=%v", v.Path, v.Data))
		}
		if got := strings.Join(values, " "); got != c.values || found.Nested != c.nested {
			t.Errorf("%q: %s, nested %v; want %s, %v", c.text, got, found.Nested, c.values,
				c.nested)
		}
	}
}
