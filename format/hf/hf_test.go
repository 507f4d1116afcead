package hf_test

// This file tests the reader on files that are made here, and on shards that torch wrote.
import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/tensor"
)

// makeFile returns a file with tensors of U8, which it sets in them, whose bytes count up. It stops
// the test if they cannot be laid out.
func makeFile(t testing.TB, metadata map[string]string,
	tensors ...safetensors.Tensor) *fstest.MapFile {
	for i := range tensors {
		tensors[i].DType = tensor.U8
	}
	h, err := safetensors.Layout(tensors, metadata)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := int64(0); h.Size() > int64(len(b)); i++ {
		b = append(b, byte(i))
	}
	return &fstest.MapFile{Data: b}
}

// tensorOf returns the entry of a tensor for makeFile.
func tensorOf(name string, shape ...int) safetensors.Tensor {
	return safetensors.Tensor{Name: name, Shape: shape}
}

// TestFile reads a single file. Its tensors and its metadata are found.
func TestFile(t *testing.T) {
	dir := fstest.MapFS{
		"m.safetensors": makeFile(t, map[string]string{"format": "pt"}, tensorOf("a", 2),
			tensorOf("b"))}
	files := format.NewFiles(dir)
	c, err := hf.ReadFile(files, "m.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c,
		formattest.What{"a": {"torch.uint8", []any{2.0}, "0001"},
			"b": {"torch.uint8", []any{}, "02"}})
	if v, ok := c.Value("__metadata__.format"); !ok || v != "pt" {
		t.Errorf("format = %v", v)
	}
}

// TestIndex reads a folder by its index, and says what is missing or stands elsewhere.
func TestIndex(t *testing.T) {
	const index = `{"metadata":{"total_size":6},"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}`
	dir := fstest.MapFS{
		"1.safetensors": makeFile(t, map[string]string{"format": "pt", "part": "1"},
			tensorOf("a", 2),
			tensorOf("b", 1)),
		"2.safetensors": makeFile(t, map[string]string{"format": "pt", "part": "2"},
			tensorOf("c", 3)),
		"3.safetensors":       {Data: []byte("not in the index")},
		safetensors.IndexName: {Data: []byte(index)},
	}
	files := format.NewFiles(dir)
	c, err := hf.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c,
		formattest.What{"a": {"torch.uint8", []any{2.0}, "0001"},
			"b": {"torch.uint8", []any{1.0}, "02"}, "c": {"torch.uint8", []any{3.0}, "000102"}})
	if _, ok := c.Value("__metadata__.part"); ok || len(c.Values) != 1 {
		t.Errorf("values %v; only what all files agree on is one of the checkpoint", c.Values)
	}
	for _, broken := range []struct{ index, err string }{
		{strings.Replace(index, `"c":"2`, `"d":"2`, 1),
			`tensor "c" stands in 2.safetensors, and the index does not list it: the files are ` +
				`not all of one checkpoint`},
		{strings.Replace(index, `"b":"1`, `"b":"2`, 1),
			`tensor "b" stands in 1.safetensors, but in the index under "2.safetensors"; copy`},
		{strings.Replace(index, `"c":"2`, `"d":"1.safetensors","c":"2`, 1),
			`tensor "d" is not in 1.safetensors; copy or download`},
		{strings.Replace(index, `"c":"2`, `"c":"../2`, 1), `no plain file name`},
		{strings.Replace(index, `"c":"2`, `"c":"4`, 1),
			safetensors.IndexName +
				` names 2 files, of which 1 is missing: 4.safetensors; copy what is missing here too`},
		{strings.NewReplacer(`"1`, `"7`, `"2`, `"8`).Replace(index),
			`of which 2 are missing: 7.safetensors, 8.safetensors; copy what is missing here too, ` +
				`or download the model again, or remove the index`},
		{index[:50], `broken JSON`},
	} {
		dir[safetensors.IndexName] = &fstest.MapFile{Data: []byte(broken.index)}
		if _, err := hf.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), broken.err) {
			t.Errorf("%s: %v; want %q", broken.index, err, broken.err)
		}
	}
}

// TestSharded reads what torch's distributed checkpoint wrote with four processes.
func TestSharded(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/sharded.zip")
	files := format.NewFiles(dir)
	c, err := hf.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c, onlySharded(want))
	// torch does not say how large tensors are: the farthest shards are missed by nobody
	const last = "shard-00004-model-00001-of-00001.safetensors"
	formattest.CheckDamage(t, envtest.Places(t), dir, hf.Read, func(name string) bool {
		return name != last
	})
	for range 2 {
		c, err := hf.Read(format.NewFiles(dir))
		if err != nil || !strings.Contains(c.Doubt, "how large the tensors are") {
			t.Errorf("%v, %v", c, err)
		}
		delete(dir, last)
	}
}

