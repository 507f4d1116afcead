package dcp_test

// This file tests the reader on checkpoints that torch wrote, and on damage to them.
import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/tensor"
)

// TestTorch reads what four processes of torch wrote: a mesh of two axes, uneven shards, replicas,
// values.
func TestTorch(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/dcp.zip")
	files := format.NewFiles(dir)
	c, err := dcp.Read(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c, want)
	if v, ok := c.Value("step"); !ok || v != int64(12) {
		t.Errorf("step = %v", v)
	}
	if v, ok := c.Value("nested.name"); !ok || v != "x" {
		t.Errorf("nested.name = %v", v)
	}
	for i := range c.Tensors {
		if s := &c.Tensors[i]; s.Name == "model.embed.weight" && len(s.Pieces) != 4 {
			t.Errorf("%s has %d pieces", s.Name, len(s.Pieces))
		}
	}
}

// readAlone reads a checkpoint in which only torch's globals may be mentioned.
func readAlone(files *format.Files) (*format.Checkpoint, error) { return dcp.Read(files, nil) }

// TestDamage demands that damage to any file of a checkpoint is found.
func TestDamage(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/dcp.zip")
	formattest.CheckDamage(t, envtest.Places(t), dir, readAlone, func(string) bool { return true })
}

// TestRefuses says of broken metadata what is wrong.
func TestRefuses(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/dcp.zip")
	metadata := dir[dcp.MetadataName].Data
	for _, c := range []struct {
		name     string
		old, new string
		err      string
	}{
		{"path traversal", "__1_0.distcp", "../../passwd", "which is no place in the folder"},
		{"path of Windows", "__1_0.distcp", `a\bc0.distcp`, "which is no place in the folder"},
		{"drive of Windows", "__1_0.distcp", "C:1_0.distcp", "which is no place in the folder"},
		{"missing file", "__1_0.distcp", "__9_0.distcp", "__9_0.distcp: file does not exist; " +
			"copy the file here too"},
		{"another global", "BytesStorageMetadata", "Bytes\x53torageMetadatb",
			"which shoal does not know"},
		{"a dtype unknown", "bfloat16", "qfloat16", "asks for torch.qfloat16"},
	} {
		broken := maps.Clone(dir)
		text := bytes.ReplaceAll(metadata, []byte(c.old), []byte(c.new))
		if bytes.Equal(text, metadata) {
			t.Fatalf("%s: %q is not in the metadata", c.name, c.old)
		}
		broken[dcp.MetadataName] = &fstest.MapFile{Data: text}
		if _, err := dcp.Read(format.NewFiles(broken), nil); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
	for _, text := range []string{"\x80\x02N.", "\x80\x02}.", "",
		"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81."} {
		broken := fstest.MapFS{dcp.MetadataName: {Data: []byte(text)}}
		if _, err := dcp.Read(format.NewFiles(broken), nil); err == nil {
			t.Errorf("metadata %q passes", text)
		}
	}
}

// classes are those of torch that .metadata mentions.
var classes = torchzip.Globals.With(pickle.InertGlobals(
	"torch.distributed.checkpoint.metadata.Metadata",
	"torch.distributed.checkpoint.metadata.TensorStorageMetadata",
	"torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
	"torch.distributed.checkpoint.metadata.TensorProperties",
	"torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
	"torch.distributed.checkpoint.metadata.MetadataIndex",
	"torch.distributed.checkpoint.metadata.StorageMeta",
	"torch.distributed.checkpoint.filesystem._StorageInfo"))

// A metadata is what .metadata says of a tensor w of two elements, for a change.
type metadata struct {
	root     any
	all      *pickle.Dict   // state_dict_metadata
	w, chunk *pickle.Object // what it says of w and of its only chunk
	item     *pickle.Item   // what storage_data says of the chunk
}

// parseMetadata returns what a .metadata says. It stops the test if that has no tensor.
func parseMetadata(t *testing.T, text []byte) *metadata {
	root, err := pickle.Load(text, pickle.Options{Globals: classes})
	if err != nil {
		t.Fatal(err)
	}
	m := &metadata{root: root}
	if m.all, err = pickle.Get[*pickle.Dict](root, "state_dict_metadata"); err != nil {
		t.Fatal(err)
	}
	m.w = m.all.Items[0].Value.(*pickle.Object)
	chunks, err := pickle.Get[*pickle.List](m.w, "chunks")
	if err != nil {
		t.Fatal(err)
	}
	m.chunk = chunks.Items[0].(*pickle.Object)
	places, err := pickle.Get[*pickle.Dict](root, "storage_data")
	if err != nil {
		t.Fatal(err)
	}
	m.item = &places.Items[0]
	return m
}

// set gives a field of an object a value.
func set(object any, name string, value any) {
	object.(*pickle.Object).State.(*pickle.Dict).Set(name, value)
}

// properties are the properties of w.
func (m *metadata) properties() *pickle.Object {
	v, _ := m.w.Attr("properties")
	return v.(*pickle.Object)
}

// size returns sizes as a pickle has them.
func size(n ...int) any { return torchzip.IntTuple(n) }

// itemChanges are changes of single fields, and the errors that they give.
var itemChanges = []struct {
	name   string
	change func(m *metadata)
	err    string
}{
	{"nothing", func(*metadata) {}, ""},
	{"transformed", func(m *metadata) {
		set(m.item.Value, "transform_descriptors", &pickle.List{Items: []any{"zstd"}})
	}, `"w" is stored transformed`},
	{"before the file", func(m *metadata) { set(m.item.Value, "offset", int64(-1)) },
		"which is no place in the folder"},
	{"less than nothing", func(m *metadata) { set(m.item.Value, "length", int64(-1)) },
		"which is no place in the folder"},
	{"nowhere", func(m *metadata) { set(m.item.Key, "offset", size(1)) },
		"the chunk [0:2]: .metadata does not say where it lies"},
	{"neither", func(m *metadata) { m.all.Set("w", nil) }, "None is neither tensor nor bytes"},
	{"a number as its name", func(m *metadata) { m.all.Items[0].Key = int64(1) },
		"an int as the name of a tensor"},
	{"other properties", func(m *metadata) { m.properties().State = pickle.Tuple{} },
		"of a version of torch that shoal does not know"},
	{"another type", func(m *metadata) {
		m.properties().State.(pickle.Tuple)[0] = pickle.Global{Module: "torch", Name: "int32"}
	}, "__0_0.distcp holds something else there"},
	{"another shape", func(m *metadata) { set(m.chunk, "sizes", size(1)) },
		"__0_0.distcp holds something else there"},
	{"beyond the tensor", func(m *metadata) { set(m.chunk, "offsets", size(1)) },
		"lies outside shape [2]"},
	{"beyond all numbers", func(m *metadata) { set(m.chunk, "offsets", size(math.MaxInt)) },
		"lies outside shape [2]"},
	{"fewer offsets", func(m *metadata) { set(m.chunk, "offsets", size()) },
		"a chunk of 1 dimensions at [] in shape [2]"},
	{"more sizes", func(m *metadata) { set(m.chunk, "sizes", size(2, 1)) },
		"a chunk of 2 dimensions at [0] in shape [2]"},
}

// TestRefusesItems changes single fields of the metadata of a tensor, and says what is wrong.
func TestRefusesItems(t *testing.T) {
	w := format.Shard{Name: "w", DType: tensor.F32, Shape: tensor.Shape{2},
		Box: tensor.Box{{To: 2}}}
	o, err := dcp.Layout([][]format.Shard{{w}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := formattest.WriteOutput(t, o, &format.Checkpoint{Tensors: o.Tensors}, format.NewFiles(
		fstest.MapFS{"__0_0.distcp": {Data: make([]byte, o.Files[0].Size)}}))
	for _, c := range itemChanges {
		m := parseMetadata(t, dir[dcp.MetadataName].Data)
		c.change(m)
		text, err := pickle.Append(nil, m.root)
		if err != nil {
			t.Fatal(err)
		}
		changed := maps.Clone(dir)
		changed[dcp.MetadataName] = &fstest.MapFile{Data: text}
		if _, err := readAlone(format.NewFiles(changed)); (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
}

// TestEmptyDicts reads dicts without keys, alone and in what is saved with others, as values.
func TestEmptyDicts(t *testing.T) {
	group := &pickle.Dict{Items: []pickle.Item{{Key: "lr", Value: 0.5},
		{Key: "defaults", Value: &pickle.Dict{}}}}
	o, err := dcp.Content{Ranks: make([][]format.Shard, 1), Objects: []dcp.Object{
		{Name: "groups", Root: &pickle.List{Items: []any{group}}},
		{Name: "none", Root: &pickle.Dict{}}}}.Layout()
	if err != nil {
		t.Fatal(err)
	}
	c, err := readAlone(format.NewFiles(formattest.WriteOutput(t, o, &format.Checkpoint{}, nil)))
	if err != nil {
		t.Fatal(err)
	}
	want := []format.Value{{Path: "groups.0.defaults", Data: map[string]any{}},
		{Path: "groups.0.lr", Data: 0.5}, {Path: "none", Data: map[string]any{}}}
	if diff := cmp.Diff(want, c.Values); diff != "" {
		t.Errorf("-saved +read:\n%s", diff)
	}
}

// TestOtherFileNames reads a checkpoint whose files have names of another writer. Of what is in
// them it is not known which rank has saved it.
func TestOtherFileNames(t *testing.T) {
	dir, want := formattest.Load(t, "testdata/dcp.zip")
	order, err := readAlone(format.NewFiles(dir))
	if err != nil {
		t.Fatal(err)
	}
	dir["part1.distcp"] = dir["__1_0.distcp"]
	delete(dir, "__1_0.distcp")
	dir[dcp.MetadataName] = &fstest.MapFile{Data: bytes.ReplaceAll(dir[dcp.MetadataName].Data,
		[]byte("__1_0.distcp"), []byte("part1.distcp"))}
	files := format.NewFiles(dir)
	c, err := readAlone(files)
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, files, c, want)
	if slices.ContainsFunc(c.SavedOrder, func(s format.SavedItem) bool { return s.Rank == 1 }) ||
		!slices.ContainsFunc(order.SavedOrder, func(s format.SavedItem) bool {
			return s.Rank == 1
		}) {
		t.Errorf("saved by rank 1: %v, and before %v", c.SavedOrder, order.SavedOrder)
	}
}

// TestUnread reads a checkpoint with an object of a class that is not known: the tensors are there,
// and Check tells.
func TestUnread(t *testing.T) {
	dir, _ := formattest.Load(t, "testdata/unknown.zip")
	files := format.NewFiles(dir)
	c, err := dcp.Read(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	faults := c.Check(files)
	if len(c.Tensors) != 1 || len(faults) != 1 || faults[0].Name != "loader" ||
		!strings.Contains(faults[0].What, "asks for __main__.Loader") {
		t.Errorf("%v, faults %v", c.Tensors, faults)
	}
}

// FuzzMetadata has any text as .metadata: reading it does not panic, and what is read is sound.
func FuzzMetadata(f *testing.F) {
	dir, _ := formattest.Load(f, "testdata/dcp.zip")
	f.Add(dir[dcp.MetadataName].Data)
	f.Fuzz(func(t *testing.T, metadata []byte) {
		changed := maps.Clone(dir)
		changed[dcp.MetadataName] = &fstest.MapFile{Data: metadata}
		formattest.IsSound(changed, readAlone)
	})
}
