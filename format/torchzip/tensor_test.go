package torchzip_test

// This file tests calls that rebuild tensors, which are made here.
import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/pickle"
)

// global returns the global of a name in a module of torch.
func global(module, name string) pickle.Global { return pickle.Global{Module: module, Name: name} }

// storageOf returns a reference to the storage "0" of a class and so many elements.
func storageOf(class any, n int64) pickle.Reference {
	return pickle.Reference{ID: pickle.Tuple{"storage", class, "0", "cpu", n}}
}

// rebuilt returns the call of a function of torch._utils that makes a tensor of two elements of a
// storage; more are its arguments after requires_grad and the hooks.
func rebuilt(function string, storage any, more ...any) *pickle.Object {
	return &pickle.Object{Class: global("torch._utils", function), Args: append([]any{storage,
		int64(0), pickle.Tuple{int64(2)}, pickle.Tuple{int64(1)}, false, nil}, more...)}
}

// fromType returns the call that makes a tensor of a class.
func fromType(function, class, args any) *pickle.Object {
	return &pickle.Object{Class: global("torch._tensor", "_rebuild_from_type_v2"),
		Args: []any{function, class, args, &pickle.Dict{}}}
}

// flag returns metadata of a tensor with one entry.
func flag(name string, is bool) *pickle.Dict {
	return &pickle.Dict{Items: []pickle.Item{{Key: name, Value: is}}}
}

// TestRebuilds reads tensors of the calls that are known, and refuses those whose bytes would not
// be the values.
func TestRebuilds(t *testing.T) {
	float, raw, f32 := global("torch", "FloatStorage"), global("torch.storage", "UntypedStorage"),
		global("torch", "float32")
	v2, class := global("torch._utils", "_rebuild_tensor_v2"), global("torch", "Tensor")
	args := pickle.Tuple(rebuilt("", storageOf(float, 2)).Args)
	empty := rebuilt("_rebuild_tensor_v2", storageOf(float, 2)) // torch.zeros(0, 4)[:, 3:]
	empty.Args[1], empty.Args[2], empty.Args[3] = int64(3), pickle.Tuple{int64(0), int64(1)},
		pickle.Tuple{int64(4), int64(1)}
	for _, c := range []struct {
		name string
		call any
		err  string
	}{
		{"of floats", rebuilt("_rebuild_tensor_v2", storageOf(float, 2)), ""},
		{"of no floats, beyond the end", empty, ""},
		{"not conjugated", rebuilt("_rebuild_tensor_v2", storageOf(float, 2), flag("conj", false)),
			""},
		{"conjugated", rebuilt("_rebuild_tensor_v2", storageOf(float, 2), flag("conj", true)),
			"a tensor with conj set"},
		{"of bytes", rebuilt("_rebuild_tensor_v3", storageOf(raw, 8), f32), ""},
		{"not negated", rebuilt("_rebuild_tensor_v3", storageOf(raw, 8), f32, flag("neg", false)),
			""},
		{"negated", rebuilt("_rebuild_tensor_v3", storageOf(raw, 8), f32, flag("neg", true)),
			"a tensor with neg set"},
		{"without a type", rebuilt("_rebuild_tensor_v3", storageOf(raw, 8), nil),
			"None is no element type"},
		{"of an unknown type", rebuilt("_rebuild_tensor_v3", storageOf(raw, 8), class),
			"torch.Tensor is no element type that shoal knows"},
		{"of no storage", rebuilt("_rebuild_tensor_v2", nil), "None instead of a typed storage"},
		{"of an untyped storage", rebuilt("_rebuild_tensor_v2", storageOf(raw, 8)),
			"instead of a typed storage"},
		{"of bytes of no storage", rebuilt("_rebuild_tensor_v3", nil, f32),
			"None instead of a storage"},
		{"of a class", fromType(v2, class, args), ""},
		{"of a parameter", fromType(v2, global("torch.nn.parameter", "Parameter"), args), ""},
		{"of another class", fromType(v2, global("builtins", "int"), args),
			"a tensor of class builtins.int"},
		{"of no class", fromType(v2, "x", args), "is none that shoal knows"},
		{"of another function", fromType(global("torch", "Size"), class, args),
			"is none that shoal knows"},
		{"of no arguments", fromType(v2, class, nil), "is none that shoal knows"},
		{"of a class that is none of a storage",
			rebuilt("_rebuild_tensor_v2", storageOf(f32, 2)), "is none that shoal knows"},
		{"of less than nothing", rebuilt("_rebuild_tensor_v2", storageOf(float, -1)),
			"is none that shoal knows"},
		{"of a number as the key", rebuilt("_rebuild_tensor_v2", pickle.Reference{
			ID: pickle.Tuple{"storage", float, int64(0), "cpu", int64(2)}}),
			"is none that shoal knows"},
		{"of a part", rebuilt("_rebuild_tensor_v2", pickle.Reference{
			ID: pickle.Tuple{"storage", float, "0", "cpu", int64(2), nil}}),
			"a reference to data that is no storage"},
		{"of a module", rebuilt("_rebuild_tensor_v2", pickle.Reference{
			ID: pickle.Tuple{"module", float, "0", "cpu", int64(2)}}),
			"a reference to data that is no storage"},
	} {
		text, err := pickle.Append(nil, &pickle.Dict{Items: []pickle.Item{{Key: "w",
			Value: c.call}}})
		if err != nil {
			t.Fatal(err)
		}
		found, _, err := openBytes(makeArchive(t, entry{name: "a/data.pkl", data: string(text)},
			entry{name: "a/data/0", data: "12345678"}))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) ||
			err == nil && len(found.Tensors) != 1 {
			t.Errorf("%s: %v, %v; want %q", c.name, found, err, c.err)
		}
	}
}

// TestPlainDirectory changes single numbers in the directory of an archive without ZIP64. Each is
// noticed.
func TestPlainDirectory(t *testing.T) {
	whole := makeArchive(t, entry{name: "a/data.pkl", data: "\x80\x02}."},
		entry{name: "a/version", data: "3\n"})
	le := binary.LittleEndian
	end := len(whole) - 22
	first := int(le.Uint32(whole[end+16:]))
	for _, c := range []struct {
		name string
		at   int
		err  string
	}{
		{"nothing", -1, ""},
		{"the number of entries", end + 10, "has 2 entries, and says 3"},
		{"the size of an entry", first + 20, "is compressed or encrypted"},
		{"the place of an entry", first + 42, "has no header at byte 1"},
	} {
		b := bytes.Clone(whole)
		if c.at >= 0 {
			b[c.at]++
		}
		if _, _, err := openBytes(b); (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
}
