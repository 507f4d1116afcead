package dcp_test

// This file tests the reader on checkpoints that torch wrote, and on damage to them.
import (
	"bytes"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
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
	formattest.CheckDamage(t, dir, readAlone, func(string) bool { return true })
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
		{"missing file", "__1_0.distcp", "__9_0.distcp", "__9_0.distcp"},
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