// onlySharded returns those tensors of a sample that torch saved as shards, by their names.
func onlySharded(all formattest.What) formattest.What {
	found := maps.Clone(all)
	maps.DeleteFunc(found, func(name string, _ [3]any) bool {
		return !strings.Contains(name, "model.") && !strings.Contains(name, "optimizer.")
	})
	return found
}

// TestBadShards says of files that are no shards of one checkpoint what is wrong.
func TestBadShards(t *testing.T) {
	info := func(text string) map[string]string {
		return map[string]string{"DCP_SHARDING_INFO": text}
	}
	at := func(offsets string) map[string]string {
		return info(fmt.Sprintf(`{"a":{"saved_offsets":%s}}`, offsets))
	}
	for _, c := range []struct {
		one, two *fstest.MapFile
		err      string
	}{
		{makeFile(t, nil, tensorOf("a", 2)), makeFile(t, nil, tensorOf("a", 2)),
			`tensor "a": it is also in 1.safetensors; the two files are no shards, or of different ` +
				`checkpoints: give the path of the one that is meant`},
		{makeFile(t, info("{"), tensorOf("a", 2)), makeFile(t, nil, tensorOf("b", 2)),
			`metadata DCP_SHARDING_INFO`},
		{makeFile(t, info("[]"), tensorOf("a", 2)), makeFile(t, nil, tensorOf("b", 2)),
			`[ where { is due`},
		{makeFile(t, info(`{} 1`), tensorOf("a", 2)), makeFile(t, nil, tensorOf("b", 2)),
			`1 after the JSON`},
		{makeFile(t, at("[0"+strings.Repeat(",0", 64)+"]"), tensorOf("a", 2)),
			makeFile(t, nil, tensorOf("b", 2)), `65 offsets of a tensor`},
		{makeFile(t, info("{}"), tensorOf("a", 2)), makeFile(t, nil, tensorOf("b", 2)),
			`0 offsets for a shard of shape [2]`},
		{makeFile(t, at("[0,0]"), tensorOf("a", 2)), makeFile(t, nil, tensorOf("b", 2)),
			`2 offsets for a shard of shape [2]`},
		{makeFile(t, at("[-1]"), tensorOf("a", 2)), makeFile(t, nil, tensorOf("b", 2)),
			`offset -1`},
		{makeFile(t, at("[9223372036854775807]"), tensorOf("a", 2)),
			makeFile(t, nil, tensorOf("b", 2)), `has offset`},
		{makeFile(t, at("[9223372036854775800]"), tensorOf("a", 2)),
			makeFile(t, nil, tensorOf("b", 2)),
			`none that a file can hold`},
		{makeFile(t, at("[0]"), tensorOf("a", 2)), makeFile(t, at("[2,0]"), tensorOf("a", 2, 1)),
			`this shard is u8 of 2 dimensions, another one u8 of 1`},
		{makeFile(t, at("[0]"), tensorOf("a", 2)), &fstest.MapFile{Data: []byte("x")},
			`2.safetensors`},
	} {
		_, err := hf.Read(
			format.NewFiles(fstest.MapFS{"1.safetensors": c.one, "2.safetensors": c.two}))
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v; want %q", err, c.err)
		}
	}
	says := func(text string) map[string]string {
		return map[string]string{"DCP_SHARDING_INFO": `{"a":{"saved_offsets":[0]}}`, "shoal": text}
	}
	for text, want := range map[string]string{
		`{"rank":0,"ranks":2,"file":1,"files":1,"shapes":{"a":[4]}}`: `file shard-00002-model-00001-of-….safetensors is missing: by 1.safetensors there are 2 ranks, and of tensor "a" 2 of 4`,
		`{"rank":0,"ranks":1,"file":1,"files":2,"shapes":{"a":[4]}}`: `shard-00001-model-00002`,
		`{"rank":0,"ranks":1,"file":1,"files":1,"shapes":{"a":[1]}}`: `this shard ends at [2], the whole tensor by metadata shoal at [1]`,
		`{"rank":0,"ranks":1,"file":1,"files":1}`:                    `metadata shoal has shape [] for the tensor`,
		`{"rank":1,"ranks":1,"file":1,"files":1}`:                    `metadata shoal: rank 1 of 1`,
		`{"rank":0,"ranks":1}`:                                       `shoal-layout.json, which says how these make up the whole, is missing`,
		`{"rank":0,"ranks":1,"file":1,"files":1,"shapes":{"a":[2]}}`: "",
		`{"rank":0,"own":{}}`:                                        "",
	} {
		_, err := hf.Read(
			format.NewFiles(fstest.MapFS{
				"1.safetensors": makeFile(t, says(text), tensorOf("a", 2))}))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	holes := fstest.MapFS{"1.safetensors": makeFile(t, at("[0]"), tensorOf("a", 2)),
		"2.safetensors": makeFile(t, at("[3]"), tensorOf("a", 2))}
	if formattest.IsSound(holes, hf.Read) {
		t.Error("a hole between two shards passes")
	}
	if _, err := hf.Read(format.NewFiles(fstest.MapFS{})); err == nil {
		t.Error("a folder without files passes")
	}
}

