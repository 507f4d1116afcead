package snapshot_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/state/manifest"
)

// rewriteAsOlder gives the shard at path, of one rank of so many, the form of older ones: of its
// metadata it keeps the rank and what is the worker's own. If it is another shard the test fails.
func rewriteAsOlder(t *testing.T, path string, rank, ranks int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := safetensors.ReadHeader(path, bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	var o format.Origin
	if err := json.Unmarshal([]byte(h.Metadata[format.OriginKey]), &o); err != nil ||
		o.Rank != rank || o.Ranks != ranks || len(o.Shapes) == 0 {
		t.Fatalf("%s: %v", h.Metadata[format.OriginKey], err)
	}
	h.Metadata[format.OriginKey] = fmt.Sprintf(`{"rank":%d,"own":%s}`, o.Rank, o.Own)
	head, err := h.AppendBinary(nil)
	if err == nil {
		err = os.WriteFile(path, append(head, b[h.Data:]...), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// openCheckpoint opens a checkpoint until the test ends, as tools do that know nothing of jobs, and
// returns the error of Open.
func openCheckpoint(t *testing.T, path string) (*checkpoint.Checkpoint, error) {
	c, err := checkpoint.Open(path)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// TestShardsSayWhichTheyAre looks at a checkpoint as files: shards that are missing are missed,
// whatever the others are called. Shards as they were written before are read too, and jobs go on
// from them.
func TestShardsSayWhichTheyAre(t *testing.T) {
	f := snapshot.Folder{Root: filepath.Join(t.TempDir(), "c"), Keep: 1, Log: func(string) {}}
	s, memory := snapshottest.SmallState(1, 2)
	writeParts(t, f, s, memory, 0, 1)
	dir := f.Path(1)
	shard := func(i, of int) string {
		return filepath.Join(dir, fmt.Sprintf("shard-%05d-of-%05d.safetensors", i, of))
	}
	if c, err := openCheckpoint(t, dir); err != nil || c.Doubt != "" || len(c.Check(c.Files)) > 0 {
		t.Fatalf("%+v, %v", c, err)
	}

	alone := t.TempDir()
	first, err := os.ReadFile(shard(1, 2))
	if err != nil || os.WriteFile(filepath.Join(alone, "shard-00001-of-00001.safetensors"), first,
		0o666) != nil {
		t.Fatal(err)
	}
	if _, err := openCheckpoint(t, alone); err == nil ||
		!strings.Contains(err.Error(),
			`by shard-00001-of-00001.safetensors there are 2 ranks, and of tensor "w" 500 of 1000 elements are not here`) {
		t.Errorf("the first of two shards: %v", err)
	}

	for rank := range 2 {
		rewriteAsOlder(t, shard(rank+1, 2), rank, 2)
	}
	c, err := openCheckpoint(t, dir)
	if err == nil {
		err = os.Remove(filepath.Join(dir, manifest.Name))
	}
	if err != nil || len(c.Check(c.Files)) > 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := checkpoint.Seal(t.Context(), c, 1); err != nil {
		t.Fatal(err)
	}
	got, found, err := readNewest(t, f, 1)
	if err != nil || !bytes.Equal(found[0], memory[0]) || string(got.Own[1]) != `{"noise":1}` {
		t.Errorf("%v, own %s", err, got.Own[1])
	}
}
