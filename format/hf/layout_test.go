package hf_test

// This file tests what is laid out: shoal and torch read it.
import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/internal/framework"
	"github.com/shoal-ml/shoal/tensor"
)

// TestLayout writes the tensors of shards into files of several sizes, and reads them.
func TestLayout(t *testing.T) {
	dir, all := formattest.Load(t, "testdata/sharded.zip")
	want := onlySharded(all)
	files := format.NewFiles(dir)
	from, err := hf.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	for most, count := range map[int64]int{1: 6, 100: 4, 200: 3, 1 << 40: 1} {
		o, err := hf.Layout(from.Tensors, map[string]string{"format": "pt"}, most)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Files) != count {
			t.Errorf("with %d bytes a file there are %d files, want %d", most, len(o.Files), count)
		}
		written := format.NewFiles(formattest.WriteOutput(t, o, from, files))
		got, err := hf.Read(written)
		if err != nil {
			t.Fatal(err)
		}
		formattest.Compare(t, written, got, want)
		if v, ok := got.Value("__metadata__.format"); !ok || v != "pt" {
			t.Errorf("format = %v", v)
		}
	}
}

// TestLayoutShards writes the shards that torch wrote: all bytes are the same, but for the order of
// keys in JSON.
func TestLayoutShards(t *testing.T) {
	dir, all := formattest.Load(t, "testdata/sharded.zip")
	files := format.NewFiles(dir)
	from, err := hf.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	ranks := make([][]format.Shard, 4)
	for _, s := range from.Tensors {
		for _, p := range s.Pieces {
			rank := strings.Index("1234", p.File[len("shard-0000"):][:1])
			ranks[rank] = append(ranks[rank],
				format.Shard{Name: s.Name, DType: s.DType, Shape: s.Shape, Box: p.Box})
		}
	}
	o, err := hf.LayoutShards(ranks, nil)
	if err != nil {
		t.Fatal(err)
	}
	written := formattest.WriteOutput(t, o, from, files)
	got, err := hf.Read(format.NewFiles(written))
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, format.NewFiles(written), got, onlySharded(all))
	if got.Doubt != "" || slices.ContainsFunc(got.Values, func(v format.Value) bool {
		return v.Path == "__metadata__.shoal"
	}) {
		t.Errorf("%s %v", got.Doubt, got.Values)
	}
	formattest.CheckDamage(t, envtest.Places(t), written, hf.Read,
		func(string) bool { return true })
	if one, err := hf.ReadFile(format.NewFiles(written),
		"shard-00002-model-00001-of-00001.safetensors"); err != nil || one.Doubt == "" {
		t.Errorf("a shard by itself is whole: %v", err)
	}
	for name, f := range written {
		theirs := dir[name]
		if theirs == nil || !bytes.HasSuffix(theirs.Data, f.Data[len(f.Data)-16:]) {
			t.Errorf("%s: torch has other data at its end", name)
		}
	}
	checkTorchLoads(t, written, onlySharded(all))
}

// TestLayoutShardsOfFlat gives ranks several boxes of a tensor, as cuts of flat buffers do. They
// get several files, which shoal and torch read whole.
func TestLayoutShardsOfFlat(t *testing.T) {
	dir, all := formattest.Load(t, "testdata/sharded.zip")
	files := format.NewFiles(dir)
	from, err := hf.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	ranks := make([][]format.Shard, 3)
	for _, s := range from.Tensors {
		n := s.Shape.Box().Elements()
		for r := range ranks {
			for _, box := range s.Shape.Box().Range(n*r/len(ranks), n*(r+1)/len(ranks)) {
				ranks[r] = append(ranks[r],
					format.Shard{Name: s.Name, DType: s.DType, Shape: s.Shape, Box: box})
			}
		}
	}
	o, err := hf.LayoutShards(ranks, nil)
	if err != nil {
		t.Fatal(err)
	}
	written := formattest.WriteOutput(t, o, from, files)
	if written["shard-00002-model-00003-of-00003.safetensors"] == nil {
		t.Errorf("the second rank, in the middle of matrices, has no third file: %v",
			slices.Sorted(maps.Keys(written)))
	}
	got, err := hf.Read(format.NewFiles(written))
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, format.NewFiles(written), got, onlySharded(all))
	formattest.CheckDamage(t, envtest.Places(t), written, hf.Read,
		func(string) bool { return true })
	checkTorchLoads(t, written, onlySharded(all))
}

// TestOneShard reads the only shard of a checkpoint by its own name. What shoal and torch have
// written of this file is none of the checkpoint's values: another file would be described by it.
func TestOneShard(t *testing.T) {
	w := format.PackedIn("", 0, "w", tensor.U8, tensor.Shape{2})
	o, err := hf.LayoutShards([][]format.Shard{{{Name: w.Name, DType: w.DType, Shape: w.Shape,
		Box: w.Shape.Box()}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	written := formattest.WriteOutput(t, o, &format.Checkpoint{Tensors: o.Tensors},
		format.NewFiles(fstest.MapFS{o.Files[0].Name: {Data: make([]byte, o.Files[0].Size)}}))
	got, err := hf.ReadFile(format.NewFiles(written), o.Files[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range got.Values {
		if v.Path == "__metadata__.DCP_SHARDING_INFO" || v.Path == "__metadata__.shoal" {
			t.Errorf("%s is a value", v.Path)
		}
	}
}

// TestLayoutShardsRefuses says which boxes cannot be laid out.
func TestLayoutShardsRefuses(t *testing.T) {
	s := format.Shard{Name: "w", DType: tensor.F32, Shape: tensor.Shape{4},
		Box: tensor.Box{{From: 0, To: 5}}}
	if _, err := hf.LayoutShards([][]format.Shard{{s}}, nil); err == nil ||
		!strings.Contains(err.Error(), "lies outside shape") {
		t.Errorf("%v", err)
	}
	s.Box[0].To = 2
	if _, err := hf.LayoutShards([][]format.Shard{{s, s}}, nil); err == nil ||
		!strings.Contains(err.Error(), "box [0:2] overlaps box [0:2] of the same rank") {
		t.Errorf("%v", err)
	}
}

// load has torch load a folder of shards into tensors of zeros, and print what they hold then.
const load = `
import json, sys, torch
import torch.distributed.checkpoint as dcp
reader = dcp.HuggingFaceStorageReader(sys.argv[1])
items = reader.read_metadata().state_dict_metadata
state = {k: torch.zeros(m.size, dtype=m.properties.dtype) for k, m in items.items()}
dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(sys.argv[1]), no_dist=True)
show = lambda t: [str(t.dtype), list(t.shape), bytes(t.reshape(-1).view(torch.uint8).tolist()).hex()]
print(json.dumps({k: show(v) for k, v in state.items()}))
`

// checkTorchLoads has torch load what was written, and compares with what is due. It writes the
// folder into a temporary one of the test, fails the test where torch finds something else, and
// leaves to framework.Ask what happens where torch is not there.
func checkTorchLoads(t *testing.T, dir fstest.MapFS, want formattest.What) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.CopyFS(to, dir); err != nil {
		t.Fatal(err)
	}
	out := framework.Ask(t, "torch", []string{"-c", load, to}, to)
	var got formattest.What
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-written +torch:\n%s", diff)
	}
}
