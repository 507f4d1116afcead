package hf_test

// This file tests what the files of a folder tell of whether others are missing.
import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/hf"
)

// shardOf returns the metadata of a file with the first part of tensor a, and what shoal says in it
// of the file; "" = nothing.
func shardOf(offset, shoal string) map[string]string {
	m := map[string]string{"DCP_SHARDING_INFO": `{"a":{"saved_offsets":[` + offset + `]}}`}
	if shoal != "" {
		m["shoal"] = shoal
	}
	return m
}

// origin returns what shoal says in a file: of which rank of how many it is, which of how many
// files of the rank, and the shape of tensor a.
func origin(rank, ranks, file, files, shape string) string {
	return `{"rank":` + rank + `,"ranks":` + ranks + `,"file":` + file + `,"files":` + files +
		`,"shapes":{"a":[` + shape + `]}}`
}

// TestDoubt reads folders, and single files, that do not tell whether others are missing, and
// others that do.
func TestDoubt(t *testing.T) {
	a, b := tensorOf("a", 2), tensorOf("b", 2)
	const noIndex, sizes, several = "there is no index, and ", "how large the tensors are",
		"it is one of several files"
	for _, c := range []struct {
		name string
		dir  fstest.MapFS
		// doubt is of the folder, and alone of its first file by itself.
		doubt, alone string
	}{
		{"one file", fstest.MapFS{"a": makeFile(t, nil, a)}, "", ""},
		{"two files", fstest.MapFS{"a": makeFile(t, nil, a), "b": makeFile(t, nil, b)}, noIndex,
			""},
		{"numbered files", fstest.MapFS{"a-1-of-2": makeFile(t, nil, a),
			"a-2-of-2": makeFile(t, nil, b)}, "", several},
		{"one numbered file", fstest.MapFS{"a-1-of-1": makeFile(t, nil, a)}, "", ""},
		{"a shard of torch", fstest.MapFS{"a": makeFile(t, shardOf("0", ""), a)}, sizes, several},
		{"numbered shards of torch", fstest.MapFS{"a-1-of-1": makeFile(t, shardOf("0", ""), a)},
			"", several},
		{"a shard of torch and a file", fstest.MapFS{"a": makeFile(t, shardOf("0", ""), a),
			"b": makeFile(t, nil, b)}, sizes, several},
		{"the only shard of shoal", fstest.MapFS{
			"a": makeFile(t, shardOf("0", origin("0", "1", "1", "1", "2")), a)}, "", ""},
		{"shards of two ranks", fstest.MapFS{
			"a": makeFile(t, shardOf("0", origin("0", "2", "1", "1", "4")), a),
			"b": makeFile(t, shardOf("2", origin("1", "2", "1", "1", "4")), a)}, "", several},
		{"two shards of a rank", fstest.MapFS{
			"a": makeFile(t, shardOf("0", origin("0", "1", "1", "2", "4")), a),
			"b": makeFile(t, shardOf("2", origin("0", "1", "2", "2", "4")), a)}, "", several},
	} {
		dir, first := fstest.MapFS{}, ""
		for name, file := range c.dir {
			dir[name+".safetensors"] = file
			if first == "" || name < first {
				first = name
			}
		}
		whole, err := hf.Read(format.NewFiles(dir))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		alone, err := hf.ReadFile(format.NewFiles(dir), first+".safetensors")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, x := range [][2]string{{whole.Doubt, c.doubt}, {alone.Doubt, c.alone}} {
			if got, want := x[0], x[1]; (got == "") != (want == "") ||
				!strings.Contains(got, want) {
				t.Errorf("%s: doubt %q, want %q", c.name, got, want)
			}
		}
	}
}

// TestOrigins reads shards of shoal that are not of one checkpoint. The error says which.
func TestOrigins(t *testing.T) {
	a := tensorOf("a", 2)
	for _, c := range []struct{ one, two, err string }{
		{origin("0", "2", "1", "1", "4"), origin("1", "3", "1", "1", "4"),
			"1.safetensors is of a checkpoint of 2 ranks, 2.safetensors of one of 3"},
		{origin("0", "2", "1", "1", "4"), origin("0", "2", "1", "1", "4"),
			"1.safetensors and 2.safetensors are both file 1 of rank 0"},
		{origin("0", "2", "1", "1", "4"), origin("1", "2", "1", "1", "5"),
			"the whole tensor has shape [5] by this file, and [4] by 1.safetensors"},
		{origin("0", "2", "1", "1", "4"), origin("1", "2", "1", "1", "4,1"),
			"has shape [4,1] for the tensor of this shard of shape [2]"},
		{origin("0", "2", "1", "1", "4"), origin("1", "2", "2", "1", "4"), "file 2 of 1"},
	} {
		dir := fstest.MapFS{"1.safetensors": makeFile(t, shardOf("0", c.one), a),
			"2.safetensors": makeFile(t, shardOf("2", c.two), a)}
		if _, err := hf.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%v; want %q", err, c.err)
		}
	}
}

// TestIsTorch looks at the first bytes of files. A header of safetensors can have a length that
// reads as the beginning of an archive.
func TestIsTorch(t *testing.T) {
	for text, want := range map[string]bool{"PK\x03\x04\x00\x00\x00\x00{": false,
		"PK\x03\x04\x00\x00\x00\x00\x00": true, "PK\x03\x04": true, "\x80\x02}.": false,
		"": false} {
		f, err := format.NewFiles(fstest.MapFS{"x": {Data: []byte(text)}}).Open("x")
		if err != nil {
			t.Fatal(err)
		}
		if is, err := hf.IsTorch(f); err != nil || is != want {
			t.Errorf("%q: %v, %v", text, is, err)
		}
	}
}