// TestCounted takes files away whose names say how many there must be. The error names one that is
// missing.
func TestCounted(t *testing.T) {
	for _, c := range []struct{ names, err string }{
		{"model-00001-of-00003 model-00002-of-00003 model-00003-of-00003", ""},
		{"model-00000-of-00003 model-00001-of-00003 model-00002-of-00003", ""},
		{"model-00001-of-00002 model-00002-of-00002 other-1-of-1 extra", ""},
		{"shard-00001-of-00002 shard-00002-of-00002", ""},
		{"shard-00001-model-00001-of-00002", ""}, // of torch: a rank has not all numbers
		{"model-00001-of-00003 model-00003-of-00003", "model-00002-of-00003.safetensors is " +
			"missing, by its name model-00001-of-00003.safetensors is one of 3 files"},
		{"model-00001-of-00003 model-00002-of-00003",
			"model-00003-of-00003.safetensors is missing"},
		{"model-00002-of-00003 model-00003-of-00003",
			"model-00001-of-00003.safetensors is missing"},
		{"a-1-of-1 b-2-of-2", "b-1-of-2.safetensors is missing"},
		{"shard-00001-of-00002", "shard-00002-of-00002.safetensors is missing"},
		{"a-1-of-4000000000000000000", "a-2-of-4000000000000000000.safetensors is missing"},
	} {
		dir := fstest.MapFS{}
		for _, name := range strings.Fields(c.names) {
			dir[name+".safetensors"] = makeFile(t, nil, tensorOf(name, 2))
		}
		if _, err := hf.Read(format.NewFiles(dir)); (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want %q", c.names, err, c.err)
		}
	}
}

// FuzzRead has any bytes as two files, and any text as their index: nothing panics, and what is
// read is sound.
func FuzzRead(f *testing.F) {
	dir, _ := formattest.Load(f, "testdata/sharded.zip")
	const one, two = "shard-00001-model-00001-of-00001.safetensors",
		"shard-00002-model-00001-of-00001.safetensors"
	f.Add(dir[one].Data, dir[two].Data, []byte(nil))
	f.Add(makeFile(f, nil, tensorOf("a", 2)).Data, makeFile(f, nil, tensorOf("b", 2)).Data,
		[]byte(`{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}`))
	bins, _ := shardedBin(f)
	f.Add(bins["pytorch_model-00001-of-00002.bin"].Data,
		bins["pytorch_model-00002-of-00002.bin"].Data, []byte(nil))
	f.Fuzz(func(t *testing.T, one, two, index []byte) {
		dir := fstest.MapFS{"1.safetensors": {Data: bytes.Clone(one)}, "2.safetensors": {Data: two}}
		if len(index) > 0 {
			dir[safetensors.IndexName] = &fstest.MapFile{Data: index}
		}
		formattest.IsSound(dir, hf.Read)
	})
}

// TestBeside has files beside a checkpoint that can hold tensors: without an index and with one,
// which does not name them all. They are listed in Extras.
func TestBeside(t *testing.T) {
	header := append([]byte{2, 0, 0, 0, 0, 0, 0, 0}, "{}"...)
	dir := fstest.MapFS{"model.safetensors": {Data: header}, "optimizer.pt": {},
		"rng_state.pth": {}, "config.json": {}, "old.pt/x": {}}
	for _, indexed := range []bool{false, true} {
		want := []string{"optimizer.pt", "rng_state.pth"}
		if indexed {
			dir["model.safetensors.index.json"] = &fstest.MapFile{Data: []byte(`{"weight_map":{}}`)}
			want = slices.Concat([]string{"model.safetensors"}, want)
		}
		c, err := hf.Read(format.NewFiles(dir))
		if err != nil || !slices.Equal(c.Extras, want) {
			t.Errorf("indexed %v: %v, %v; want %q", indexed, c, err, want)
		}
	}
}
